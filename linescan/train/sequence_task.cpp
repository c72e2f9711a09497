#include "linescan/train/sequence_task.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "linescan/base/error.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/non_finite.h"

namespace linescan {
namespace {

// An epoch is what lies between two evaluations; sequences never repeat.
constexpr int64_t kSequencesAnEpoch = 8192;
constexpr int64_t kHeldOut = 512, kTest = 2048;

Network network_of(LanguageModel model) {
  return {model.ptr(), [model](const at::Tensor& tokens) mutable {
            return model->forward(tokens).flatten(0, 1);
          }};
}

// Tokens [count, length] and labels [count * length].
Batch gather(int64_t count, int64_t length, const Compute& compute,
             const std::function<TokenSequence(int64_t)>& sequence) {
  const Batch batch = {empty_for_upload({count, length}, at::kLong, compute),
                       empty_for_upload({count * length}, at::kLong, compute)};
  int64_t* tokens = batch.inputs.mutable_data_ptr<int64_t>();
  int64_t* labels = batch.labels.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const TokenSequence one = sequence(i);
    tokens = std::copy(one.tokens.begin(), one.tokens.end(), tokens);
    labels = std::copy(one.labels.begin(), one.labels.end(), labels);
  }
  return batch;
}

}  // namespace

Network SequenceTask::make_network() const {
  return network_of(LanguageModel(config_.language, config_.sequences.vocabulary));
}

int64_t SequenceTask::examples() const {
  const int64_t limit = config_.recipe.limit_train;
  return limit > 0 ? limit : kSequencesAnEpoch;
}

Batch SequenceTask::batch(std::span<const int64_t> indices, int64_t epoch,
                          const Compute& compute) const {
  return gather(static_cast<int64_t>(indices.size()), config_.sequences.length, compute,
                [&](int64_t i) {
                  return make_sequence(config_.task, config_.sequences, Stream::kSequences,
                                       config_.recipe.seed, epoch, indices[i]);
                });
}

TokenSequence SequenceTask::test_sequence(int64_t number) const {
  return make_sequence(config_.task, config_.sequences, Stream::kTestSequences, 0, 0, number);
}

std::optional<Evaluation> SequenceTask::evaluate(Network& network, Split split,
                                                 const EvaluationSettings& settings) const {
  const EvaluationMode mode(*network.module);
  const at::NoGradGuard no_grad;
  const int64_t all = split == Split::kTest ? kTest : kHeldOut;
  double loss = 0;
  int64_t correct = 0, correct5 = 0;
  for (int64_t first = 0; first < all; first += settings.batch) {
    if (settings.stop && settings.stop()) return std::nullopt;
    const Batch batch = gather(std::min(settings.batch, all - first), config_.sequences.length,
                               settings.compute, [&](int64_t i) {
                                 if (split == Split::kTest) return test_sequence(first + i);
                                 return make_sequence(config_.task, config_.sequences,
                                                      Stream::kHeldOutSequences, 0, 0, first + i);
                               });
    at::Tensor logits;
    {
      const ComputeScope scope(settings.compute);
      logits = network.forward(to_device(batch.inputs, settings.compute)).cpu();
    }
    const at::Tensor asked = batch.labels.ne(kNothingAsked).nonzero().squeeze(1);
    const at::Tensor scores = at::log_softmax(logits.index_select(0, asked), 1, at::kDouble);
    const at::Tensor labels = batch.labels.index_select(0, asked).unsqueeze(1);
    const at::Tensor right = scores.gather(1, labels);
    // Of tokens that are equally likely the first comes first, as when tokens are generated.
    const at::Tensor ties = scores.eq(right).logical_and(at::arange(scores.size(1)).lt(labels));
    const at::Tensor likelier = scores.gt(right).logical_or(ties).sum(1);
    loss -= right.sum().item<double>();
    correct += likelier.eq(0).sum().item<int64_t>();
    correct5 += likelier.lt(5).sum().item<int64_t>();
  }
  if (!std::isfinite(loss))
    throw_error<NotFinite>("evaluate: the logits of a sequence are not finite");
  Evaluation evaluation;
  evaluation.examples = all * answers();
  const auto count = static_cast<double>(evaluation.examples);
  evaluation.loss = loss / count;
  evaluation.top1 = static_cast<double>(correct) / count;
  evaluation.top5 = static_cast<double>(correct5) / count;
  return evaluation;
}

nlohmann::json SequenceTask::document(const Evaluation& evaluation) const {
  return {{"top1", evaluation.top1},
          {"top5", evaluation.top5},
          {"loss", evaluation.loss},
          {"answers", evaluation.examples}};
}

std::string SequenceTask::find_non_finite(Network& network, const at::Tensor& inputs) const {
  return linescan::find_non_finite(*network.module, inputs, network.forward);
}

nlohmann::json SequenceTask::describe() const {
  return {{"vocabulary", config_.sequences.vocabulary}};
}

std::string SequenceTask::summary() const {
  return fmt::format("{} sequences of {} an epoch, {} held out", examples(), config_.task,
                     kHeldOut);
}

LanguageModel load_language_model(const std::filesystem::path& checkpoint, const RunConfig& config,
                                  at::Device device) {
  if (config.task == kImages)
    throw_error<InvalidArgument>("checkpoint: {} was trained on images, expected a language model",
                                 checkpoint.string());
  LanguageModel model(config.language, config.sequences.vocabulary);
  load_trained_weights(checkpoint, *model);
  model->to(device);
  model->eval();
  return model;
}

}  // namespace linescan
