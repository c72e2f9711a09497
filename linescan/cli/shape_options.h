// "--shape batch=8,channels=384,...": the sizes of an operator's problem on the command line.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linescan/ops/gated_delta_rule/plan.h"
#include "linescan/ops/selective_scan/plan.h"
#include "linescan/ops/ss2d/plan.h"

namespace linescan::cli {

inline constexpr const char* kShapeHelp =
    "selective_scan: batch= channels= groups= length= states=\n"
    "ss2d: batch= channels= height= width= states= rank= routes=\n"
    "routes: cross, one, two, cascade, rotated or codes: 0+6";
inline constexpr const char* kRuleShapeHelp =
    "gated_delta_rule: batch= length= heads= value_heads= K= V= mode=\n"
    "value_heads: as many as heads; mode: auto, chunk or recurrent";

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

// Sizes that are not named keep the defaults above. Throws InvalidArgument: unknown name, not a
// number, negative, groups that do not divide the channels, heads that do not divide the value heads.
ScanShape parse_scan_shape(std::string_view text, std::string_view dtype, std::string_view layout);
Ss2dShape parse_ss2d_shape(std::string_view text, std::string_view dtype, std::string_view layout);
RuleShape parse_rule_shape(std::string_view text, std::string_view dtype);

// "float32" and so on; throws InvalidArgument.
DType parse_dtype(std::string_view name);

// The operators that plan knows; bench knows the first two.
inline constexpr const char* kScanName = "selective_scan";
inline constexpr const char* kSs2dName = "ss2d";
inline constexpr const char* kRuleName = "gated_delta_rule";
// Throws InvalidArgument unless `name` is one of `known`.
void check_operator(std::string_view name, std::span<const std::string> known);

}  // namespace linescan::cli
