#include "linescan/lab/sweep.h"

#include <fmt/format.h>

#include <algorithm>

#include "linescan/base/error.h"

namespace linescan::lab {

std::vector<RatePoint> rate_points(const std::vector<Measurement>& ours,
                                   const std::vector<Measurement>& theirs) {
  std::vector<RatePoint> points;
  for (std::size_t i = 0; i < ours.size() && i < theirs.size(); ++i)
    points.push_back({static_cast<double>(ours[i].size), ours[i].images_per_second(),
                      theirs[i].images_per_second(),
                      ours[i].timed.seconds.variation() + theirs[i].timed.seconds.variation()});
  return points;
}

Sweep sweep_resolutions(const Bench& bench, const std::string& name, const VMambaConfig& config,
                        std::vector<int64_t> sizes, const std::vector<PlainKind>& rivals) {
  if (sizes.empty()) throw_error<InvalidArgument>("sweep: no sizes, expected at least one");
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  Sweep sweep;
  sweep.sizes = sizes;
  std::vector<ImageConfig> configs = {config};
  sweep.curves.push_back({name, 0, {}, {}});
  for (const PlainKind kind : rivals) {
    configs.emplace_back(rival_of(config, kind));
    sweep.curves.push_back({std::string(name_of(kind)), 0, {}, {}});
  }
  for (std::size_t i = 0; i < configs.size(); ++i)
    for (const int64_t size : sizes)
      sweep.curves[i].parameters = count_cost(configs[i], size, size).parameters;
  for (const int64_t size : sizes)
    for (std::size_t i = 0; i < configs.size(); ++i) {
      Curve& curve = sweep.curves[i];
      if (bench.say) bench.say(fmt::format("sweep: {} at {} pixels", curve.label, size));
      for (const StepKind kind : {StepKind::kTraining, StepKind::kInference}) {
        Measurement measured = measure_network(bench, configs[i], kind, size);
        measured.section = "sweep";
        measured.label = curve.label;
        (kind == StepKind::kTraining ? curve.training : curve.inference)
            .push_back(std::move(measured));
      }
    }
  constexpr int kFewest = 3;  // that a coefficient of variation says something about
  const bool told = bench.protocol.repetitions >= kFewest;
  const Curve& ours = sweep.curves.front();
  for (std::size_t i = 1; i < sweep.curves.size(); ++i) {
    const Curve& theirs = sweep.curves[i];
    for (const auto member : {&Curve::training, &Curve::inference})
      sweep.findings.push_back(fmt::format(
          "{}: {}.", member == &Curve::training ? "training" : "inference",
          told ? describe_crossings(rate_points(ours.*member, theirs.*member), name, theirs.label)
               : fmt::format("no lead or crossing of {} and {} can be told from fewer than {} "
                             "repetitions",
                             name, theirs.label, kFewest)));
  }
  return sweep;
}

}  // namespace linescan::lab
