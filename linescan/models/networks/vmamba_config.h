// Everything that decides what a VMamba network looks like, as named options. This header needs no Torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linescan/base/options.h"
#include "linescan/models/layers/forward_type.h"

namespace linescan {

// Defaults: vmamba_tiny_s1l8. "auto" leaves the choice to forward_type.
struct VMambaConfig {
  int64_t in_channels = 3;
  int64_t classes = 1000;
  int64_t image_size = 224;
  std::vector<int64_t> dims = {96};
  std::vector<int64_t> depths = {2, 2, 8, 2};

  int64_t states = 1;
  double ssm_ratio = 1;
  int64_t dt_rank = 0;
  std::string forward_type = "v05_noz";
  std::string routes = "auto";
  std::string gate = "auto";
  std::string out_norm = "auto";
  std::string out_act = "auto";
  int64_t conv = 3;
  bool conv_bias = false;
  std::string ssm_act = "silu";
  std::string ssm_init = "v0";
  std::string scan_path = "fused";
  bool authors_cascade = false;

  double mlp_ratio = 4;
  bool gmlp = false;
  std::string mlp_act = "gelu";

  std::string norm = "ln";
  std::string stem = "v2";
  int64_t stem_stride = 4;
  bool patch_norm = true;
  std::string downsample = "v3";
  bool post_norm = false;
  bool pos_embed = false;
  bool backbone = false;

  double drop_path = 0.2;
  double drop = 0;
  bool use_checkpoint = false;

  // The table for set_option() and to_json(); it points into this object.
  std::vector<Option> options();

  // Throws InvalidArgument: one line that names the option, its value and what is expected.
  void validate() const;

  // Derived values; valid after validate().
  int64_t stages() const { return static_cast<int64_t>(depths.size()); }
  int64_t channels(int64_t stage) const;  // a single number in dims doubles at every down-sampling
  int64_t inner(int64_t stage) const;     // channels of the scan; 0: no SS2D layer
  int64_t hidden(int64_t stage) const;    // of the MLP; 0: none
  int64_t rank(int64_t stage) const;      // dt_rank, or a sixteenth of the channels
  int64_t kernel() const;                 // of the depthwise convolution; 0: none
  bool has_conv_bias() const;
  ForwardType type() const;  // forward_type with routes, gate, out_norm and out_act laid over it
};

// The grid of one stage.
struct StageShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t blocks = 0;
};

// The grids of all stages for an image; throws InvalidArgument if a grid would be empty.
std::vector<StageShape> stage_shapes(const VMambaConfig& config, int64_t height, int64_t width);

}  // namespace linescan
