// The language model: its parts, its gradients, and tokens from the cache against whole sequences;
// on a GPU as on the CPU.

#include "linescan/models/networks/language_model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "linescan/base/error.h"
#include "linescan/models/networks/generate.h"
#include "tests/support/gpu_test.h"

namespace linescan {
namespace {

LanguageModel make_model(const LanguageModelConfig& config = {.hidden = 12, .head_dim = 6}) {
  torch::manual_seed(2);
  LanguageModel model(config, 17);
  const at::NoGradGuard no_grad;
  for (auto& item :
       model->named_parameters())  // sharper than fresh weights: likeliest tokens differ
    if (item.value().dim() == 2) item.value().mul_(3);
  return model;
}

// The first `tokens` of what the model says is likeliest, each from the whole sequence so far.
std::vector<int64_t> without_cache(LanguageModel& model, std::vector<int64_t> sequence,
                                   int64_t tokens) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> result;
  for (int64_t i = 0; i < tokens; ++i) {
    const at::Tensor logits = model->forward(at::tensor(sequence).unsqueeze(0));
    result.push_back(logits[0][-1].argmax().item<int64_t>());
    sequence.push_back(result.back());
  }
  return result;
}

std::vector<int64_t> generated(LanguageModel& model, const std::vector<int64_t>& prompt,
                               const GenerateOptions& options) {
  std::vector<int64_t> result;
  generate(model, prompt, options, [&](int64_t token) { result.push_back(token); });
  return result;
}

TEST(LanguageModel, NamesItsPartsAndLearnsWithAllOfThem) {
  LanguageModel model = make_model({.hidden = 12, .layers = 3, .head_dim = 6});
  std::set<std::string> names;
  for (const auto& item : model->named_parameters()) names.insert(item.key());
  for (const char* name :
       {"embedding.weight", "blocks.0.norm1.weight", "blocks.2.layer.A_log",
        "blocks.1.norm2.weight", "blocks.1.mlp.fc1.bias", "norm.weight", "head.weight"})
    EXPECT_TRUE(names.contains(name)) << name;
  const at::Tensor tokens = torch::randint(0, 17, {2, 9}, at::kLong);
  const at::Tensor logits = model->forward(tokens);
  EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{2, 9, 17}));
  logits.square().sum().backward();
  for (const auto& item : model->named_parameters())
    EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();

  const LanguageModel plain = make_model({.hidden = 12, .head_dim = 6, .mlp_ratio = 0});
  for (const auto& item : plain->named_parameters())
    EXPECT_EQ(item.key().find("mlp"), std::string::npos);
}

TEST(LanguageModel, SeesThePastAlone) {
  LanguageModel model = make_model();
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = torch::randint(0, 17, {1, 20}, at::kLong), other = tokens.clone();
  other[0][12] = (other[0][12] + 1).remainder(17);
  const at::Tensor a = model->forward(tokens), b = model->forward(other);
  EXPECT_TRUE(at::allclose(a.narrow(1, 0, 12), b.narrow(1, 0, 12), 1e-6, 1e-6));
  EXPECT_GT((a - b).narrow(1, 12, 8).abs().amax(-1).min().item<double>(), 1e-6);
}

TEST(Generate, FromTheCacheIsWhatTheWholeSequenceSays) {
  for (const bool short_conv : {true, false}) {
    LanguageModel model = make_model(
        {.hidden = 12, .heads = 1, .value_heads = 2, .head_dim = 6, .short_conv = short_conv});
    const std::vector<int64_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6};
    const std::vector<int64_t> expected = without_cache(model, prompt, 30);
    EXPECT_EQ(generated(model, prompt, {.tokens = 30}), expected);
    EXPECT_EQ(generated(model, {7}, {.tokens = 12}), without_cache(model, {7}, 12));
    EXPECT_GT(std::set<int64_t>(expected.begin(), expected.end()).size(), 1u);  // says something
  }
}

TEST(Generate, DrawsAsTheTemperatureSaysFromTheSeed) {
  LanguageModel model = make_model();
  const GenerateOptions hot = {.tokens = 40, .temperature = 100};
  torch::manual_seed(1);
  const std::vector<int64_t> one = generated(model, {5}, hot), other = generated(model, {5}, hot);
  torch::manual_seed(1);
  EXPECT_EQ(generated(model, {5}, hot), one);
  EXPECT_NE(other, one);
  // Nearly uniform: 40 draws from 17 tokens meet more than 8 of them.
  EXPECT_GT(std::set<int64_t>(one.begin(), one.end()).size(), 8u);
  for (const double cold : {1e-6, 1e-300, 5e-324})
    EXPECT_EQ(generated(model, {5}, {.tokens = 9, .temperature = cold}),
              generated(model, {5}, {.tokens = 9}))
        << cold;
}

TEST(Generate, NamesWhatDoesNotFit) {
  LanguageModel model = make_model();
  EXPECT_THROW(generated(model, {}, {}), InvalidArgument);
  EXPECT_THROW(generated(model, {17}, {}), InvalidArgument);
  EXPECT_THROW(generated(model, {-1}, {}), InvalidArgument);
  EXPECT_THROW(generated(model, {1}, {.temperature = -1}), InvalidArgument);
  EXPECT_TRUE(generated(model, {1}, {.tokens = 0}).empty());
  model->parameters().back().data().fill_(NAN);
  EXPECT_THROW(generated(model, {1}, {}), NotFinite);
}

class GpuLanguageModel : public GpuTest {};

TEST_F(GpuLanguageModel, LearnsAndSpeaksAsOnTheCpu) {
  const at::Tensor tokens = torch::randint(0, 17, {4, 100}, at::kLong);
  std::vector<LanguageModel> models;
  std::vector<double> losses;
  std::vector<std::vector<int64_t>> said;
  for (const at::Device device : {at::Device(at::kCPU), compute_.device}) {
    LanguageModel& model =
        models.emplace_back(make_model({.hidden = 32, .heads = 2, .head_dim = 16}));
    model->to(device);
    torch::optim::SGD optimizer(model->parameters(), /*lr=*/1e-3);
    const auto loss = [&] {
      const at::Tensor here = tokens.to(device);
      const at::Tensor logits = model->forward(here.narrow(1, 0, 99));
      return at::cross_entropy_loss(logits.flatten(0, 1), here.narrow(1, 1, 99).flatten());
    };
    const at::Tensor before = loss();
    before.backward();
    optimizer.step();
    losses.push_back(loss().item<double>());
    EXPECT_LT(losses.back(), before.item<double>());
    said.push_back(generated(model, {3, 1, 4, 1, 5}, {.tokens = 30}));
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-4 * losses[0]);
  for (const auto& item : models[0]->named_parameters()) {
    const at::Tensor expected = item.value().grad();
    const at::Tensor got = models[1]->named_parameters()[item.key()].grad().cpu();
    EXPECT_LT((got - expected).norm().item<double>(), 1e-3 * expected.norm().item<double>())
        << item.key();
  }
  EXPECT_EQ(said[1], said[0]);
}

TEST(LanguageModelConfig, NamesOptionsThatDoNotFit) {
  EXPECT_THROW(LanguageModelConfig{.hidden = 0}.validate(), InvalidArgument);
  EXPECT_THROW(LanguageModelConfig{.expand_v = 0}.validate(), InvalidArgument);
  EXPECT_THROW(LanguageModelConfig{.mlp_ratio = -1}.validate(), InvalidArgument);
  EXPECT_THROW(LanguageModel(LanguageModelConfig{.value_heads = 3}, 8), InvalidArgument);
  EXPECT_THROW(LanguageModel(LanguageModelConfig{}, 0), InvalidArgument);
  LanguageModel model = make_model();
  EXPECT_THROW(model->forward(torch::randn({1, 3})), InvalidArgument);
}

}  // namespace
}  // namespace linescan
