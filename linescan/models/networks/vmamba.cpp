#include "linescan/models/networks/vmamba.h"

#include <fmt/format.h>

#include <numeric>

#include "linescan/base/error.h"
#include "linescan/models/layers/dense.h"
#include "linescan/models/module_watch.h"

namespace linescan {
namespace {

VssBlockOptions block_options(const VMambaConfig& config, int64_t stage, double drop_path) {
  VssBlockOptions options;
  options.op.channels = config.channels(stage);
  options.op.inner = config.inner(stage);
  options.op.states = config.states;
  options.op.dt_rank = config.rank(stage);
  options.op.type = config.type();
  options.op.kernel = config.kernel();
  options.op.conv_bias = config.has_conv_bias();
  options.op.drop = config.drop;
  options.op.authors_cascade = config.authors_cascade;
  options.op.path = parse_scan_path(config.scan_path);
  if (!options.op.type.vanilla) {
    options.op.activation = parse_activation("ssm_act", config.ssm_act);
    options.op.init = parse_scan_init(config.ssm_init);
  }
  options.mlp.channels = config.channels(stage);
  options.mlp.hidden = config.hidden(stage);
  options.mlp.gated = config.gmlp;
  options.mlp.activation = parse_activation("mlp_act", config.mlp_act);
  options.mlp.drop = config.drop;
  options.norm = parse_norm(config.norm);
  options.post_norm = config.post_norm;
  options.drop_path = drop_path;
  options.checkpoint = config.use_checkpoint;
  return options;
}

std::shared_ptr<torch::nn::Module> group() { return std::make_shared<torch::nn::Module>(); }

}  // namespace

VMambaImpl::VMambaImpl(const VMambaConfig& config) : config_(config) {
  config.validate();
  const NormKind norm = parse_norm(config.norm);
  PatchEmbedOptions stem;
  stem.kind = parse_stem(config.stem);
  stem.in_channels = config.in_channels;
  stem.channels = config.channels(0);
  stem.stride = config.stem_stride;
  stem.normalise = config.patch_norm;
  stem.norm = norm;
  patch_embed_ = register_module("patch_embed", PatchEmbed(stem));
  if (config.pos_embed) {
    const StageShape grid = stage_shapes(config, config.image_size, config.image_size).front();
    pos_embed_ = register_parameter(
        "pos_embed",
        torch::normal(0.0, 0.02, {1, grid.channels, grid.height, grid.width}, std::nullopt));
  }

  const auto layers = register_module("layers", group());
  const int64_t total = std::accumulate(config.depths.begin(), config.depths.end(), int64_t{0});
  int64_t first_block = 0;
  for (int64_t stage = 0; stage < config.stages(); ++stage) {
    make_stage(stage, *layers, first_block, total);
    first_block += config.depths[stage];
  }

  const int64_t features = config.channels(config.stages() - 1);
  if (config.backbone) {
    for (int64_t stage = 0; stage < config.stages(); ++stage)
      out_norms_.push_back(
          register_module(fmt::format("outnorm{}", stage), Norm(norm, config.channels(stage))));
  } else {
    const auto classifier = register_module("classifier", group());
    norm_ = classifier->register_module("norm", Norm(norm, features));
    head_ = classifier->register_module("head", make_linear(features, config.classes, true));
  }
}

void VMambaImpl::make_stage(int64_t stage, torch::nn::Module& parent, int64_t first_block,
                            int64_t total_blocks) {
  const auto place = parent.register_module(std::to_string(stage), group());
  const auto blocks = place->register_module("blocks", group());
  Stage& made = layers_.emplace_back();
  for (int64_t i = 0; i < config_.depths[stage]; ++i) {
    // Grows linearly over the blocks of the whole network.
    const double share =
        total_blocks > 1 ? static_cast<double>(first_block + i) / (total_blocks - 1) : 0.0;
    made.blocks.push_back(blocks->register_module(
        std::to_string(i), VssBlock(block_options(config_, stage, config_.drop_path * share))));
  }
  const DownsampleKind down = parse_downsample(config_.downsample);
  if (stage + 1 < config_.stages() && down != DownsampleKind::kNone)
    made.downsample = place->register_module(
        "downsample", Downsample(down, config_.channels(stage), config_.channels(stage + 1),
                                 parse_norm(config_.norm)));
}

void VMambaImpl::check_input(const at::Tensor& x) const {
  if (x.dim() != 4 || x.size(1) != config_.in_channels)
    throw_error<InvalidArgument>("vmamba: x has shape {}, expected [batch, {}, height, width]",
                                 fmt::format("[{}]", fmt::join(x.sizes(), ", ")),
                                 config_.in_channels);
  stage_shapes(config_, x.size(2), x.size(3));
}

at::Tensor VMambaImpl::embed(const at::Tensor& x) {
  const at::Tensor grid = patch_embed_->forward(x);
  if (!pos_embed_.defined()) return grid;
  at::Tensor embedding = pos_embed_;
  if (embedding.size(2) != grid.size(1) || embedding.size(3) != grid.size(2))
    embedding = at::upsample_bicubic2d(embedding, {grid.size(1), grid.size(2)},
                                       /*align_corners=*/false);
  // A float32 sum would make the whole way through the blocks float32.
  if (grid.is_cuda()) embedding = embedding.to(grid.scalar_type());
  return grid + channels_last(embedding);
}

at::Tensor VMambaImpl::run(const at::Tensor& x,
                           const std::function<void(int64_t stage, const at::Tensor&)>& keep) {
  check_input(x);
  at::Tensor grid = run_module("patch_embed", [&] { return embed(x); });
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Stage& stage = layers_[i];
    for (std::size_t j = 0; j < stage.blocks.size(); ++j) {
      grid = run_module(fmt::format("layers.{}.blocks.{}", i, j),
                        [&] { return stage.blocks[j]->forward(grid); });
    }
    if (keep) keep(static_cast<int64_t>(i), grid);
    if (!stage.downsample) continue;
    grid = run_module(fmt::format("layers.{}.downsample", i),
                      [&] { return stage.downsample->forward(grid); });
  }
  return grid;
}

at::Tensor VMambaImpl::forward(const at::Tensor& x) {
  if (config_.backbone)
    throw_error<InvalidArgument>("vmamba: backbone=true has no classifier; use stages()");
  const at::Tensor grid = run(x, {});
  return run_module("classifier", [&] {
    return head_->forward(norm_->forward(grid).mean({1, 2}));
  });
}

at::Tensor VMambaImpl::forward_features(const at::Tensor& x) {
  Norm& norm = config_.backbone ? out_norms_.back() : norm_;
  return channels_second(norm->forward(run(x, {})));
}

std::vector<at::Tensor> VMambaImpl::stages(const at::Tensor& x) {
  if (!config_.backbone)
    throw_error<InvalidArgument>("vmamba: stages() needs backbone=true, which has a norm for each");
  std::vector<at::Tensor> results;
  run(x, [&](int64_t stage, const at::Tensor& grid) {
    results.push_back(channels_second(out_norms_[stage]->forward(grid)));
  });
  return results;
}

}  // namespace linescan
