// "--shape batch=8,channels=384,...": the sizes of an operator's problem on the command line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"
#include "linescan/ops/causal_conv1d/plan.h"
#include "linescan/ops/depthwise_conv/gpu_plan.h"
#include "linescan/ops/gated_delta_rule/plan.h"
#include "linescan/ops/layer_norm/gpu_plan.h"
#include "linescan/ops/selective_scan/plan.h"
#include "linescan/ops/ss2d/plan.h"

namespace linescan::cli {

inline constexpr const char* kShapeHelp =
    "selective_scan: batch= channels= groups= length= states=\n"
    "ss2d: batch= channels= height= width= states= rank= routes=\n"
    "routes: cross, one, two, cascade, rotated or codes: 0+6\n"
    "gated_delta_rule: batch= length= heads= value_heads= K= V= mode=\n"
    "value_heads: as many as heads; mode: auto, chunk or recurrent\n"
    "causal_conv1d: batch= length= channels= width=";
inline constexpr const char* kGpuShapeHelp =
    "layer_norm: rows= channels=\n"
    "depthwise_conv: batch= height= width= channels=";
inline constexpr const char* kLayoutHelp =
    "which index is adjacent: length or channels\n"
    "(default: length for selective_scan, else channels)";

// A named set of routes or codes joined by '+': "cross", "0+6".
std::vector<int64_t> parse_routes(std::string_view text);

struct ScanShape {
  SelectiveScanSize size{.batch = 8, .channels = 384, .groups = 1, .length = 3136, .states = 1};
};
struct Ss2dShape {
  Ss2dSize size{.batch = 8, .channels = 96, .height = 56, .width = 56, .states = 1, .rank = 6};
  std::vector<int64_t> routes = {0, 1, 6, 7};
};
struct RuleShape {
  GatedDeltaRuleSize size{.batch = 1, .length = 2048, .heads = 4, .K = 64, .V = 64};
};
struct ConvShape {
  CausalConv1dSize size{.batch = 8, .length = 2048, .channels = 256, .width = 4};
  bool channels_last = true;
};
struct NormShape {
  LayerNormSize size{.rows = 25088, .channels = 96};
};
struct PlaneConvShape {
  DepthwiseConvSize size{.batch = 8, .height = 56, .width = 56, .channels = 96};
};

// Sizes that are not named keep the defaults above; an empty layout is the operator's usual one, and the
// only one that operators with a fixed layout take. Throws InvalidArgument: unknown name, one named
// twice, not a number, negative, a product that plans cannot count, groups that do not divide the
// channels, heads that do not divide the value heads, what the operator itself refuses.
ScanShape parse_scan_shape(std::string_view text, std::string_view dtype, std::string_view layout);
Ss2dShape parse_ss2d_shape(std::string_view text, std::string_view dtype, std::string_view layout);
RuleShape parse_rule_shape(std::string_view text, std::string_view dtype, std::string_view layout);
ConvShape parse_conv_shape(std::string_view text, std::string_view dtype, std::string_view layout);
NormShape parse_norm_shape(std::string_view text, std::string_view dtype, std::string_view layout);
PlaneConvShape parse_plane_conv_shape(std::string_view text, std::string_view dtype,
                                      std::string_view layout);

// What was asked for, with the sizes that were not named: every --shape size, dtype and, where there is a choice,
// layout, in the order of the help.
nlohmann::ordered_json describe(const ScanShape& shape);
nlohmann::ordered_json describe(const Ss2dShape& shape);
nlohmann::ordered_json describe(const RuleShape& shape);
nlohmann::ordered_json describe(const ConvShape& shape);
nlohmann::ordered_json describe(const NormShape& shape);
nlohmann::ordered_json describe(const PlaneConvShape& shape);

// "batch=8 channels=96 .. routes=0+6 dtype=float32".
std::string text_of(const nlohmann::ordered_json& problem);

// "float32" and so on; throws InvalidArgument.
DType parse_dtype(std::string_view name);

// The operators that plan knows; bench knows those that have kernels for the CPU, the first four.
inline constexpr const char* kScanName = "selective_scan";
inline constexpr const char* kSs2dName = "ss2d";
inline constexpr const char* kRuleName = "gated_delta_rule";
inline constexpr const char* kConvName = "causal_conv1d";
inline constexpr const char* kNormName = "layer_norm";
inline constexpr const char* kPlaneConvName = "depthwise_conv";

// The row of a command's table of operators that has the name; throws InvalidArgument if none has.
template <class Row, std::size_t kRows>
const Row& find_operator(const Row (&table)[kRows], std::string_view name) {
  std::vector<std::string> known;
  for (const Row& row : table) {
    if (row.name == name) return row;
    known.push_back(row.name);
  }
  throw InvalidArgument(unknown_name("operator", name, known));
}

}  // namespace linescan::cli
