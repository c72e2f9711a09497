#include "linescan/models/networks/vmamba.h"

#include <ATen/autocast_mode.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "linescan/base/error.h"
#include "linescan/models/module_watch.h"
#include "linescan/models/networks/registry.h"
#include "tests/models/small_model.h"

namespace linescan {
namespace {

std::vector<std::string> names_of(const VMambaConfig& config) {
  std::vector<std::string> names;
  for (const auto& item : VMamba(config)->named_parameters()) names.push_back(item.key());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

TEST(VMamba, ParametersHaveThePublishedNames) {
  VMambaConfig config = small_config();
  config.depths = {1, 0};
  EXPECT_EQ(names_of(config), sorted({"patch_embed.0.weight",
                                      "patch_embed.0.bias",
                                      "patch_embed.2.weight",
                                      "patch_embed.2.bias",
                                      "patch_embed.5.weight",
                                      "patch_embed.5.bias",
                                      "patch_embed.7.weight",
                                      "patch_embed.7.bias",
                                      "layers.0.blocks.0.norm.weight",
                                      "layers.0.blocks.0.norm.bias",
                                      "layers.0.blocks.0.op.in_proj.weight",
                                      "layers.0.blocks.0.op.conv2d.weight",
                                      "layers.0.blocks.0.op.x_proj_weight",
                                      "layers.0.blocks.0.op.dt_projs_weight",
                                      "layers.0.blocks.0.op.dt_projs_bias",
                                      "layers.0.blocks.0.op.A_logs",
                                      "layers.0.blocks.0.op.Ds",
                                      "layers.0.blocks.0.op.out_norm.weight",
                                      "layers.0.blocks.0.op.out_norm.bias",
                                      "layers.0.blocks.0.op.out_proj.weight",
                                      "layers.0.blocks.0.norm2.weight",
                                      "layers.0.blocks.0.norm2.bias",
                                      "layers.0.blocks.0.mlp.fc1.weight",
                                      "layers.0.blocks.0.mlp.fc1.bias",
                                      "layers.0.blocks.0.mlp.fc2.weight",
                                      "layers.0.blocks.0.mlp.fc2.bias",
                                      "layers.0.downsample.1.weight",
                                      "layers.0.downsample.1.bias",
                                      "layers.0.downsample.3.weight",
                                      "layers.0.downsample.3.bias",
                                      "classifier.norm.weight",
                                      "classifier.norm.bias",
                                      "classifier.head.weight",
                                      "classifier.head.bias"}));
}

TEST(VMamba, NamesOfTheVariants) {
  VMambaConfig config = small_config();
  config.depths = {1, 0};
  config.stem = "v1";
  config.downsample = "v1";
  config.pos_embed = true;
  config.backbone = true;
  config.mlp_ratio = 0;
  config.forward_type = "v05_oncnorm_noz";
  const std::vector<std::string> names = names_of(config);
  for (const char* name :
       {"patch_embed.2.weight", "layers.0.downsample.norm.weight",
        "layers.0.downsample.reduction.weight", "pos_embed", "outnorm0.weight", "outnorm1.bias",
        "layers.0.blocks.0.op.out_norm.0.weight", "layers.0.blocks.0.op.out_norm.2.weight"})
    EXPECT_TRUE(std::binary_search(names.begin(), names.end(), name)) << name;
  config.forward_type = "v05_ondwconv3_noz";
  EXPECT_TRUE([&] {
    const auto all = names_of(config);
    return std::binary_search(all.begin(), all.end(), "layers.0.blocks.0.op.out_norm.1.weight");
  }());
}

TEST(VMamba, ShapesOfTheScanParameters) {
  VMamba model(small_config());
  const auto parameters = model->named_parameters();
  const auto sizes = [&](const char* name) {
    return parameters[std::string("layers.1.blocks.0.op.") + name].sizes().vec();
  };
  EXPECT_EQ(sizes("x_proj_weight"), (std::vector<int64_t>{4, 1 + 2 * 2, 16}));
  EXPECT_EQ(sizes("dt_projs_weight"), (std::vector<int64_t>{4, 16, 1}));
  EXPECT_EQ(sizes("dt_projs_bias"), (std::vector<int64_t>{4, 16}));
  EXPECT_EQ(sizes("A_logs"), (std::vector<int64_t>{64, 2}));
  EXPECT_EQ(sizes("Ds"), (std::vector<int64_t>{64}));
  EXPECT_EQ(sizes("in_proj.weight"), (std::vector<int64_t>{16, 16}));
}

// Options that lead through different code, at an odd size: the result must not depend on whether
// gradients are recorded (without them activations are overwritten in place), the input must be left
// alone, and every parameter must receive a gradient.
TEST(VMamba, InPlaceAndRecordedRunsAgree) {
  const std::vector<std::vector<const char*>> table = {
      {},
      {"forward_type=v0"},
      {"gate=silu", "out_act=gelu"},
      {"gate=plain", "out_norm=none", "conv=0"},
      {"out_norm=dwconv3", "routes=two"},
      {"out_norm=cnorm", "routes=rotated"},
      {"out_norm=softmax", "routes=one"},
      {"out_norm=sigmoid"},
      {"routes=cascade"},
      {"routes=cascade", "authors_cascade=true"},
      {"gmlp=true", "mlp_act=silu", "ssm_act=gelu"},
      {"mlp_ratio=0", "stem=v1", "stem_stride=2", "downsample=v1"},
      {"ssm_ratio=0", "norm=bn", "downsample=v2"},
      {"post_norm=true", "pos_embed=true", "patch_norm=false", "ssm_init=v1"},
      {"in_channels=1", "dims=8", "depths=1", "ssm_act=relu", "mlp_act=sigmoid"},
  };
  for (const auto& settings : table) {
    VMambaConfig config = small_config();
    for (const char* setting : settings) set_option(config.options(), "model option", setting);
    SCOPED_TRACE(fmt::format("{}", fmt::join(settings, " ")));
    VMamba model = seeded_model(config);
    const at::Tensor x = random_image(2, config.in_channels, 19, 23), kept = x.clone();
    const at::Tensor recorded = model->forward(x);
    EXPECT_EQ(recorded.sizes(), (std::vector<int64_t>{2, 3}));
    {
      torch::NoGradGuard no_grad;
      EXPECT_TRUE(at::allclose(model->forward(x), recorded, 1e-5, 1e-6));
    }
    EXPECT_TRUE(at::equal(x, kept));
    recorded.square().sum().backward();
    for (const auto& item : model->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_TRUE(at::isfinite(item.value().grad()).all().item<bool>()) << item.key();
      EXPECT_GT(item.value().grad().abs().max().item<float>(), 0) << item.key();
    }
  }
}

TEST(VMamba, ResultsOfASampleDoNotDependOnTheBatchAroundIt) {
  VMamba model = seeded_model(small_config());
  torch::NoGradGuard no_grad;
  const at::Tensor x = random_image(3, 2, 16, 16);
  EXPECT_TRUE(at::allclose(model->forward(x)[1], model->forward(x.slice(0, 1, 2))[0], 1e-5, 1e-6));
}

TEST(VMamba, AcceptsEveryStrideOfTheInput) {
  VMamba model = seeded_model(small_config());
  torch::NoGradGuard no_grad;
  const at::Tensor x = random_image(2, 2, 16, 20);
  const at::Tensor expected = model->forward(x);
  const at::Tensor last = x.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor turned = x.transpose(2, 3).contiguous().transpose(2, 3);
  EXPECT_TRUE(at::allclose(model->forward(last), expected, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(model->forward(turned), expected, 1e-5, 1e-6));
}

TEST(VMamba, FeaturesAndStages) {
  VMambaConfig config = small_config();
  VMamba classifier = seeded_model(config);
  config.backbone = true;
  VMamba backbone = seeded_model(config);
  torch::NoGradGuard no_grad;
  const at::Tensor x = random_image(2, 2, 17, 21);
  const at::Tensor features = classifier->forward_features(x);
  EXPECT_EQ(features.sizes(), (std::vector<int64_t>{2, 16, 3, 3}));
  const auto parameters = classifier->named_parameters();
  EXPECT_TRUE(at::allclose(at::linear(features.mean({2, 3}), parameters["classifier.head.weight"],
                                      parameters["classifier.head.bias"]),
                           classifier->forward(x), 1e-5, 1e-6));

  const std::vector<at::Tensor> stages = backbone->stages(x);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].sizes(), (std::vector<int64_t>{2, 8, 5, 6}));
  EXPECT_TRUE(stages[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::allclose(stages[0].mean(1), at::zeros({2, 5, 6}), 0, 1e-5)) << "not normed";
  // The same seed gives both the same blocks, and fresh norms are equal.
  EXPECT_TRUE(at::allclose(stages[1], features, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(backbone->forward_features(x), features, 1e-5, 1e-6));
  EXPECT_THROW(backbone->forward(x), InvalidArgument);
  EXPECT_THROW(classifier->stages(x), InvalidArgument);
}

TEST(VMamba, PositionEmbeddingFollowsTheImageSize) {
  VMambaConfig config = small_config();
  config.pos_embed = true;
  VMamba model = seeded_model(config);
  torch::NoGradGuard no_grad;
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["pos_embed"].sizes(), (std::vector<int64_t>{1, 8, 4, 4}));
  const at::Tensor x = random_image(1, 2, 24, 16);
  const at::Tensor with = model->forward(x);
  EXPECT_EQ(with.sizes(), (std::vector<int64_t>{1, 3}));
  // A constant embedding stays that constant at every size.
  parameters["pos_embed"].fill_(0.5);
  const at::Tensor resized = model->forward(x);
  parameters["pos_embed"].zero_();
  EXPECT_FALSE(at::allclose(resized, model->forward(x)));
}

TEST(VMamba, AWatchSeesTheModulesInOrderAndMayChangeWhatTheyGive) {
  VMamba model = seeded_model(small_config());
  torch::NoGradGuard no_grad;
  const at::Tensor x = random_image(1, 2, 16, 16);
  const at::Tensor expected = model->forward(x);
  std::vector<std::string> names;
  at::Tensor last;
  const auto note = [&](const std::string& name, const at::Tensor& y) {
    names.push_back(name);
    last = y;
  };
  {
    const ModuleWatch watch(seen_by(note)), nothing(seen_by({}));
    EXPECT_TRUE(at::equal(model->forward(x), expected));
  }
  EXPECT_TRUE(at::equal(last, expected));
  EXPECT_EQ(names, (std::vector<std::string>{
                       "patch_embed", "layers.0.blocks.0.op", "layers.0.blocks.0.mlp",
                       "layers.0.blocks.0", "layers.0.downsample", "layers.1.blocks.0.op",
                       "layers.1.blocks.0.mlp", "layers.1.blocks.0", "layers.1.blocks.1.op",
                       "layers.1.blocks.1.mlp", "layers.1.blocks.1", "classifier"}));
  const ModuleWatch doubling(
      [](const std::string& name, at::Tensor y) { return name == "classifier" ? 2 * y : y; });
  const ModuleWatch later(seen_by(note));
  EXPECT_TRUE(at::equal(model->forward(x), 2 * expected));
  EXPECT_TRUE(at::equal(last, 2 * expected));  // what the earlier watch has made of it
}

TEST(VMamba, WrongInputsAreNamed) {
  VMamba model = seeded_model(small_config());
  try {
    model->forward(random_image(1, 3, 16, 16));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "vmamba: x has shape [1, 3, 16, 16], expected [batch, 2, height, width]");
  }
  EXPECT_THROW(model->forward(torch::zeros({2, 16, 16})), InvalidArgument);
  EXPECT_THROW(model->forward(torch::zeros({1, 2, 0, 16})), InvalidArgument);
}

TEST(VMamba, TheSeedDecidesTheWeights) {
  VMamba a = seeded_model(small_config(), 7), b = seeded_model(small_config(), 7);
  VMamba c = seeded_model(small_config(), 8);
  const auto pa = a->parameters(), pb = b->parameters();
  for (std::size_t i = 0; i < pa.size(); ++i) EXPECT_TRUE(at::equal(pa[i], pb[i]));
  EXPECT_FALSE(at::equal(pa[0], c->parameters()[0]));
}

TEST(VMamba, CascadeOfTheAuthorsIsAnotherFunction) {
  VMambaConfig config = small_config();
  config.routes = "cascade";
  torch::NoGradGuard no_grad;
  const at::Tensor x = random_image(1, 2, 16, 16);
  const at::Tensor ours = seeded_model(config)->forward(x);
  config.authors_cascade = true;
  EXPECT_FALSE(at::allclose(seeded_model(config)->forward(x), ours, 1e-3, 1e-4));
}

// A network that runs in double precision is what comparisons with other code are made with.
TEST(VMamba, RunsInDoublePrecision) {
  VMamba model = seeded_model(small_config());
  const at::Tensor x = random_image(1, 2, 16, 16);
  torch::NoGradGuard no_grad;
  const at::Tensor single = model->forward(x);
  model->to(at::kDouble);
  const at::Tensor precise = model->forward(x.to(at::kDouble));
  EXPECT_EQ(precise.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::allclose(precise, single.to(at::kDouble), 1e-4, 1e-5));
}

// bfloat16 products around float32 sums: close to float32, logits narrow, gradients as wide as the
// parameters, and the same with recomputed blocks.
TEST(VMamba, RunsUnderAutocast) {
  struct Autocast {
    Autocast() {
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, true);
    }
    ~Autocast() {
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
    }
  };
  for (const char* forward_type : {"v05_noz", "v0", "v052dc_noz"}) {
    VMambaConfig config = small_config();
    config.forward_type = forward_type;
    VMamba model = seeded_model(config);
    const at::Tensor x = random_image(2, 2, 16, 16);
    const at::Tensor wide = model->forward(x).detach();
    std::vector<at::Tensor> gradients[2];
    for (bool checkpoint : {false, true}) {
      config.use_checkpoint = checkpoint;
      VMamba again = seeded_model(config);
      at::Tensor narrow;
      {
        Autocast autocast;
        narrow = again->forward(x);
      }
      EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(at::allclose(narrow.to(at::kFloat), wide, 0.05, 0.05)) << forward_type;
      narrow.to(at::kFloat).square().sum().backward();
      for (const at::Tensor& parameter : again->parameters()) {
        EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
        gradients[checkpoint].push_back(parameter.grad());
      }
    }
    for (std::size_t i = 0; i < gradients[0].size(); ++i)
      EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << forward_type << ' ' << i;
  }
}

}  // namespace
}  // namespace linescan
