#include "linescan/models/networks/vmamba_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "linescan/base/error.h"
#include "linescan/models/networks/registry.h"
#include "tests/support/messages.h"

namespace linescan {
namespace {

VMambaConfig with(std::initializer_list<const char*> settings) {
  VMambaConfig config = named_model("vmamba_tiny_s1l8");
  for (const char* setting : settings) set_option(config.options(), "model option", setting);
  return config;
}

std::string complaint(std::initializer_list<const char*> settings) {
  return testing::refusal_of([&] { with(settings).validate(); });
}

TEST(VMambaConfig, EveryNamedModelIsValid) {
  for (const std::string& name : model_names())
    EXPECT_NO_THROW(named_model(name).validate()) << name;
}

TEST(VMambaConfig, UnknownNamesSuggestTheNearest) {
  try {
    named_model("vmamba_tinny_s1l8");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'vmamba_tiny_s1l8'?"),
              std::string::npos);
  }
  EXPECT_NE(complaint({"norm=lm"}).find("unknown norm 'lm'; did you mean 'ln'?"),
            std::string::npos);
  EXPECT_NE(complaint({"routes=croos"}).find("did you mean 'cross'?"), std::string::npos);
  EXPECT_NE(complaint({"ssm_act=silo"}).find("unknown ssm_act 'silo'"), std::string::npos);
  EXPECT_NE(complaint({"stem=v3"}).find("unknown stem 'v3'"), std::string::npos);
}

struct Complaint {
  std::initializer_list<const char*> settings;
  const char* message;
};

TEST(VMambaConfig, ValuesOutOfRangeAreNamed) {
  const Complaint table[] = {
      {{"classes=0"}, "model option classes is 0, expected 1 to 65536"},
      {{"in_channels=-1"}, "model option in_channels is -1, expected 1 to 65536"},
      {{"states=0"}, "model option states is 0, expected 1 to 65536"},
      {{"dt_rank=-3"}, "model option dt_rank is -3, expected 0 to 65536"},
      {{"depths=2,-1"}, "model option depths is -1, expected 0 to 65536"},
      {{"dims=0"}, "model option dims is 0, expected 1 to 65536"},
      {{"dims=96,192"}, "model option dims is 96,192, expected one number or 4, as many as depths"},
      {{"dims=40000"}, "model option dims is 80000, expected 1 to 65536"},
      {{"ssm_ratio=-1"}, "model option ssm_ratio is -1, expected 0 (none) to 64"},
      {{"ssm_ratio=0.001"},
       "model option ssm_ratio is 0.001, expected 0, or at least one channel for the scan"},
      {{"mlp_ratio=0.001"},
       "model option mlp_ratio is 0.001, expected 0, or at least one hidden channel"},
      {{"conv=2"}, "model option conv is 2, expected 0 (none) or an odd kernel size up to 255"},
      {{"stem_stride=3"}, "model option stem_stride is 3, expected 4, 2 or 1"},
      {{"drop_path=1"},
       "model option drop_path is 1, expected a number from 0 up to, not including, 1"},
      {{"drop=-0.1"},
       "model option drop is -0.1, expected a number from 0 up to, not including, 1"},
      {{"dims=1"}, "model option dims is 1, expected at least 2 with stem=v2"},
      {{"downsample=none", "dims=8,8,8,16"},
       "model option dims is 8,8,8,16, expected equal numbers with downsample=none"},
      {{"authors_cascade=true"},
       "model option authors_cascade is true, expected false unless routes=cascade"},
  };
  for (const Complaint& row : table) EXPECT_EQ(complaint(row.settings), row.message);
}

TEST(VMambaConfig, ExplicitOptionsOverrideTheForwardType) {
  const ForwardType plain = with({"forward_type=v052d_noz_onnone"}).type();
  EXPECT_EQ(plain.routes, Routes::kTwo);
  EXPECT_EQ(plain.gate, Gate::kNone);
  EXPECT_EQ(plain.out_norm, OutNorm::kNone);
  const ForwardType changed = with({"forward_type=v052d_noz_onnone", "routes=rotated", "gate=silu",
                                    "out_norm=cnorm", "out_act=gelu"})
                                  .type();
  EXPECT_EQ(changed.routes, Routes::kRotated);
  EXPECT_EQ(changed.gate, Gate::kActivated);
  EXPECT_EQ(changed.out_norm, OutNorm::kLayerNormDepthwise);
  EXPECT_TRUE(changed.out_gelu);
}

TEST(VMambaConfig, DimensionsDoubleUnlessListedOrNotDownsampled) {
  EXPECT_EQ(with({"dims=40"}).channels(3), 320);
  EXPECT_EQ(with({"dims=40,50,60,70"}).channels(2), 60);
  EXPECT_EQ(with({"dims=40", "downsample=none"}).channels(3), 40);
  EXPECT_EQ(with({"dims=40"}).rank(0), 3);
  EXPECT_EQ(with({"dims=40", "dt_rank=5"}).rank(0), 5);
  EXPECT_EQ(with({"dims=25", "ssm_ratio=1.5"}).inner(0), 37);
}

TEST(VMambaConfig, TextOfEveryOptionReadsBack) {
  VMambaConfig config = with({"dims=8,16,24,32", "drop_path=0.125", "routes=cascade",
                              "authors_cascade=true", "gmlp=true"});
  VMambaConfig copy;
  for (const Option& option : config.options())
    set_option(copy.options(), "model option", option.name, to_text(option.target));
  EXPECT_EQ(to_json(copy.options()), to_json(config.options()));
}

TEST(VMambaConfig, ImagesThatVanishAreRefused) {
  EXPECT_THROW(stage_shapes(with({"stem=v1"}), 3, 224), InvalidArgument);
  EXPECT_NO_THROW(stage_shapes(with({"stem=v2"}), 1, 1));
  EXPECT_THROW(stage_shapes(with({"downsample=v2"}), 16, 16), InvalidArgument);
}

}  // namespace
}  // namespace linescan
