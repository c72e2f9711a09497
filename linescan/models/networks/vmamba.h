// VMamba: a stem, stages of blocks with down-sampling between them, and a classifier.
// Liu et al. 2024, arXiv:2401.10166. Parameter names are those of the published checkpoints.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "linescan/models/layers/downsample.h"
#include "linescan/models/layers/patch_embed.h"
#include "linescan/models/layers/vss_block.h"
#include "linescan/models/networks/image_network.h"
#include "linescan/models/networks/vmamba_config.h"

namespace linescan {

class VMambaImpl : public ImageNetworkImpl {
 public:
  // Throws InvalidArgument as VMambaConfig::validate() does.
  explicit VMambaImpl(const VMambaConfig& config);

  // x [batch, in_channels, height, width] of the parameters' type, any size from which no stage
  // becomes empty -> logits [batch, classes]. Throws InvalidArgument for other inputs, and for a
  // network with backbone=true, which has no classifier.
  at::Tensor forward(const at::Tensor& x) override;

  // The last stage's result, normed, not pooled: [batch, channels, rows, columns]. A backbone has
  // its own norm there (outnorm of the last stage).
  at::Tensor forward_features(const at::Tensor& x);

  // For dense prediction: every stage's result (before down-sampling) through a norm of its own,
  // [batch, channels, rows, columns] each, channels-last in memory. Needs backbone=true.
  std::vector<at::Tensor> stages(const at::Tensor& x);

  const VMambaConfig& config() const { return config_; }

 private:
  struct Stage {
    std::vector<VssBlock> blocks;
    Downsample downsample{nullptr};  // empty behind the last stage
  };

  void make_stage(int64_t stage, torch::nn::Module& parent, int64_t first_block,
                  int64_t total_blocks);
  void check_input(const at::Tensor& x) const;
  // x -> result of the last stage [batch, rows, columns, channels]; `keep` sees every stage's.
  at::Tensor run(const at::Tensor& x,
                 const std::function<void(int64_t stage, const at::Tensor&)>& keep);
  at::Tensor embed(const at::Tensor& x);

  VMambaConfig config_;
  PatchEmbed patch_embed_{nullptr};
  at::Tensor pos_embed_;  // [1, channels, rows, columns]
  std::vector<Stage> layers_;
  Norm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
  std::vector<Norm> out_norms_;
};
TORCH_MODULE(VMamba);

}  // namespace linescan
