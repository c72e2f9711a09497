#include "linescan/models/layers/forward_type.h"

#include <gtest/gtest.h>

#include "linescan/base/error.h"
#include "tests/support/messages.h"

namespace linescan {
namespace {

TEST(ForwardType, BasesChooseRoutes) {
  EXPECT_EQ(parse_forward_type("v05").routes, Routes::kCross);
  EXPECT_EQ(parse_forward_type("v051d").routes, Routes::kOne);
  EXPECT_EQ(parse_forward_type("v052d").routes, Routes::kTwo);
  EXPECT_EQ(parse_forward_type("v052dc").routes, Routes::kCascade);
  EXPECT_EQ(parse_forward_type("v052d3").routes, Routes::kRotated);
  EXPECT_FALSE(parse_forward_type("v05").float32_scan);
  EXPECT_TRUE(parse_forward_type("v01").float32_scan);
  EXPECT_FALSE(parse_forward_type("v01_no32").float32_scan);
}

TEST(ForwardType, VanillaHasGateAndFloat32Scan) {
  const ForwardType type = parse_forward_type("v0");
  EXPECT_TRUE(type.vanilla);
  EXPECT_TRUE(type.float32_scan);
  EXPECT_EQ(type.gate, Gate::kActivated);
  EXPECT_EQ(type.out_norm, OutNorm::kLayerNorm);
}

TEST(ForwardType, SuffixesInAnyOrder) {
  for (const char* text : {"v05_onnone_nozact_oact", "v05_oact_nozact_onnone"}) {
    const ForwardType type = parse_forward_type(text);
    EXPECT_EQ(type.gate, Gate::kPlain) << text;
    EXPECT_EQ(type.out_norm, OutNorm::kNone) << text;
    EXPECT_TRUE(type.out_gelu) << text;
  }
  EXPECT_EQ(parse_forward_type("v05_noz_nozact").gate, Gate::kNone);
  EXPECT_EQ(parse_forward_type("v05_nozact_noz").gate, Gate::kNone);
  EXPECT_EQ(parse_forward_type("v05_ondwconv3").out_norm, OutNorm::kDepthwise);
  EXPECT_EQ(parse_forward_type("v05_oncnorm").out_norm, OutNorm::kLayerNormDepthwise);
  EXPECT_EQ(parse_forward_type("v05_onsoftmax").out_norm, OutNorm::kSoftmax);
  EXPECT_EQ(parse_forward_type("v05_onsigmoid").out_norm, OutNorm::kSigmoid);
}

std::string message_of(const char* text) {
  return testing::refusal_of([&] { parse_forward_type(text); });
}

TEST(ForwardType, UnknownWordsAreNamedWithTheKnownOnes) {
  EXPECT_EQ(message_of("v06"),
            "forward_type 'v06' starts with 'v06', expected one of v0, v01, v02, v03, v04, v05, "
            "v051d, v052d, v052dc, v052d3");
  EXPECT_EQ(message_of("v05_nozz"),
            "forward_type 'v05_nozz' has the unknown suffix '_nozz', known are _noz, _nozact, "
            "_oact, _no32, _onnone, _ondwconv3, _oncnorm, _onsoftmax, _onsigmoid");
  EXPECT_EQ(message_of("v05_"),
            "forward_type 'v05_' has the unknown suffix '_', known are _noz, _nozact, _oact, "
            "_no32, _onnone, _ondwconv3, _oncnorm, _onsoftmax, _onsigmoid");
  EXPECT_EQ(message_of("v0_noz"), "forward_type 'v0_noz': v0 takes no suffix, got '_noz'");
  EXPECT_NE(message_of(""), "accepted");
}

}  // namespace
}  // namespace linescan
