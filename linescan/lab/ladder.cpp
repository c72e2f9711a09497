#include "linescan/lab/ladder.h"

#include <fmt/format.h>

#include "linescan/models/networks/registry.h"

namespace linescan::lab {
namespace {

struct Architecture {
  std::vector<int64_t> depths;
  const char* forward_type;
  int64_t conv, states;
  double ssm_ratio;
};

VMambaConfig with(const Architecture& architecture) {
  VMambaConfig config = named_model("vmamba_tiny_s1l8");
  config.depths = architecture.depths;
  config.forward_type = architecture.forward_type;
  config.conv = architecture.conv;
  config.states = architecture.states;
  config.ssm_ratio = architecture.ssm_ratio;
  return config;
}

// With forward type v0 the scan is in float32; v05 is the same layer without that.
VMambaConfig vanilla(const char* forward_type, const char* scan_path) {
  VMambaConfig config = named_model("vmamba_tiny_v0");
  config.forward_type = forward_type;
  config.scan_path = scan_path;
  return config;
}

}  // namespace

std::vector<Rung> acceleration_ladder(const VMambaConfig& model) {
  std::vector<Rung> rungs = {
      {"vanilla", "copies of the plane, scan in float32, einsum", vanilla("v0", "copies"), 426,
       138},
      {"a", "plane scanned and merged in place", vanilla("v0", "einsum"), 467, 165},
      {"b", "half data into the scan", vanilla("v05", "einsum"), 464, 184},
      {"c", "one matrix product instead of einsums", vanilla("v05", "fused"), 638, 195},
      {"d", "MLP, new stem and down-sampling, no convolution",
       with({{2, 2, 2, 2}, "v05", 0, 16, 2}), 813, 248},
      {"e", "no gate, as many channels as the block", with({{2, 2, 5, 2}, "v05_noz", 0, 16, 1}),
       1179, 360},
      {"e.1", "depthwise convolution back", with({{2, 2, 5, 2}, "v05_noz", 3, 16, 1}), 1164, 358},
      {"f", "one state, twice the channels", with({{2, 2, 5, 2}, "v05_noz", 3, 1, 2}), 1340, 464},
      {"g", "as many channels as the block, deeper: ours", with({{2, 2, 8, 2}, "v05_noz", 3, 1, 1}),
       1686, 571},
  };
  const bool authors_own = model.dims == std::vector<int64_t>{96};
  for (Rung& rung : rungs) {
    rung.config.dims = {model.channels(0)};
    rung.config.in_channels = model.in_channels;
    rung.config.classes = model.classes;
    if (!authors_own) rung.paper_inference = rung.paper_training = 0;
  }
  return rungs;
}

std::vector<RungResult> climb_ladder(const Bench& bench, const VMambaConfig& model, int64_t size) {
  std::vector<RungResult> results;
  for (Rung& rung : acceleration_ladder(model)) {
    if (bench.say) bench.say(fmt::format("ladder: {}", rung.step));
    RungResult result;
    result.parameters = count_cost(rung.config, size, size).parameters;
    for (const StepKind kind : {StepKind::kInference, StepKind::kTraining}) {
      Measurement measured = measure_network(bench, rung.config, kind, size);
      measured.section = "ladder";
      measured.label = rung.step;
      (kind == StepKind::kTraining ? result.training : result.inference) = std::move(measured);
    }
    result.rung = std::move(rung);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace linescan::lab
