#include "linescan/train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "linescan/base/error.h"
#include "linescan/train/base64.h"
#include "linescan/train/pictures.h"
#include "linescan/train/predict.h"

namespace linescan {

using nlohmann::json;

namespace {

// Sums over the images seen so far.
struct Tally {
  Evaluation* evaluation;
  int64_t correct = 0, correct5 = 0;
  double loss = 0;

  // `scores` [classes] are the log-probabilities of image `index`.
  void add(int64_t index, int64_t label, std::span<const float> scores) {
    const auto best = std::max_element(scores.begin(), scores.end());
    const int64_t predicted = best - scores.begin();
    const auto likelier = std::count_if(scores.begin(), scores.end(),
                                        [&](float score) { return score > scores[label]; });
    loss -= scores[label];
    correct += predicted == label;
    correct5 += likelier < 5;
    ++evaluation->confusion[label][predicted];
    if (predicted != label)
      evaluation->mistakes.push_back({index, label, predicted, std::exp(*best)});
  }
};

}  // namespace

std::optional<Evaluation> evaluate(ImageNetworkImpl& network, const ImageSet& images,
                                   const BatchAssembler& assembler,
                                   const EvaluationSettings& settings) {
  const EvaluationMode mode(network);
  Predictor predictor(network, settings.compute, settings.graph);
  Evaluation evaluation;
  evaluation.examples = images.count;
  Tally tally{&evaluation};
  for (int64_t first = 0; first < images.count; first += settings.batch) {
    if (settings.stop && settings.stop()) return std::nullopt;
    const int64_t count = std::min(settings.batch, images.count - first);
    const std::vector<float> scores = predictor.log_probabilities(images, first, count, assembler);
    const std::size_t classes = scores.size() / count;
    evaluation.confusion.resize(classes, std::vector<int64_t>(classes));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t label = images.labels[first + i];
      if (label >= classes)
        throw_error<InvalidArgument>("evaluate: image {} has label {}, expected below {} = classes",
                                     first + i, label, classes);
      tally.add(first + i, label, std::span(scores).subspan(i * classes, classes));
    }
  }
  const double count = std::max<int64_t>(1, images.count);
  evaluation.loss = tally.loss / count;
  evaluation.top1 = tally.correct / count;
  evaluation.top5 = tally.correct5 / count;
  std::stable_sort(
      evaluation.mistakes.begin(), evaluation.mistakes.end(),
      [](const Mistake& a, const Mistake& b) { return a.probability > b.probability; });
  if (evaluation.mistakes.size() > settings.mistakes) evaluation.mistakes.resize(settings.mistakes);
  return evaluation;
}

json to_json(const Evaluation& evaluation) {
  return {{"top1", evaluation.top1},
          {"top5", evaluation.top5},
          {"loss", evaluation.loss},
          {"images", evaluation.examples},
          {"confusion", evaluation.confusion}};
}

json evaluation_document(const Evaluation& evaluation, const ImageSet& images,
                         const std::vector<std::string>& classes) {
  json document = to_json(evaluation);
  document["classes"] = classes;
  json& mistakes = document["mistakes"] = json::array();
  for (const Mistake& mistake : evaluation.mistakes)
    mistakes.push_back({{"index", mistake.index},
                        {"label", mistake.label},
                        {"predicted", mistake.predicted},
                        {"probability", mistake.probability},
                        {"png_base64", base64(encode_png(image_of(images, mistake.index)))}});
  return document;
}

}  // namespace linescan
