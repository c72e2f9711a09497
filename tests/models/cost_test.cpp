// The published sizes, exactly, from the configuration and from the built network.

#include "linescan/models/cost.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "linescan/base/error.h"
#include "linescan/models/networks/registry.h"
#include "tests/models/small_model.h"

namespace linescan {
namespace {

VMambaConfig configure(const char* model, const std::vector<const char*>& settings) {
  VMambaConfig config = named_model(model);
  for (const char* setting : settings) set_option(config.options(), "model option", setting);
  return config;
}

struct Published {
  const char* name;
  int64_t parameters;
  const char* gflops;  // at 224, as printed
};

class PublishedModel : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedModel, HasExactlyItsSize) {
  const Published& row = GetParam();
  const VMambaConfig config = named_model(row.name);
  const Cost cost = count_cost(config, 224, 224);
  EXPECT_EQ(cost.parameters, row.parameters);
  const std::string printed(row.gflops);
  const std::size_t decimals = printed.size() - printed.find('.') - 1;
  EXPECT_EQ(fmt::format("{:.{}f}", static_cast<double>(cost.multiply_adds) / 1e9, decimals),
            printed);
}

INSTANTIATE_TEST_SUITE_P(Models, PublishedModel,
                         ::testing::Values(Published{"vmamba_tiny_v0", 22893448, "5.627"},
                                           Published{"vmamba_small_v0", 44417416, "11.2315"},
                                           Published{"vmamba_base_v0", 76254056, "18.020"},
                                           Published{"vmamba_tiny_s2l5", 30705832, "4.8577"},
                                           Published{"vmamba_small_s2l15", 50147752, "8.7158"},
                                           Published{"vmamba_base_s2l15", 88557800, "15.3589"},
                                           Published{"vmamba_tiny_s1l8", 30249064, "4.9056"},
                                           Published{"vmamba_small_s1l20", 49012840, "8.6122"},
                                           Published{"vmamba_base_s1l20", 86614504, "15.2209"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Cost, TinyIsExact) {
  EXPECT_EQ(count_cost(named_model("vmamba_tiny_s1l8"), 224, 224).multiply_adds, 4905609984);
}

// Whole networks are built for the tiny ones; the others differ from them in depth and width only.
TEST(Cost, BuiltNetworksHaveTheCountedParameters) {
  for (const char* name :
       {"vmamba_tiny_v0", "vmamba_tiny_s2l5", "vmamba_tiny_s1l8", "vmamba_fashion"}) {
    const VMambaConfig config = named_model(name);
    EXPECT_EQ(count_parameters(*VMamba(config)), count_cost(config, 224, 224).parameters) << name;
  }
}

struct Variant {
  std::vector<const char*> settings;
  int64_t parameters;
};

TEST(Cost, VariantsOfTinyHaveExactlyTheirParameters) {
  const char* const l5 = "depths=2,2,5,2";
  const Variant table[] = {
      {{"pos_embed=true"}, 30550120},
      {{"pos_embed=true", "conv=0"}, 30503464},
      {{"forward_type=v05_onnone_noz"}, 30238696},
      {{"forward_type=v05_ondwconv3_noz"}, 30285352},
      {{"forward_type=v05_oncnorm_noz"}, 30295720},
      {{"conv_bias=true"}, 30254248},
      {{"conv=0"}, 30202408},
      {{"states=2", "ssm_ratio=2"}, 36662824},
      {{"states=4", "ssm_ratio=2"}, 36911656},
      {{"states=8", "ssm_ratio=1.5"}, 34046920},
      {{"states=16", "ssm_ratio=1"}, 31182184},
      {{"states=2", "ssm_ratio=2", l5}, 30802600},
      {{"states=4", "ssm_ratio=2", l5}, 30996136},
      {{"states=8", "ssm_ratio=1.5", l5}, 28640008},
      {{"states=16", "ssm_ratio=1", l5}, 26283880},
      {{"mlp_ratio=3", "ssm_ratio=1.5"}, 28485640},
      {{"mlp_ratio=2", "ssm_ratio=2.5"}, 29866888},
      // Steps of the publication's acceleration ladder.
      {{"states=16", "ssm_ratio=2", "depths=2,2,2,2", "conv=0", "forward_type=v05"}, 28991656},
      {{"states=16", "ssm_ratio=1", "conv=0", l5}, 26247592},
  };
  for (const Variant& row : table) {
    const VMambaConfig config = configure("vmamba_tiny_s1l8", row.settings);
    EXPECT_EQ(count_cost(config, 224, 224).parameters, row.parameters)
        << fmt::format("{}", fmt::join(row.settings, " "));
  }
}

// Every option that changes the network, on a small one: counted and built must agree.
TEST(Cost, CountedParametersAreTheBuiltOnes) {
  const std::vector<std::vector<const char*>> table = {
      {"pos_embed=true", "image_size=30"},
      {"conv=5", "conv_bias=true"},
      {"conv=1"},
      {"gate=silu"},
      {"gate=plain", "out_norm=cnorm"},
      {"out_norm=dwconv3"},
      {"out_norm=softmax"},
      {"forward_type=v0"},
      {"ssm_ratio=0"},
      {"mlp_ratio=0"},
      {"gmlp=true"},
      {"norm=bn"},
      {"stem=v1"},
      {"stem=v1", "stem_stride=1", "patch_norm=false"},
      {"stem_stride=2", "patch_norm=false"},
      {"downsample=v1"},
      {"downsample=v2"},
      {"downsample=none"},
      {"backbone=true"},
      {"dt_rank=3", "dims=8,20,12", "depths=1,0,1"},
      {"depths=3"},
      {"routes=cascade"},
  };
  for (const auto& settings : table) {
    VMambaConfig config = small_config();
    for (const char* setting : settings) set_option(config.options(), "model option", setting);
    EXPECT_EQ(count_cost(config, 32, 32).parameters, count_parameters(*VMamba(config)))
        << fmt::format("{}", fmt::join(settings, " "));
  }
}

TEST(Cost, StagesAreTheRealOnesAtEverySize) {
  for (const char* stem : {"v1", "v2"})
    for (const char* downsample : {"v1", "v2", "v3", "none"})
      for (int64_t stride : {1, 2, 4}) {
        VMambaConfig config = small_config();
        config.stem = stem;
        config.stem_stride = stride;
        config.downsample = downsample;
        config.backbone = true;
        config.depths = {0, 0};
        VMamba model = seeded_model(config);
        torch::NoGradGuard no_grad;
        for (const auto& [height, width] : {std::pair(16, 16), {17, 31}, {30, 19}}) {
          const auto expected = count_cost(config, height, width).stages;
          const auto got = model->stages(random_image(1, 2, height, width));
          ASSERT_EQ(got.size(), expected.size());
          for (std::size_t i = 0; i < got.size(); ++i)
            EXPECT_EQ(got[i].sizes(), (std::vector<int64_t>{1, expected[i].channels,
                                                            expected[i].height, expected[i].width}))
                << stem << ' ' << downsample << ' ' << stride << ' ' << height << 'x' << width;
        }
      }
}

TEST(Cost, NumbersBeyond64BitsAreRefused) {
  VMambaConfig config;
  config.dims = {65536, 65536, 65536, 65536};
  config.mlp_ratio = 64;
  config.depths = {65536, 65536, 65536, 65536};
  EXPECT_THROW(count_cost(config, 65536, 65536), InvalidArgument);
}

}  // namespace
}  // namespace linescan
