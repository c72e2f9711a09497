#include "linescan/cli/shape_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>
#include <set>
#include <utility>

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"
#include "linescan/base/options.h"
#include "linescan/ops/causal_conv1d/sequence.h"
#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"
#include "linescan/ops/ss2d/route.h"

namespace linescan::cli {
namespace {

const std::map<std::string, std::vector<int64_t>, std::less<>>& named_routes() {
  static const std::map<std::string, std::vector<int64_t>, std::less<>> routes = {
      {"cross", {0, 1, 6, 7}},   {"one", {0}}, {"two", {0, 6}}, {"cascade", {8, 10, 9, 11}},
      {"rotated", {0, 5, 6, 3}},
  };
  return routes;
}

// An empty text has no parts; "a," has two, the second of which is empty.
template <class Visit>
void for_each_part(std::string_view text, char separator, const Visit& visit) {
  for (bool more = !text.empty(); more;) {
    const std::size_t end = std::min(text.find(separator), text.size());
    visit(text.substr(0, end));
    more = end < text.size();
    text.remove_prefix(end + more);
  }
}

void set_sizes(std::string_view text, std::vector<Option> options) {
  std::set<std::string_view> named;
  for_each_part(text, ',', [&](std::string_view part) {
    set_option(options, "--shape size", part);
    const std::string_view name = part.substr(0, part.find('='));
    if (!named.insert(name).second)
      throw_error<InvalidArgument>("--shape size {} is given twice, expected once", name);
  });
  for (const Option& option : options) {
    const auto* size = std::get_if<int64_t*>(&option.target);
    constexpr int64_t kLargest = int64_t{1} << 40;
    if (size && (**size < 0 || **size > kLargest))
      throw_error<InvalidArgument>("--shape size {} is {}, expected 0 to {}", option.name, **size,
                                   kLargest);
  }
}

// Plans multiply sizes with each other and with up to 2^12 bytes, threads' shares included, in 64 bits.
void expect_countable(std::initializer_list<std::pair<const char*, int64_t>> sizes) {
  constexpr int64_t kLargest = int64_t{1} << 48;
  int64_t product = 1;
  bool fits = true;
  std::string names, numbers;
  for (const auto& [name, size] : sizes) {
    const int64_t factor = std::max<int64_t>(size, 1);  // other products leave this size out
    fits = fits && product <= kLargest / factor;
    if (fits) product *= factor;
    const char* times = names.empty() ? "" : " x ";
    names += times + std::string(name);
    numbers += times + std::to_string(size);
  }
  if (!fits)
    throw_error<InvalidArgument>("--shape has {} = {}, expected at most 2^48", names, numbers);
}

// Whether neighbouring channels are adjacent; `usual`: what an empty text stands for.
bool parse_layout(std::string_view layout, std::string_view usual) {
  if (layout.empty()) layout = usual;
  if (layout != "length" && layout != "channels")
    throw_error<InvalidArgument>("--layout is '{}', expected length or channels", layout);
  return layout == "channels";
}

void expect_no_layout(std::string_view op, std::string_view layout) {
  if (!layout.empty())
    throw_error<InvalidArgument>("--layout is '{}', expected none: {} has one layout", layout, op);
}

void expect_at_least_one(std::string_view name, int64_t value) {
  if (value < 1)
    throw_error<InvalidArgument>("--shape size {} is {}, expected 1 or more", name, value);
}

}  // namespace

DType parse_dtype(std::string_view name) {
  std::vector<std::string> names;
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    if (name == name_of(dtype)) return dtype;
    names.emplace_back(name_of(dtype));
  }
  throw InvalidArgument(unknown_name("--dtype", name, names));
}

std::vector<int64_t> parse_routes(std::string_view text) {
  if (const auto named = named_routes().find(text); named != named_routes().end())
    return named->second;
  std::vector<int64_t> routes;
  for_each_part(text, '+', [&](std::string_view part) {
    int64_t code = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), code);
    if (error != std::errc() || end != part.data() + part.size() || code < 0 || code >= kRouteCodes)
      throw_error<InvalidArgument>(
          "routes is '{}', expected cross, one, two, cascade, rotated or codes from 0 to {} joined "
          "by '+'",
          text, kRouteCodes - 1);
    routes.push_back(code);
  });
  if (routes.empty()) throw_error<InvalidArgument>("routes is empty, expected for example cross");
  return routes;
}

ScanShape parse_scan_shape(std::string_view text, std::string_view dtype, std::string_view layout) {
  ScanShape shape;
  SelectiveScanSize& size = shape.size;
  size.length_last = !parse_layout(layout, "length");
  size.dtype = size.out_dtype = parse_dtype(dtype);
  set_sizes(text, {{"batch", &size.batch, ""},
                   {"channels", &size.channels, ""},
                   {"groups", &size.groups, ""},
                   {"length", &size.length, ""},
                   {"states", &size.states, ""}});
  expect_at_least_one("groups", size.groups);
  expect_at_least_one("states", size.states);
  expect_countable({{"batch", size.batch},
                    {"channels", size.channels},
                    {"length", size.length},
                    {"states", size.states}});
  if (size.channels % size.groups != 0)
    throw_error<InvalidArgument>("--shape has {} groups, which do not divide {} channels",
                                 size.groups, size.channels);
  return shape;
}

Ss2dShape parse_ss2d_shape(std::string_view text, std::string_view dtype, std::string_view layout) {
  Ss2dShape shape;
  Ss2dSize& size = shape.size;
  size.channels_last = parse_layout(layout, "channels");
  size.dtype = size.out_dtype = parse_dtype(dtype);
  std::string routes = "cross";
  set_sizes(text, {{"batch", &size.batch, ""},
                   {"channels", &size.channels, ""},
                   {"height", &size.height, ""},
                   {"width", &size.width, ""},
                   {"states", &size.states, ""},
                   {"rank", &size.rank, ""},
                   {"routes", &routes, ""}});
  expect_at_least_one("states", size.states);
  expect_at_least_one("rank", size.rank);
  shape.routes = parse_routes(routes);
  size.routes = static_cast<int64_t>(shape.routes.size());
  expect_countable({{"batch", size.batch},
                    {"channels", size.channels},
                    {"height", size.height},
                    {"width", size.width},
                    {"routes", size.routes},
                    {"(rank + 2 states)", size.record()}});
  return shape;
}

RuleShape parse_rule_shape(std::string_view text, std::string_view dtype, std::string_view layout) {
  RuleShape shape;
  expect_no_layout(kRuleName, layout);
  GatedDeltaRuleSize& size = shape.size;
  size.dtype = parse_dtype(dtype);
  size.value_heads = 0;
  std::string mode = "auto";
  set_sizes(text, {{"batch", &size.batch, ""},
                   {"length", &size.length, ""},
                   {"heads", &size.heads, ""},
                   {"value_heads", &size.value_heads, ""},
                   {"K", &size.K, ""},
                   {"V", &size.V, ""},
                   {"mode", &mode, ""}});
  expect_at_least_one("heads", size.heads);
  for (const auto& [name, value] : {std::pair{"K", size.K}, {"V", size.V}})
    if (value < 1 || value > kGatedDeltaRuleLargestHead)
      throw_error<InvalidArgument>("--shape size {} is {}, expected 1 to {}", name, value,
                                   kGatedDeltaRuleLargestHead);
  if (size.value_heads == 0) size.value_heads = size.heads;
  if (size.value_heads % size.heads != 0)
    throw_error<InvalidArgument>("--shape has {} heads, which do not divide {} value heads",
                                 size.heads, size.value_heads);
  size.sequences = size.batch;
  size.mode = parse_gated_delta_rule_mode(mode);
  expect_countable({{"batch", size.batch},
                    {"length", size.length},
                    {"value_heads", size.value_heads},
                    {"K", size.K},
                    {"V", size.V}});
  return shape;
}

ConvShape parse_conv_shape(std::string_view text, std::string_view dtype, std::string_view layout) {
  ConvShape shape;
  CausalConv1dSize& size = shape.size;
  shape.channels_last = parse_layout(layout, "channels");
  size.dtype = parse_dtype(dtype);
  set_sizes(text, {{"batch", &size.batch, ""},
                   {"length", &size.length, ""},
                   {"channels", &size.channels, ""},
                   {"width", &size.width, ""}});
  if (size.width < kMinConvWidth || size.width > kMaxConvWidth)
    throw_error<InvalidArgument>("--shape size width is {}, expected {} to {}", size.width,
                                 kMinConvWidth, kMaxConvWidth);
  size.sequences = size.batch;
  expect_countable({{"batch", size.batch}, {"length", size.length}, {"channels", size.channels}});
  return shape;
}

NormShape parse_norm_shape(std::string_view text, std::string_view dtype, std::string_view layout) {
  NormShape shape;
  LayerNormSize& size = shape.size;
  expect_no_layout(kNormName, layout);
  size.dtype = size.out_dtype = parse_dtype(dtype);
  set_sizes(text, {{"rows", &size.rows, ""}, {"channels", &size.channels, ""}});
  expect_at_least_one("channels", size.channels);
  expect_countable({{"rows", size.rows}, {"channels", size.channels}});
  return shape;
}

PlaneConvShape parse_plane_conv_shape(std::string_view text, std::string_view dtype,
                                      std::string_view layout) {
  PlaneConvShape shape;
  DepthwiseConvSize& size = shape.size;
  expect_no_layout(kPlaneConvName, layout);
  size.dtype = parse_dtype(dtype);
  set_sizes(text, {{"batch", &size.batch, ""},
                   {"height", &size.height, ""},
                   {"width", &size.width, ""},
                   {"channels", &size.channels, ""}});
  expect_at_least_one("channels", size.channels);
  expect_countable({{"batch", size.batch},
                    {"height", size.height},
                    {"width", size.width},
                    {"channels", size.channels}});
  return shape;
}

namespace {

const char* layout_name(bool channels_last) { return channels_last ? "channels" : "length"; }

}  // namespace

nlohmann::ordered_json describe(const ScanShape& shape) {
  const SelectiveScanSize& size = shape.size;
  return {{"batch", size.batch},
          {"channels", size.channels},
          {"groups", size.groups},
          {"length", size.length},
          {"states", size.states},
          {"dtype", name_of(size.dtype)},
          {"layout", layout_name(!size.length_last)}};
}

nlohmann::ordered_json describe(const Ss2dShape& shape) {
  const Ss2dSize& size = shape.size;
  return {{"batch", size.batch},
          {"channels", size.channels},
          {"height", size.height},
          {"width", size.width},
          {"states", size.states},
          {"rank", size.rank},
          {"routes", shape.routes},
          {"dtype", name_of(size.dtype)},
          {"layout", layout_name(size.channels_last)}};
}

nlohmann::ordered_json describe(const RuleShape& shape) {
  const GatedDeltaRuleSize& size = shape.size;
  return {{"batch", size.batch},
          {"length", size.length},
          {"heads", size.heads},
          {"value_heads", size.value_heads},
          {"K", size.K},
          {"V", size.V},
          {"mode", name_of(size.mode)},
          {"dtype", name_of(size.dtype)}};
}

nlohmann::ordered_json describe(const ConvShape& shape) {
  const CausalConv1dSize& size = shape.size;
  return {{"batch", size.batch},          {"length", size.length},
          {"channels", size.channels},    {"width", size.width},
          {"dtype", name_of(size.dtype)}, {"layout", layout_name(shape.channels_last)}};
}

nlohmann::ordered_json describe(const NormShape& shape) {
  const LayerNormSize& size = shape.size;
  return {{"rows", size.rows}, {"channels", size.channels}, {"dtype", name_of(size.dtype)}};
}

nlohmann::ordered_json describe(const PlaneConvShape& shape) {
  const DepthwiseConvSize& size = shape.size;
  return {{"batch", size.batch},
          {"height", size.height},
          {"width", size.width},
          {"channels", size.channels},
          {"dtype", name_of(size.dtype)}};
}

std::string text_of(const nlohmann::ordered_json& problem) {
  std::string text;
  for (const auto& [name, value] : problem.items()) {
    text += fmt::format("{}{}=", text.empty() ? "" : " ", name);
    if (value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i)
        text += fmt::format("{}{}", i > 0 ? "+" : "", value[i].get<int64_t>());
    } else {
      text += value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  return text;
}

}  // namespace linescan::cli
