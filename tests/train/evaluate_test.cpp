#include "linescan/train/evaluate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "linescan/base/error.h"
#include "linescan/models/networks/vmamba.h"
#include "linescan/train/dataset.h"
#include "linescan/train/non_finite.h"
#include "linescan/train/predict.h"
#include "tests/support/messages.h"
#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

using testing::contains;

struct Fixture {
  testing::TemporaryFolder folder;
  Dataset data;
  VMamba network{nullptr};
  BatchAssembler assembler{Normalisation{}};

  explicit Fixture(const char* classes = "8") {
    const Assignments options = {{"dims", "8"},
                                 {"depths", "1,1"},
                                 {"stem_stride", "2"},
                                 {"drop_path", "0.5"},
                                 {"classes", classes}};
    data = load_dataset(testing::write_tiny_data(folder.path()).string());
    RunConfig config = make_config(options);
    fit_to_data(&config, options, data.train, 4);
    torch::manual_seed(1);
    network = VMamba(config.network);
    assembler = BatchAssembler(data.normalisation);
  }
};

// Every number once more, from LibTorch's own loss and sorting, in one batch.
TEST(Evaluate, AgreesWithLibTorch) {
  Fixture f;
  const auto got = evaluate(*f.network, f.data.test, f.assembler, {.batch = 5, .mistakes = 100});
  ASSERT_TRUE(got);
  EXPECT_TRUE(f.network->is_training());

  const torch::NoGradGuard no_grad;
  f.network->eval();
  const int64_t count = f.data.test.count;
  const at::Tensor input = torch::empty({count, 1, 12, 12}),
                   labels = torch::empty({count}, at::kLong);
  f.assembler.plain(f.data.test, 0, count, input.data_ptr<float>());
  for (int64_t i = 0; i < count; ++i) labels[i] = f.data.test.labels[i];
  const at::Tensor logits = f.network->forward(input);
  const double loss = torch::nn::functional::cross_entropy(logits, labels).item<double>();
  const at::Tensor best = logits.argmax(1);
  const at::Tensor top5 = std::get<1>(logits.topk(5, 1)).eq(labels.unsqueeze(1)).any(1);
  // Batches of 5 and of 24 may sum in another order.
  EXPECT_NEAR(got->loss, loss, 1e-5);
  EXPECT_EQ(got->examples, count);
  EXPECT_DOUBLE_EQ(got->top1, best.eq(labels).sum().item<double>() / count);
  EXPECT_DOUBLE_EQ(got->top5, top5.sum().item<double>() / count);
  std::vector<std::vector<int64_t>> confusion(8, std::vector<int64_t>(8));
  for (int64_t i = 0; i < count; ++i)
    ++confusion[labels[i].item<int64_t>()][best[i].item<int64_t>()];
  EXPECT_EQ(got->confusion, confusion);

  EXPECT_EQ(got->mistakes.size(), count - best.eq(labels).sum().item<int64_t>());
  const at::Tensor probabilities = logits.softmax(1);
  double before = 1;
  for (const Mistake& mistake : got->mistakes) {
    EXPECT_NE(mistake.label, mistake.predicted);
    EXPECT_EQ(mistake.label, f.data.test.labels[mistake.index]);
    EXPECT_EQ(mistake.predicted, best[mistake.index].item<int64_t>());
    EXPECT_NEAR(mistake.probability, probabilities[mistake.index][mistake.predicted].item<double>(),
                1e-5);
    EXPECT_LE(mistake.probability, before);
    before = mistake.probability;
  }
}

TEST(Evaluate, DocumentsHaveTheirKeys) {
  Fixture f;
  const Evaluation evaluation =
      *evaluate(*f.network, f.data.test, f.assembler, {.batch = 24, .mistakes = 2});
  ASSERT_EQ(evaluation.mistakes.size(), 2u);
  const nlohmann::json brief = to_json(evaluation);
  EXPECT_EQ(brief.size(), 5u);
  for (const char* key : {"top1", "top5", "loss", "images", "confusion"})
    EXPECT_TRUE(brief.contains(key)) << key;
  const nlohmann::json full = evaluation_document(evaluation, f.data.test, f.data.classes);
  EXPECT_EQ(full["classes"], f.data.classes);
  ASSERT_EQ(full["mistakes"].size(), 2u);
  EXPECT_EQ(full["mistakes"][0]["png_base64"].get<std::string>().substr(0, 8), "iVBORw0K");
}

TEST(Evaluate, StopsWhenAsked) {
  Fixture f;
  int asked = 0;
  EXPECT_FALSE(evaluate(*f.network, f.data.test, f.assembler,
                        {.batch = 4, .stop = [&] { return ++asked == 3; }}));
  EXPECT_EQ(asked, 3);
}

TEST(Evaluate, RefusesLabelsBeyondTheNetwork) {
  Fixture f("4");
  f.data.test.labels[7] = 4;
  EXPECT_THROW(evaluate(*f.network, f.data.test, f.assembler, {}), InvalidArgument);
}

TEST(Evaluate, BadLogitsAreAnError) {
  Fixture f;
  {
    const torch::NoGradGuard no_grad;
    f.network->named_parameters()["classifier.head.bias"][2] = NAN;
  }
  EXPECT_THROW(evaluate(*f.network, f.data.test, f.assembler, {}), NotFinite);
}

at::Tensor tiny_input(const Fixture& f) {
  at::Tensor input = torch::empty({4, 1, 12, 12});
  f.assembler.plain(f.data.test, 0, 4, input.data_ptr<float>());
  return input;
}

std::string cause_of_non_finite(Fixture& f) {
  return find_non_finite(*f.network, tiny_input(f),
                         [&](const at::Tensor& x) { return f.network->forward(x); });
}

TEST(NonFinite, NamesTheBadParameter) {
  Fixture f;
  {
    const torch::NoGradGuard no_grad;
    f.network->named_parameters()["layers.1.blocks.0.mlp.fc1.weight"][0][1] = INFINITY;
  }
  EXPECT_EQ(cause_of_non_finite(f),
            "parameter layers.1.blocks.0.mlp.fc1.weight has 1 values that are not finite");
}

TEST(NonFinite, NamesTheSampleWhoseInputIsBad) {
  Fixture f;
  at::Tensor x = tiny_input(f).clone();
  x[x.size(0) - 1][0][3][2] = NAN;
  const std::string finding = find_non_finite(
      *f.network, x, [&](const at::Tensor& input) { return f.network->forward(input); });
  EXPECT_TRUE(contains(finding, "the input of sample " + std::to_string(x.size(0) - 1))) << finding;
  EXPECT_TRUE(contains(finding, ": 1 NaN, 0 infinite, the others from ")) << finding;
}

TEST(NonFinite, NamesTheFirstBadActivation) {
  Fixture f;
  f.network->eval();  // nothing is dropped by chance
  {
    // Finite weights whose product overflows in the second stage's block.
    const torch::NoGradGuard no_grad;
    f.network->named_parameters()["layers.1.blocks.0.mlp.fc1.weight"].fill_(3e38);
  }
  const std::string finding = cause_of_non_finite(f);
  EXPECT_TRUE(contains(finding, "the first bad activation is layers.1.blocks.0.mlp, ")) << finding;
}

TEST(NonFinite, NamesTheBadGradientNearestToTheLoss) {
  Fixture f;
  for (const char* name : {"layers.0.blocks.0.norm.weight", "layers.1.blocks.0.norm.weight"}) {
    at::Tensor parameter = f.network->named_parameters()[name];
    parameter.mutable_grad() = torch::full_like(parameter, NAN);
  }
  EXPECT_EQ(cause_of_non_finite(f),
            "the first bad gradient is that of parameter layers.1.blocks.0.norm.weight");
}

TEST(NonFinite, SaysSoWhenNothingIsBad) {
  Fixture f;
  EXPECT_TRUE(contains(cause_of_non_finite(f), "no parameter"));
}

}  // namespace
}  // namespace linescan
