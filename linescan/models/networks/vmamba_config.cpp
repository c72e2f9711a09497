#include "linescan/models/networks/vmamba_config.h"

#include <fmt/ranges.h>

#include "linescan/base/math.h"
#include "linescan/models/layers/activation.h"
#include "linescan/models/layers/downsample.h"
#include "linescan/models/layers/norm.h"
#include "linescan/models/layers/patch_embed.h"
#include "linescan/models/layers/reference_scan.h"
#include "linescan/models/layers/scan_init.h"
#include "linescan/models/networks/config_checks.h"

namespace linescan {

std::vector<Option> VMambaConfig::options() {
  return {
      {"in_channels", &in_channels, "channels of an image"},
      {"classes", &classes, "number of classes"},
      {"image_size", &image_size, "height and width that the position embedding is made for"},
      {"dims", &dims, "channels of the first stage, doubled at each down-sampling, or of all"},
      {"depths", &depths, "blocks of every stage"},
      {"states", &states, "states of the scan per channel"},
      {"ssm_ratio", &ssm_ratio, "channels of the scan over channels of the block; 0: no scan"},
      {"dt_rank", &dt_rank, "rank of the time step's projection; 0: channels / 16, rounded up"},
      {"forward_type", &forward_type, "v0, v05, v051d, v052d, v052dc, v052d3 with suffixes"},
      {"routes", &routes, "auto, cross, one, two, cascade, rotated"},
      {"gate", &gate, "auto, silu (activated by ssm_act), plain, none"},
      {"out_norm", &out_norm, "auto, ln, none, dwconv3, cnorm, softmax, sigmoid"},
      {"out_act", &out_act, "auto, none, gelu"},
      {"conv", &conv, "kernel of the depthwise convolution, odd; 0: none (v0: always 3)"},
      {"conv_bias", &conv_bias, "bias of the depthwise convolution (v0: always)"},
      {"ssm_act", &ssm_act, "silu, gelu, relu, sigmoid (v0: always silu)"},
      {"ssm_init", &ssm_init, "v0, v0_constant, v1, v2 (v0: always v0)"},
      {"scan_path", &scan_path, "fused, or the slower einsum or copies, to measure against"},
      {"authors_cascade", &authors_cascade, "cascade as the published checkpoints need it"},
      {"mlp_ratio", &mlp_ratio, "hidden channels of the MLP over channels; 0: no MLP"},
      {"gmlp", &gmlp, "gated MLP"},
      {"mlp_act", &mlp_act, "silu, gelu, relu, sigmoid"},
      {"norm", &norm, "ln, ln2d (the same numbers), bn"},
      {"stem", &stem, "v1 (one convolution), v2 (two that overlap)"},
      {"stem_stride", &stem_stride, "pixels a grid point: 4, 2 or 1"},
      {"patch_norm", &patch_norm, "norms in the stem"},
      {"downsample", &downsample, "v1 (merging), v2 (2x2), v3 (3x3), none"},
      {"post_norm", &post_norm, "norms behind the branches instead of before"},
      {"pos_embed", &pos_embed, "learned position embedding"},
      {"backbone", &backbone, "a norm at every stage instead of the classifier"},
      {"drop_path", &drop_path, "stochastic depth of the last block, growing linearly from 0"},
      {"drop", &drop, "dropout in the branches"},
      {"use_checkpoint", &use_checkpoint, "recompute blocks in the backward pass"},
  };
}

void VMambaConfig::validate() const {
  expect_size("in_channels", in_channels);
  expect_size("classes", classes);
  expect_size("image_size", image_size);
  expect_size("states", states);
  expect_size("dt_rank", dt_rank, 0);
  expect_ratio("ssm_ratio", ssm_ratio);
  expect_ratio("mlp_ratio", mlp_ratio);
  expect_probability("drop_path", drop_path);
  expect_probability("drop", drop);
  expect_option(conv == 0 || (conv > 0 && conv % 2 == 1 && conv <= 255), "conv", conv,
                "0 (none) or an odd kernel size up to 255");
  expect_option(stem_stride == 4 || stem_stride == 2 || stem_stride == 1, "stem_stride",
                stem_stride, "4, 2 or 1");
  expect_option(!depths.empty(), "depths", "empty", "the blocks of at least one stage");
  for (int64_t depth : depths) expect_size("depths", depth, 0);
  expect_option(dims.size() == 1 || dims.size() == depths.size(), "dims",
                fmt::to_string(fmt::join(dims, ",")),
                fmt::format("one number or {}, as many as depths", depths.size()).c_str());

  const ForwardType resolved = type();
  parse_activation("ssm_act", ssm_act);
  parse_activation("mlp_act", mlp_act);
  parse_scan_init(ssm_init);
  parse_norm(norm);
  const ScanPath path = parse_scan_path(scan_path);
  const StemKind stem_kind = parse_stem(stem);
  const DownsampleKind down = parse_downsample(downsample);

  for (int64_t stage = 0; stage < stages(); ++stage) {
    expect_size("dims", channels(stage));
    expect_option(ssm_ratio == 0 || inner(stage) > 0, "ssm_ratio", ssm_ratio,
                  "0, or at least one channel for the scan");
    expect_option(mlp_ratio == 0 || hidden(stage) > 0, "mlp_ratio", mlp_ratio,
                  "0, or at least one hidden channel");
    expect_option(down != DownsampleKind::kNone || channels(stage) == channels(0), "dims",
                  fmt::to_string(fmt::join(dims, ",")), "equal numbers with downsample=none");
  }
  expect_option(stem_kind == StemKind::kPatches || channels(0) >= 2, "dims", channels(0),
                "at least 2 with stem=v2");
  expect_option(path != ScanPath::kCopies || resolved.routes != Routes::kCascade, "scan_path",
                scan_path, "fused or einsum with routes=cascade");
  expect_option(!authors_cascade || resolved.routes == Routes::kCascade, "authors_cascade", "true",
                "false unless routes=cascade");
}

int64_t VMambaConfig::channels(int64_t stage) const {
  if (dims.size() > 1) return dims[stage];
  if (downsample == "none") return dims[0];
  // Saturates far above what validate() allows, instead of overflowing.
  int64_t channels = dims[0];
  for (int64_t i = 0; i < stage && channels <= kLargestSize; ++i) channels *= 2;
  return channels;
}

int64_t VMambaConfig::inner(int64_t stage) const {
  return static_cast<int64_t>(ssm_ratio * static_cast<double>(channels(stage)));
}

int64_t VMambaConfig::hidden(int64_t stage) const {
  return static_cast<int64_t>(mlp_ratio * static_cast<double>(channels(stage)));
}

int64_t VMambaConfig::rank(int64_t stage) const {
  return dt_rank > 0 ? dt_rank : ceil_div(channels(stage), 16);
}

int64_t VMambaConfig::kernel() const {
  if (type().vanilla) return 3;
  return conv > 1 ? conv : 0;
}

bool VMambaConfig::has_conv_bias() const { return conv_bias || type().vanilla; }

ForwardType VMambaConfig::type() const {
  ForwardType type = parse_forward_type(forward_type);
  if (routes != "auto") type.routes = parse_routes(routes);
  if (gate != "auto") type.gate = parse_gate(gate);
  if (out_norm != "auto") type.out_norm = parse_out_norm(out_norm);
  if (out_act != "auto") type.out_gelu = parse_out_act(out_act);
  return type;
}

std::vector<StageShape> stage_shapes(const VMambaConfig& config, int64_t height, int64_t width) {
  const StemKind stem = parse_stem(config.stem);
  const DownsampleKind down = parse_downsample(config.downsample);
  std::vector<StageShape> shapes;
  int64_t rows = stem_output(stem, config.stem_stride, height);
  int64_t columns = stem_output(stem, config.stem_stride, width);
  for (int64_t stage = 0; stage < config.stages(); ++stage) {
    if (stage > 0) {
      rows = downsample_output(down, rows);
      columns = downsample_output(down, columns);
    }
    if (rows < 1 || columns < 1)
      throw_error<InvalidArgument>(
          "vmamba: an image of {} x {} is too small, stage {} would be empty", height, width,
          stage);
    shapes.push_back({config.channels(stage), rows, columns, config.depths[stage]});
  }
  return shapes;
}

}  // namespace linescan
