#include "linescan/lab/scan_modes.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string_view>

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
  result.rates = contestant.rates;
  result.rate = summarise(contestant.rates);
  std::vector<double> relative(base.size());
  std::transform(contestant.rates.begin(), contestant.rates.end(), base.begin(), relative.begin(),
                 std::divides<>());
  result.relative = summarise(std::move(relative));
  result.within = summarise(contestant.variations).mean;
  result.drift = drift_of(contestant.rates);
  return result;
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
  // The largest batch of the protocol's that fits, found where the most routes are scanned.
  result.batch = measure_network(bench, config, StepKind::kTraining, size).batch;
  if (result.batch == 0) return result;
  for (Contestant& contestant : contestants) {
    VMambaConfig own = config;
    own.routes = contestant.routes;
    own.scan_path = "fused";
    own.authors_cascade = false;
    contestant.step = std::make_unique<Step>(place_network(own, bench), own, bench.compute,
                                             StepKind::kTraining, result.batch, size);
  }
  for (int round = 0; round < rounds; ++round) {
    if (bench.say) bench.say(fmt::format("scan modes: round {} of {}", round + 1, rounds));
    for (Contestant& contestant : contestants) {
      Step& step = *contestant.step;
      if (contestant.new_images) step.draw_images();
      const Repetition repetition = {.warmup = round == 0 ? bench.protocol.warmup : 1,
                                     .repetitions = bench.protocol.repetitions};
      const Timed timed = time_work(
          bench.compute, repetition, [&] { step.run(); }, [&] { step.prepare(); });
      step.prepare();
      contestant.rates.push_back(static_cast<double>(result.batch) / timed.seconds.median);
      contestant.variations.push_back(timed.seconds.variation());
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
