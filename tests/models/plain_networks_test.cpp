// The plain networks that VMambas are measured against: sizes, parameters, and that they learn.

#include <gtest/gtest.h>

#include <cmath>

#include "linescan/base/error.h"
#include "linescan/models/networks/image_network.h"
#include "linescan/models/networks/registry.h"
#include "tests/models/small_model.h"

namespace linescan {
namespace {

PlainConfig small_plain(PlainKind kind) {
  PlainConfig config;
  config.kind = kind;
  config.in_channels = 2;
  config.classes = 3;
  config.image_size = 16;
  config.patch = 4;
  config.dims = {8};
  config.depths =
      kind == PlainKind::kAttention ? std::vector<int64_t>{2} : std::vector<int64_t>{1, 2};
  config.heads = 2;
  return config;
}

class PlainNetworks : public ::testing::TestWithParam<PlainKind> {};

TEST_P(PlainNetworks, GiveLogitsForImagesOfOtherSizesToo) {
  const ImageNetwork network = make_image_network(small_plain(GetParam()));
  for (const auto& [height, width] : {std::pair{16, 16}, {24, 17}, {9, 33}})
    EXPECT_EQ(network->forward(random_image(2, 2, height, width)).sizes(), (at::IntArrayRef{2, 3}));
  EXPECT_THROW(network->forward(random_image(2, 2, 3, 16)), InvalidArgument);
  EXPECT_THROW(network->forward(random_image(2, 1, 16, 16)), InvalidArgument);
}

TEST_P(PlainNetworks, HaveTheParametersThatAreCounted) {
  PlainConfig config = small_plain(GetParam());
  for (const char* setting : {"image_size=16", "mlp_ratio=2.5", "patch=5", "classes=7"}) {
    set_option(config.options(), "model option", setting);
    EXPECT_EQ(count_parameters(*make_image_network(config)), count_cost(config, 16, 16).parameters)
        << setting;
  }
}

TEST_P(PlainNetworks, LearnASmallBatchByHeart) {
  torch::manual_seed(1);
  const ImageNetwork network = make_image_network(small_plain(GetParam()));
  const at::Tensor images = random_image(6, 2, 16, 16), labels = torch::arange(6) % 3;
  torch::optim::AdamW optimizer(network->parameters(), torch::optim::AdamWOptions(1e-2));
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(network->forward(images), labels);
    loss.backward();
    for (const auto& item : network->named_parameters())
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  EXPECT_GT(first, 0.9);
  EXPECT_LT(last, 0.1 * first);
}

TEST_P(PlainNetworks, OfEqualSizeExistForEveryNamedVMamba) {
  for (const std::string& name : model_names()) {
    const VMambaConfig config = named_model(name);
    const PlainConfig rival = rival_of(config, GetParam());
    const auto ours = static_cast<double>(count_cost(config, 224, 224).parameters);
    const auto theirs =
        static_cast<double>(count_cost(rival, rival.image_size, rival.image_size).parameters);
    EXPECT_LT(std::abs(theirs / ours - 1), 0.03) << name << " " << theirs;
    EXPECT_EQ(rival.classes, config.classes);
    EXPECT_EQ(rival.in_channels, config.in_channels);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PlainNetworks,
                         ::testing::Values(PlainKind::kAttention, PlainKind::kConvolution));

// The published ConvNeXt-T has 28,589,128 parameters.
TEST(PlainNetworkNames, ConvNextTinyIsAsLargeAsThePublishedOne) {
  const ImageConfig config = named_image_model("convnext_tiny");
  EXPECT_EQ(count_cost(config, 224, 224).parameters, 28589128);
  EXPECT_EQ(count_parameters(*make_image_network(config)), 28589128);
}

TEST(PlainNetworkNames, EveryNameIsANetwork) {
  for (const std::string& name : image_model_names()) {
    ImageConfig config = named_image_model(name);
    EXPECT_GT(count_cost(config, image_size_of(config), image_size_of(config)).parameters, 0);
    EXPECT_FALSE(options_of(config).empty());
  }
  EXPECT_THROW(named_image_model("vit_smal"), InvalidArgument);
}

TEST(PlainNetworkCost, AttentionGrowsWithTheSquareOfThePixels) {
  PlainConfig config;
  const auto cost = [&](int64_t size) {
    return static_cast<double>(count_cost(config, size, size).multiply_adds);
  };
  // What lies above four times the cost is twelve of the sixteen times that attention costs.
  const double points = 14 * 14;
  EXPECT_NEAR(cost(448) - 4 * cost(224), 12 * (12 * 2 * points * points * 384),
              3.1 * 384 * 1000);  // the head is paid once
}

TEST(PlainNetworkRefusals, NameTheOption) {
  PlainConfig config;
  config.heads = 5;
  EXPECT_THROW(config.validate(), InvalidArgument);
  config = PlainConfig();
  config.depths = {2, 2};
  EXPECT_THROW(config.validate(), InvalidArgument);
  config = PlainConfig();
  config.drop_path = 1;
  EXPECT_THROW(config.validate(), InvalidArgument);
  EXPECT_THROW(parse_plain_kind("attentoin"), InvalidArgument);
}

}  // namespace
}  // namespace linescan
