#include "linescan/cli/shape_options.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"
#include "linescan/base/options.h"
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

template <class Visit>
void for_each_part(std::string_view text, char separator, const Visit& visit) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void set_sizes(std::string_view text, std::vector<Option> options) {
  for_each_part(text, ',',
                [&](std::string_view part) { set_option(options, "--shape size", part); });
  for (const Option& option : options) {
    const auto* size = std::get_if<int64_t*>(&option.target);
    // Products of six sizes must stay within 64 bits.
    constexpr int64_t kLargest = int64_t{1} << 40;
    if (size && (**size < 0 || **size > kLargest))
      throw_error<InvalidArgument>("--shape size {} is {}, expected 0 to {}", option.name, **size,
                                   kLargest);
  }
}

bool parse_layout(std::string_view layout) {
  if (layout != "length" && layout != "channels")
    throw_error<InvalidArgument>("--layout is '{}', expected length or channels", layout);
  return layout == "channels";
}

void expect_at_least_one(std::string_view name, int64_t value) {
  if (value < 1)
    throw_error<InvalidArgument>("--shape size {} is {}, expected 1 or more", name, value);
}

}  // namespace

void check_operator(std::string_view name, std::span<const std::string> known) {
  if (std::find(std::begin(known), std::end(known), name) == std::end(known))
    throw InvalidArgument(unknown_name("operator", name, known));
}

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
  parse_layout(layout);
  size.dtype = size.out_dtype = parse_dtype(dtype);
  set_sizes(text, {{"batch", &size.batch, ""},
                   {"channels", &size.channels, ""},
                   {"groups", &size.groups, ""},
                   {"length", &size.length, ""},
                   {"states", &size.states, ""}});
  expect_at_least_one("groups", size.groups);
  expect_at_least_one("states", size.states);
  if (size.channels % size.groups != 0)
    throw_error<InvalidArgument>("--shape has {} groups, which do not divide {} channels",
                                 size.groups, size.channels);
  return shape;
}

Ss2dShape parse_ss2d_shape(std::string_view text, std::string_view dtype, std::string_view layout) {
  Ss2dShape shape;
  Ss2dSize& size = shape.size;
  size.channels_last = parse_layout(layout);
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
  return shape;
}

RuleShape parse_rule_shape(std::string_view text, std::string_view dtype) {
  RuleShape shape;
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
  expect_at_least_one("K", size.K);
  expect_at_least_one("V", size.V);
  if (size.value_heads == 0) size.value_heads = size.heads;
  if (size.value_heads % size.heads != 0)
    throw_error<InvalidArgument>("--shape has {} heads, which do not divide {} value heads",
                                 size.heads, size.value_heads);
  size.sequences = size.batch;
  size.mode = parse_gated_delta_rule_mode(mode);
  return shape;
}

}  // namespace linescan::cli
