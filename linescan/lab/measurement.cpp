#include "linescan/lab/measurement.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "linescan/lab/op_recorder.h"
#include "linescan/lab/out_of_memory.h"

namespace linescan::lab {
namespace {

// run(batch) on the batch of the protocol, or on as much of it as fits.
int64_t run_fitting(const Bench& bench, int64_t size, const std::function<void(int64_t)>& run) {
  const auto halved = [&](int64_t too_large) {
    give_memory_back(bench.compute);
    if (bench.say)
      bench.say(fmt::format("out of memory with {} images of {} x {}; {}", too_large, size, size,
                            too_large > 1 ? fmt::format("trying {}", too_large / 2) : "giving up"));
  };
  return run_halving(bench.protocol.batch, run, halved);
}

}  // namespace

double Measurement::images_per_second() const {
  return fitted() ? static_cast<double>(batch) / timed.seconds.median : 0;
}
double Measurement::pixels_per_second() const {
  return images_per_second() * static_cast<double>(size * size);
}
double Measurement::flop_per_second() const { return images_per_second() * flop; }
double Measurement::share_of_peak() const {
  return products_per_second > 0 ? flop_per_second() / products_per_second : 0;
}

ImageNetwork place_network(const ImageConfig& config, const Bench& bench) {
  torch::manual_seed(0);
  ImageNetwork network = make_image_network(config);
  network->to(bench.compute.device);
  return network;
}

Measurement measure_network(const Bench& bench, const ImageConfig& config, StepKind kind,
                            int64_t size) {
  Measurement result;
  result.kind = kind;
  result.precision = bench.compute.precision;
  result.size = size;
  result.asked_batch = bench.protocol.batch;
  result.products_per_second = bench.products_per_second;
  result.flop =
      2.0 * static_cast<double>(count_cost(config, size, size).multiply_adds * passes(kind));
  give_memory_back(bench.compute);
  const ImageNetwork network = place_network(config, bench);
  result.batch = run_fitting(bench, size, [&](int64_t batch) {
    Step step(network, config, bench.compute, kind, batch, size);
    result.timed = time_work(
        bench.compute,
        {.warmup = bench.protocol.warmup,
         .repetitions = bench.protocol.repetitions,
         .graph = bench.protocol.graph},
        [&] { step.run(); }, [&] { step.prepare(); }, bench.say);
    step.prepare();
  });
  return result;
}

Breakdown break_down_step(const Bench& bench, const ImageConfig& config, StepKind kind,
                          int64_t size, Recording* recording) {
  constexpr int kWarmUp = 3, kRecorded = 5;  // of which the one that took the median time counts
  const ImageNetwork network = place_network(config, bench);
  std::vector<Recording> recorded;
  const int64_t fitting = run_fitting(bench, size, [&](int64_t batch) {
    Step step(network, config, bench.compute, kind, batch, size);
    for (int i = 0; i < kWarmUp; ++i) {
      step.prepare();
      step.run();
    }
    recorded.clear();
    const auto record = [&](double pause) {
      step.prepare();
      return record_operators(
          bench.compute, [&] { step.run(); }, pause);
    };
    const double pause = bench.compute.on_gpu() ? pause_for(record(0)) : 0;
    for (int i = 0; i < kRecorded; ++i) recorded.push_back(record(pause));
  });
  if (fitting == 0) return {};  // whatever was recorded of one image before memory ran out
  const auto middle = recorded.begin() + static_cast<std::ptrdiff_t>(recorded.size() / 2);
  std::nth_element(recorded.begin(), middle, recorded.end(),
                   [](const Recording& a, const Recording& b) { return a.seconds < b.seconds; });
  Breakdown result = break_down(*middle);
  result.batch = fitting;
  result.asked_batch = bench.protocol.batch;
  if (recording != nullptr) *recording = std::move(*middle);
  return result;
}

double measure_products(const Compute& compute) {
  const bool half = compute.precision == Precision::kBf16 || compute.precision == Precision::kFp16;
  const int64_t side = !compute.on_gpu() ? 1024 : half ? 8192 : 4096;
  const at::ScalarType type = compute.precision == Precision::kBf16   ? at::kBFloat16
                              : compute.precision == Precision::kFp16 ? at::kHalf
                                                                      : at::kFloat;
  const at::Tensor a = to_device(torch::randn({side, side}), compute).to(type);
  const at::Tensor b = to_device(torch::randn({side, side}), compute).to(type);
  const Timed timed = time_work(compute, {.warmup = 3, .repetitions = 10}, [&] { at::mm(a, b); });
  const auto edge = static_cast<double>(side);
  return 2 * edge * edge * edge / timed.seconds.median;
}

nlohmann::json to_json(const Measurement& measurement, const Compute& compute) {
  nlohmann::json document = {{"section", measurement.section},
                             {"label", measurement.label},
                             {"step", name_of(measurement.kind)},
                             {"precision", linescan::name_of(measurement.precision)},
                             {"size", measurement.size},
                             {"batch", measurement.batch},
                             {"asked_batch", measurement.asked_batch}};
  if (!measurement.fitted()) return document;
  document.update(to_json(measurement.timed, compute));
  document.update({{"images_per_s", measurement.images_per_second()},
                   {"pixels_per_s", measurement.pixels_per_second()},
                   {"flop_per_s", measurement.flop_per_second()},
                   {"share_of_peak", measurement.share_of_peak()}});
  return document;
}

}  // namespace linescan::lab
