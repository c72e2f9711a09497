#include "linescan/models/layers/forward_type.h"

#include <fmt/format.h>

#include "linescan/models/layers/choice.h"

namespace linescan {
namespace {

struct Base {
  std::string_view name;
  ForwardType type;
};

constexpr Base kBases[] = {
    {"v0", {.vanilla = true, .float32_scan = true}},
    {"v01", {.float32_scan = true}},
    {"v02", {.float32_scan = true}},
    {"v03", {.float32_scan = true}},
    {"v04", {}},
    {"v05", {}},
    {"v051d", {.routes = Routes::kOne}},
    {"v052d", {.routes = Routes::kTwo}},
    {"v052dc", {.routes = Routes::kCascade}},
    {"v052d3", {.routes = Routes::kRotated}},
};

struct Suffix {
  std::string_view name;
  void (*apply)(ForwardType& type);
};

constexpr Suffix kSuffixes[] = {
    {"noz", [](ForwardType& type) { type.gate = Gate::kNone; }},
    // "_noz_nozact" means no gate, whichever comes first.
    {"nozact",
     [](ForwardType& type) {
       if (type.gate != Gate::kNone) type.gate = Gate::kPlain;
     }},
    {"oact", [](ForwardType& type) { type.out_gelu = true; }},
    {"no32", [](ForwardType& type) { type.float32_scan = false; }},
    {"onnone", [](ForwardType& type) { type.out_norm = OutNorm::kNone; }},
    {"ondwconv3", [](ForwardType& type) { type.out_norm = OutNorm::kDepthwise; }},
    {"oncnorm", [](ForwardType& type) { type.out_norm = OutNorm::kLayerNormDepthwise; }},
    {"onsoftmax", [](ForwardType& type) { type.out_norm = OutNorm::kSoftmax; }},
    {"onsigmoid", [](ForwardType& type) { type.out_norm = OutNorm::kSigmoid; }},
};

template <typename Row, std::size_t size>
std::string known(const Row (&table)[size], std::string_view prefix) {
  std::string text;
  for (const Row& row : table)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", prefix, row.name);
  return text;
}

template <typename Row, std::size_t size>
const Row* find(const Row (&table)[size], std::string_view name) {
  for (const Row& row : table)
    if (row.name == name) return &row;
  return nullptr;
}

constexpr Choice<Routes> kRoutes[] = {{"cross", Routes::kCross},
                                      {"one", Routes::kOne},
                                      {"two", Routes::kTwo},
                                      {"cascade", Routes::kCascade},
                                      {"rotated", Routes::kRotated}};
constexpr Choice<Gate> kGates[] = {
    {"silu", Gate::kActivated}, {"plain", Gate::kPlain}, {"none", Gate::kNone}};
constexpr Choice<OutNorm> kOutNorms[] = {
    {"ln", OutNorm::kLayerNorm},      {"none", OutNorm::kNone},
    {"dwconv3", OutNorm::kDepthwise}, {"cnorm", OutNorm::kLayerNormDepthwise},
    {"softmax", OutNorm::kSoftmax},   {"sigmoid", OutNorm::kSigmoid}};
constexpr Choice<bool> kOutActs[] = {{"none", false}, {"gelu", true}};

}  // namespace

ForwardType parse_forward_type(std::string_view text) {
  const std::string_view name = text.substr(0, text.find('_'));
  const Base* base = find(kBases, name);
  if (!base)
    throw_error<InvalidArgument>("forward_type '{}' starts with '{}', expected one of {}", text,
                                 name, known(kBases, ""));
  ForwardType type = base->type;
  std::string_view rest = text.substr(name.size());
  if (base->type.vanilla && !rest.empty())
    throw_error<InvalidArgument>("forward_type '{}': v0 takes no suffix, got '{}'", text, rest);
  while (!rest.empty()) {
    rest.remove_prefix(1);  // '_'
    const std::string_view word = rest.substr(0, rest.find('_'));
    const Suffix* suffix = find(kSuffixes, word);
    if (!suffix)
      throw_error<InvalidArgument>("forward_type '{}' has the unknown suffix '_{}', known are {}",
                                   text, word, known(kSuffixes, "_"));
    suffix->apply(type);
    rest.remove_prefix(word.size());
  }
  return type;
}

Routes parse_routes(std::string_view name) { return read_choice(kRoutes, "routes", name); }
Gate parse_gate(std::string_view name) { return read_choice(kGates, "gate", name); }
OutNorm parse_out_norm(std::string_view name) { return read_choice(kOutNorms, "out_norm", name); }
bool parse_out_act(std::string_view name) { return read_choice(kOutActs, "out_act", name); }

}  // namespace linescan
