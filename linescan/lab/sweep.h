// Throughput against image size: a VMamba, whose cost grows with the pixels, beside a plain vision
// transformer, whose attention grows with their square, and a plain stack of convolutions, both with as
// many parameters.
#pragma once

#include <string>
#include <vector>

#include "linescan/lab/crossing.h"
#include "linescan/lab/measurement.h"

namespace linescan::lab {

struct Curve {
  std::string label;  // the model's name, "attention", "conv"
  int64_t parameters = 0;
  std::vector<Measurement> training, inference;  // one a size
};

struct Sweep {
  std::vector<int64_t> sizes;         // rising
  std::vector<Curve> curves;          // ours first
  std::vector<std::string> findings;  // where the lead changes, a sentence a rival and step; not
                                      // told from fewer than three repetitions
};

// `sizes` in any order, `rivals` without repetition. Throws InvalidArgument if there are no sizes, or one
// is too small for a network: before anything is measured.
Sweep sweep_resolutions(const Bench& bench, const std::string& name, const VMambaConfig& config,
                        std::vector<int64_t> sizes, const std::vector<PlainKind>& rivals);

// Ours against theirs, at every size of two curves' measurements. Leads within the deviations of both
// measurements are none.
std::vector<RatePoint> rate_points(const std::vector<Measurement>& ours,
                                   const std::vector<Measurement>& theirs);

}  // namespace linescan::lab
