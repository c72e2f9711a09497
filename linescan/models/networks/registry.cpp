#include "linescan/models/networks/registry.h"

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"

namespace linescan {
namespace {

// The vanilla design: gate, sixteen states, no MLP.
VMambaConfig vanilla(int64_t channels, int64_t third_depth, double drop_path) {
  VMambaConfig config;
  config.dims = {channels};
  config.depths = {2, 2, third_depth, 2};
  config.states = 16;
  config.ssm_ratio = 2;
  config.forward_type = "v0";
  config.conv_bias = true;
  config.mlp_ratio = 0;
  config.stem = "v1";
  config.downsample = "v1";
  config.drop_path = drop_path;
  return config;
}

VMambaConfig gateless(int64_t channels, int64_t third_depth, double ssm_ratio, double drop_path) {
  VMambaConfig config;
  config.dims = {channels};
  config.depths = {2, 2, third_depth, 2};
  config.ssm_ratio = ssm_ratio;
  config.drop_path = drop_path;
  return config;
}

VMambaConfig fashion() {
  VMambaConfig config;
  config.in_channels = 1;
  config.classes = 10;
  config.image_size = 28;
  config.dims = {64};
  config.depths = {4};
  config.mlp_ratio = 2;
  config.drop_path = 0;
  return config;
}

struct NamedVMamba {
  const char* name;
  VMambaConfig (*make)();
};

constexpr NamedVMamba kModels[] = {
    {"vmamba_fashion", fashion},
    {"vmamba_tiny_v0", [] { return vanilla(96, 9, 0.2); }},
    {"vmamba_small_v0", [] { return vanilla(96, 27, 0.3); }},
    {"vmamba_base_v0", [] { return vanilla(128, 27, 0.6); }},
    {"vmamba_tiny_s2l5", [] { return gateless(96, 5, 2, 0.2); }},
    {"vmamba_small_s2l15", [] { return gateless(96, 15, 2, 0.3); }},
    {"vmamba_base_s2l15", [] { return gateless(128, 15, 2, 0.6); }},
    {"vmamba_tiny_s1l8", [] { return gateless(96, 8, 1, 0.2); }},
    {"vmamba_small_s1l20", [] { return gateless(96, 20, 1, 0.3); }},
    {"vmamba_base_s1l20", [] { return gateless(128, 20, 1, 0.5); }},
};

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const NamedVMamba& entry : kModels) names.emplace_back(entry.name);
  return names;
}

VMambaConfig named_model(std::string_view name) {
  for (const NamedVMamba& entry : kModels)
    if (entry.name == name) return entry.make();
  throw InvalidArgument(unknown_name("model", name, model_names()));
}

}  // namespace linescan
