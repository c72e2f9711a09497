// What happens between the two projections of an SS2D layer, and the strings that name it.
//
// A forward type is a base and suffixes, in any order: "v05_noz", "v052d_onnone_nozact".
//   v0                        the vanilla layer: gate, convolution with bias, scan in float32
//   v01 v02 v03 (v04 v05)     four routes that cross; the first three scan in float32
//   v051d v052d v052dc v052d3 routes one, two, cascade, rotated
//   _noz _nozact              no gate; a gate without activation
//   _oact                     GELU after the output norm
//   _onnone _ondwconv3 _oncnorm _onsoftmax _onsigmoid    the output norm
//   _no32                     never scan in float32
// Liu et al. 2024, arXiv:2401.10166; the strings are those of its public code.
#pragma once

#include <cstdint>
#include <string_view>

namespace linescan {

enum class Routes { kCross, kOne, kTwo, kCascade, kRotated };
enum class Gate { kActivated, kPlain, kNone };
enum class OutNorm { kLayerNorm, kNone, kDepthwise, kLayerNormDepthwise, kSoftmax, kSigmoid };

// Number of weight groups: every mode keeps four, so that published weights fit all of them.
constexpr int64_t kRouteGroups = 4;

struct ForwardType {
  bool vanilla = false;
  // In half precision only: the scan's result stays float32, as the states and sums always are. The
  // published code computes its inputs in half precision too and widens them before the scan.
  bool float32_scan = false;
  Routes routes = Routes::kCross;
  Gate gate = Gate::kActivated;
  OutNorm out_norm = OutNorm::kLayerNorm;
  bool out_gelu = false;
};

// Throws InvalidArgument that names the unknown base or suffix and the known ones.
ForwardType parse_forward_type(std::string_view text);

// One name each: "cross", "silu", "ln". Throws InvalidArgument with the nearest name.
Routes parse_routes(std::string_view name);
Gate parse_gate(std::string_view name);
OutNorm parse_out_norm(std::string_view name);
bool parse_out_act(std::string_view name);  // true: GELU

}  // namespace linescan
