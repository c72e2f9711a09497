// Any network that names what is on an image: the interface that data, training and measurements see,
// and the kinds of it that have names.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "linescan/models/cost.h"
#include "linescan/models/networks/plain_config.h"
#include "linescan/models/networks/vmamba_config.h"

namespace linescan {

class ImageNetworkImpl : public torch::nn::Module {
 public:
  // x [batch, in_channels, height, width] of the parameters' type -> logits [batch, classes].
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};
using ImageNetwork = std::shared_ptr<ImageNetworkImpl>;

using ImageConfig = std::variant<VMambaConfig, PlainConfig>;

// Throws InvalidArgument as the configuration's validate() does, and for a VMamba with backbone=true,
// which has no logits.
ImageNetwork make_image_network(const ImageConfig& config);

// The published VMambas, vmamba_fashion, and the plain networks: vit_small, convnext_tiny, vit_fashion
// and convnext_fashion, the last two with as many parameters as vmamba_fashion.
std::vector<std::string> image_model_names();
// Throws InvalidArgument with the nearest name.
ImageConfig named_image_model(std::string_view name);

// What the kinds of configuration have in common.
std::vector<Option> options_of(ImageConfig& config);
int64_t image_size_of(const ImageConfig& config);
int64_t in_channels_of(const ImageConfig& config);
int64_t classes_of(const ImageConfig& config);
Cost count_cost(const ImageConfig& config, int64_t height, int64_t width);

}  // namespace linescan
