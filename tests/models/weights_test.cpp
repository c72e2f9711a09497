#include "linescan/models/weights.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "linescan/base/error.h"
#include "linescan/models/decay.h"
#include "linescan/models/tensor_file.h"
#include "tests/models/small_model.h"
#include "tests/support/messages.h"

namespace linescan {
namespace {

class Weights : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(::testing::TempDir()) /
            (std::string("linescan_weights_") + test->name() + ".safetensors");
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // The file with names and tensors changed by `change`.
  template <typename Change>
  void rewrite(Change change) {
    std::map<std::string, at::Tensor> tensors = read_tensors(path_);
    change(tensors);
    write_tensors(path_, {tensors.begin(), tensors.end()});
  }

  std::string complaint(torch::nn::Module& module) {
    return testing::refusal_of([&] { load_weights(module, path_); });
  }

  std::filesystem::path path_;
};

void expect_equal(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto pa = a.named_parameters(), pb = b.named_parameters();
  ASSERT_EQ(pa.size(), pb.size());
  for (const auto& item : pa) EXPECT_TRUE(at::equal(item.value(), pb[item.key()])) << item.key();
}

void rename(std::map<std::string, at::Tensor>& tensors, const std::string& from,
            const std::string& to) {
  std::map<std::string, at::Tensor> renamed;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t place = name.find(from);
    std::string changed = name;
    if (place != std::string::npos) changed.replace(place, from.size(), to);
    renamed.emplace(changed, tensor);
  }
  tensors = renamed;
}

TEST_F(Weights, SavedOnesLoad) {
  for (const char* norm : {"ln", "bn"}) {
    VMambaConfig config = small_config();
    config.norm = norm;
    VMamba a = seeded_model(config, 1), b = seeded_model(config, 2);
    a->train();
    a->forward(random_image(2, 2, 16, 16));  // moves the statistics of batch norms
    save_weights(*a, path_);
    load_weights(*b, path_);
    expect_equal(*a, *b);
    const auto expected = a->named_buffers(), got = b->named_buffers();
    for (const auto& item : expected) EXPECT_TRUE(at::equal(item.value(), got[item.key()]));
  }
}

TEST_F(Weights, OlderNamesLoad) {
  VMambaConfig config = small_config();
  config.stem = "v1";
  config.downsample = "v1";
  VMamba a = seeded_model(config, 1), b = seeded_model(config, 2);
  save_weights(*a, path_);
  rewrite([](auto& tensors) {
    rename(tensors, "patch_embed.0.", "patch_embed.proj.");
    rename(tensors, "patch_embed.2.", "patch_embed.norm.");
    rename(tensors, ".op.", ".self_attention.");
    rename(tensors, "0.norm.", "0.ln_1.");
    rename(tensors, "1.norm.", "1.ln_1.");
    rename(tensors, "classifier.norm.", "norm.");
    rename(tensors, "classifier.head.", "head.");
    ASSERT_TRUE(tensors.contains("layers.0.blocks.0.ln_1.weight"));
    ASSERT_TRUE(tensors.contains("layers.0.downsample.norm.weight"));
  });
  load_weights(*b, path_);
  expect_equal(*a, *b);
}

TEST_F(Weights, ConvolutionShapedMatricesLoad) {
  VMamba a = seeded_model(small_config(), 1), b = seeded_model(small_config(), 2);
  save_weights(*a, path_);
  rewrite([](auto& tensors) {
    for (auto& [name, tensor] : tensors)
      if (name.ends_with("proj.weight") || name.ends_with("fc1.weight"))
        tensor = tensor.unsqueeze(-1).unsqueeze(-1);
  });
  load_weights(*b, path_);
  expect_equal(*a, *b);
}

TEST_F(Weights, HalfPrecisionLoads) {
  VMamba a = seeded_model(small_config(), 1), b = seeded_model(small_config(), 2);
  save_weights(*a, path_);
  rewrite([](auto& tensors) {
    for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kBFloat16);
  });
  load_weights(*b, path_);
  const at::Tensor expected = a->parameters()[0];
  EXPECT_TRUE(at::equal(b->parameters()[0], expected.to(at::kBFloat16).to(at::kFloat)));
}

TEST_F(Weights, PositionEmbeddingsAreResized) {
  VMambaConfig config = small_config();
  config.pos_embed = true;
  VMamba a = seeded_model(config, 1);
  {
    torch::NoGradGuard no_grad;
    a->named_parameters()["pos_embed"].fill_(0.25);
  }
  save_weights(*a, path_);
  config.image_size = 24;
  VMamba b = seeded_model(config, 2);
  load_weights(*b, path_);
  const at::Tensor resized = b->named_parameters()["pos_embed"];
  EXPECT_EQ(resized.sizes(), (std::vector<int64_t>{1, 8, 6, 6}));
  EXPECT_TRUE(at::allclose(resized, torch::full({1, 8, 6, 6}, 0.25)));
}

TEST_F(Weights, AllThatDoesNotFitIsListedAndNothingChanges) {
  VMamba a = seeded_model(small_config(), 1), b = seeded_model(small_config(), 2);
  VMamba untouched = seeded_model(small_config(), 2);
  save_weights(*a, path_);
  rewrite([](auto& tensors) {
    tensors.erase("classifier.head.bias");
    tensors.erase("patch_embed.0.weight");
    tensors["extra.weight"] = torch::zeros({2});
    tensors["classifier.head.weight"] = torch::zeros({4, 16});
    tensors["classifier.norm.bias"] = torch::zeros({16}, at::kLong);
    tensors["head.weight"] = torch::zeros({3, 16});
  });
  const std::string message = complaint(*b);
  for (const char* part :
       {"missing: classifier.head.bias, patch_embed.0.weight", "unexpected: extra.weight",
        "classifier.head.weight float32 [4, 16], expected float32 [3, 16]",
        "classifier.norm.bias int64 [16], expected float32 [16]",
        "under two names: classifier.head.weight"})
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n in " << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  expect_equal(*b, *untouched);
}

TEST_F(Weights, TensorsOfEveryLayoutAndTypeSurvive) {
  const at::Tensor turned = torch::randn({3, 5}).t(), scalar = torch::tensor(2.5);
  const at::Tensor number = torch::arange(4), empty = torch::zeros({0, 3});
  const at::Tensor flag = torch::ones({2}, at::kBool);
  write_tensors(path_, {{"turned", turned},
                        {"scalar", scalar},
                        {"number", number},
                        {"empty", empty},
                        {"flag", flag}});
  auto got = read_tensors(path_);
  EXPECT_TRUE(at::equal(got["turned"], turned));
  EXPECT_TRUE(at::equal(got["scalar"], scalar));
  EXPECT_EQ(got["scalar"].dim(), 0);
  EXPECT_TRUE(at::equal(got["number"], number));
  EXPECT_EQ(got["empty"].sizes(), empty.sizes());
  EXPECT_TRUE(at::equal(got["flag"], flag));
  EXPECT_THROW(write_tensors(path_, {{"c", torch::zeros({1}, at::kComplexFloat)}}),
               InvalidArgument);
}

TEST(Decay, LeavesOutVectorsBiasesEmbeddingsAndMarkedParameters) {
  VMambaConfig config = small_config();
  config.pos_embed = true;
  VMamba model = seeded_model(config);
  const auto contains = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const DecayGroups marked = decay_groups(*model);
  for (const char* name :
       {"patch_embed.0.weight", "layers.0.blocks.0.op.in_proj.weight",
        "layers.0.blocks.0.op.conv2d.weight", "layers.0.blocks.0.op.x_proj_weight",
        "layers.0.blocks.0.op.dt_projs_weight", "classifier.head.weight"})
    EXPECT_TRUE(contains(marked.decayed_names, name)) << name;
  for (const char* name : {"pos_embed", "patch_embed.0.bias", "layers.0.blocks.0.norm.weight",
                           "layers.0.blocks.0.op.dt_projs_bias", "layers.0.blocks.0.op.A_logs",
                           "layers.0.blocks.0.op.Ds"})
    EXPECT_TRUE(contains(marked.plain_names, name)) << name;
  EXPECT_EQ(marked.decayed.size() + marked.plain.size(), model->parameters().size());

  const DecayGroups unmarked = decay_groups(*model, /*honour_marks=*/false);
  EXPECT_TRUE(contains(unmarked.decayed_names, "layers.0.blocks.0.op.A_logs"));
  EXPECT_TRUE(contains(unmarked.plain_names, "layers.0.blocks.0.op.Ds"));  // one-dimensional
}

}  // namespace
}  // namespace linescan
