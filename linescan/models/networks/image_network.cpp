#include "linescan/models/networks/image_network.h"

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"
#include "linescan/models/networks/convnext.h"
#include "linescan/models/networks/registry.h"
#include "linescan/models/networks/vit.h"
#include "linescan/models/networks/vmamba.h"

namespace linescan {
namespace {

PlainConfig convnext_tiny() {
  PlainConfig config;
  config.kind = PlainKind::kConvolution;
  config.patch = 4;
  config.dims = {96};
  config.depths = {3, 3, 9, 3};
  return config;
}

struct NamedPlain {
  const char* name;
  PlainConfig (*make)();
};

constexpr NamedPlain kPlain[] = {
    {"vit_small", [] { return PlainConfig(); }},
    {"convnext_tiny", convnext_tiny},
    {"vit_fashion", [] { return rival_of(named_model("vmamba_fashion"), PlainKind::kAttention); }},
    {"convnext_fashion",
     [] { return rival_of(named_model("vmamba_fashion"), PlainKind::kConvolution); }},
};

ImageNetwork make(const VMambaConfig& config) {
  if (config.backbone)
    throw_error<InvalidArgument>(
        "model option backbone is true, expected false: logits need a classifier");
  return std::make_shared<VMambaImpl>(config);
}

ImageNetwork make(const PlainConfig& config) {
  if (config.kind == PlainKind::kAttention) return std::make_shared<VitImpl>(config);
  return std::make_shared<ConvNextImpl>(config);
}

}  // namespace

ImageNetwork make_image_network(const ImageConfig& config) {
  return std::visit([](const auto& kind) { return make(kind); }, config);
}

std::vector<std::string> image_model_names() {
  std::vector<std::string> names = model_names();
  for (const NamedPlain& entry : kPlain) names.emplace_back(entry.name);
  return names;
}

ImageConfig named_image_model(std::string_view name) {
  for (const NamedPlain& entry : kPlain)
    if (entry.name == name) return entry.make();
  for (const std::string& known : model_names())
    if (known == name) return named_model(name);
  throw InvalidArgument(unknown_name("model", name, image_model_names()));
}

std::vector<Option> options_of(ImageConfig& config) {
  return std::visit([](auto& kind) { return kind.options(); }, config);
}
int64_t image_size_of(const ImageConfig& config) {
  return std::visit([](const auto& kind) { return kind.image_size; }, config);
}
int64_t in_channels_of(const ImageConfig& config) {
  return std::visit([](const auto& kind) { return kind.in_channels; }, config);
}
int64_t classes_of(const ImageConfig& config) {
  return std::visit([](const auto& kind) { return kind.classes; }, config);
}
Cost count_cost(const ImageConfig& config, int64_t height, int64_t width) {
  return std::visit([&](const auto& kind) { return count_cost(kind, height, width); }, config);
}

}  // namespace linescan
