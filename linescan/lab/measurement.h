// A network's throughput as its authors define it: one batch stays on the device, some steps warm up, the
// others are timed. Liu et al. 2024, arXiv:2401.10166, take 50 and 30.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "linescan/lab/breakdown.h"
#include "linescan/lab/step.h"
#include "linescan/lab/timed_work.h"

namespace linescan::lab {

struct Protocol {
  int64_t batch = 8;
  int warmup = 50, repetitions = 30;
  bool graph = false;  // on a GPU: steps recorded as a CUDA graph
};

// Where measurements are made, and who hears what happens on the way.
struct Bench {
  Compute compute;
  Protocol protocol;
  double products_per_second =
      0;  // floating-point operations of a large matrix product; 0: unknown
  Message say;
};

struct Measurement {
  std::string section, label;  // "sweep", "attention"
  StepKind kind = StepKind::kTraining;
  Precision precision = Precision::kFp32;
  int64_t size = 0;
  int64_t batch = 0, asked_batch = 0;  // 0: not even one image fits the memory
  double flop = 0;  // of one image: two a multiply-add of count_cost(), times passes
  double products_per_second = 0;
  Timed timed;

  bool fitted() const { return batch > 0; }
  double images_per_second() const;  // by the median; 0 if it did not fit, as in all of these
  double pixels_per_second() const;
  double flop_per_second() const;
  double share_of_peak() const;  // of products_per_second
};

// A network on the device of the bench.
ImageNetwork place_network(const ImageConfig& config, const Bench& bench);

// Steps of the kind on images of size x size; if memory does not suffice, on half the batch, and so on.
Measurement measure_network(const Bench& bench, const ImageConfig& config, StepKind kind,
                            int64_t size);

// What a step's time goes to: of a few more steps, the one that took the median time. `recording`, if
// given, becomes that step's. The batch is halved as above.
Breakdown break_down_step(const Bench& bench, const ImageConfig& config, StepKind kind,
                          int64_t size, Recording* recording = nullptr);

// Floating-point operations a second of a large matrix product in that precision, measured here: what a
// step can reach at most.
double measure_products(const Compute& compute);

nlohmann::json to_json(const Measurement& measurement, const Compute& compute);

}  // namespace linescan::lab
