#include "linescan/lab/scan_modes.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string_view>

#include "linescan/lab/out_of_memory.h"

namespace linescan::lab {
namespace {

constexpr const char* kBase = "cross";

struct Contestant {
  const char* name;
  const char* routes;
  bool new_images;
  std::unique_ptr<Step> step;
  std::vector<double> rates, variations;
};

double mean_of(const double* first, const double* last) {
  return std::accumulate(first, last, 0.0) / static_cast<double>(last - first);
}

double drift_of(const std::vector<double>& rates) {
  const std::size_t quarter = std::max<std::size_t>(1, rates.size() / 4);
  const double* end = rates.data() + rates.size();
  return mean_of(end - quarter, end) / mean_of(rates.data(), rates.data() + quarter) - 1;
}

ModeResult result_of(const Contestant& contestant, const std::vector<double>& base) {
  ModeResult result;
  result.mode = contestant.name;
  if (contestant.rates.empty()) return result;
  result.rates = contestant.rates;
  result.rate = summarise(contestant.rates);
  result.within = summarise(contestant.variations).mean;
  result.drift = drift_of(contestant.rates);
  if (base.empty()) return result;
  std::vector<double> relative(base.size());
  std::transform(contestant.rates.begin(), contestant.rates.end(), base.begin(), relative.begin(),
                 std::divides<>());
  result.relative = summarise(std::move(relative));
  return result;
}

VMambaConfig with_routes(VMambaConfig config, const char* routes) {
  config.routes = routes;
  config.scan_path = "fused";
  config.authors_cascade = false;
  return config;
}

// What the modes have in common. They differ in routes, not in the shapes of their weights, so all of
// them compute with the weights of one network, and on one batch unless they get new images.
struct Common {
  ImageNetwork network;
  Step step;

  Common(const Bench& bench, const VMambaConfig& config, int64_t batch, int64_t size)
      : network(place_network(config, bench)),
        step(network, config, bench.compute, StepKind::kTraining, batch, size) {}
};

std::unique_ptr<Step> step_of(const Bench& bench, const Contestant& contestant,
                              const VMambaConfig& config, const ScanModes& modes,
                              const Common& common) {
  const VMambaConfig own = with_routes(config, contestant.routes);
  const ImageNetwork network = place_network(own, bench);
  const std::vector<at::Tensor> weights = common.network->parameters();
  const std::vector<at::Tensor> replaced = network->parameters();
  for (std::size_t i = 0; i < weights.size(); ++i) replaced[i].set_data(weights[i].detach());
  auto step = std::make_unique<Step>(network, own, bench.compute, StepKind::kTraining, modes.batch,
                                     modes.size);
  if (!contestant.new_images) step->share_batch(common.step);
  return step;
}

void time_round(const Bench& bench, bool first, int64_t batch, Contestant* contestant) {
  Step& step = *contestant->step;
  if (contestant->new_images) step.draw_images();
  const Repetition repetition = {.warmup = first ? bench.protocol.warmup : 1,
                                 .repetitions = bench.protocol.repetitions,
                                 .graph = bench.protocol.graph};
  const Timed timed = time_work(
      bench.compute, repetition, [&] { step.run(); }, [&] { step.prepare(); },
      first ? bench.say : Message());
  step.prepare();
  contestant->rates.push_back(static_cast<double>(batch) / timed.seconds.median);
  contestant->variations.push_back(timed.seconds.variation());
}

// Does the work, or takes the mode out of the comparison if memory runs out.
void do_or_drop(const Bench& bench, Contestant* contestant, const std::function<void()>& work) {
  if (fits_memory(work)) return;
  contestant->step.reset();
  contestant->rates.clear();
  contestant->variations.clear();
  give_memory_back(bench.compute);
  if (bench.say) bench.say(fmt::format("out of memory with scan mode {}", contestant->name));
}

}  // namespace

ScanModes compare_scan_modes(const Bench& bench, const VMambaConfig& config, int64_t size,
                             int rounds) {
  Contestant contestants[] = {{"one", "one", false, {}, {}, {}},
                              {"two", "two", false, {}, {}, {}},
                              {kBase, kBase, false, {}, {}, {}},
                              {"cascade", "cascade", false, {}, {}, {}},
                              {"two, new images", "two", true, {}, {}, {}}};
  ScanModes result;
  result.size = size;
  result.rounds = rounds;
  result.steps = bench.protocol.repetitions;
  // The largest batch of the protocol's that fits the mode that the others are compared with.
  const VMambaConfig base_config = with_routes(config, kBase);
  result.batch = measure_network(bench, base_config, StepKind::kTraining, size).batch;
  if (result.batch > 0) {
    const Common common(bench, base_config, result.batch, size);
    for (Contestant& contestant : contestants)
      do_or_drop(bench, &contestant,
                 [&] { contestant.step = step_of(bench, contestant, config, result, common); });
    for (int round = 0; round < rounds; ++round) {
      if (bench.say) bench.say(fmt::format("scan modes: round {} of {}", round + 1, rounds));
      for (Contestant& contestant : contestants)
        if (contestant.step)
          do_or_drop(bench, &contestant,
                     [&] { time_round(bench, round == 0, result.batch, &contestant); });
    }
  }
  const auto base =
      std::find_if(std::begin(contestants), std::end(contestants),
                   [](const Contestant& c) { return std::string_view(c.name) == kBase; });
  for (const Contestant& contestant : contestants)
    result.modes.push_back(result_of(contestant, base->rates));
  return result;
}

}  // namespace linescan::lab
