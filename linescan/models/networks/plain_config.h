// The two plain networks that a VMamba is measured against: a vision transformer, whose attention costs
// the square of the pixels, and a stack of 7x7 depthwise convolutions. This header needs no Torch.
//
// Dosovitskiy et al. 2021, arXiv:2010.11929; Liu et al. 2022, arXiv:2201.03545.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "linescan/base/options.h"
#include "linescan/models/networks/vmamba_config.h"

namespace linescan {

enum class PlainKind { kAttention, kConvolution };

// "attention", "conv"; throws InvalidArgument with the nearest name.
PlainKind parse_plain_kind(std::string_view name);
std::string_view name_of(PlainKind kind);

// Defaults: a vision transformer as small as DeiT-S, without its class token.
struct PlainConfig {
  PlainKind kind = PlainKind::kAttention;
  int64_t in_channels = 3;
  int64_t classes = 1000;
  int64_t image_size = 224;
  int64_t patch = 16;                  // pixels a grid point of the first stage
  std::vector<int64_t> dims = {384};   // attention: one number; convolution: as VMambaConfig
  std::vector<int64_t> depths = {12};  // attention: one number
  int64_t heads = 6;                   // attention only
  double mlp_ratio = 4;
  double drop_path = 0;

  // The table for set_option() and to_json(); it points into this object.
  std::vector<Option> options();

  // Throws InvalidArgument: one line that names the option, its value and what is expected.
  void validate() const;

  int64_t stages() const { return static_cast<int64_t>(depths.size()); }
  int64_t channels(int64_t stage) const;  // a single number in dims doubles at every stage
  int64_t hidden(int64_t stage) const;    // of the MLP
};

// The grids of all stages for an image; throws InvalidArgument if a grid would be empty.
std::vector<StageShape> stage_shapes(const PlainConfig& config, int64_t height, int64_t width);

// The plain network of that kind whose number of parameters comes nearest to the VMamba's among those of
// usual proportions, for the same images and classes.
PlainConfig rival_of(const VMambaConfig& config, PlainKind kind);

}  // namespace linescan
