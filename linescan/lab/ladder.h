// The acceleration of VMamba step by step, as its authors tell it, measured here: from the vanilla design
// by way of implementation (a to c) and of architecture (d to g) to the network that was published last.
// Liu et al. 2024, arXiv:2401.10166, section 4.3, with its figures for an A100 and 128 images.
#pragma once

#include <string>
#include <vector>

#include "linescan/lab/measurement.h"

namespace linescan::lab {

struct Rung {
  std::string step;    // "vanilla", "a", ..., "g"
  std::string change;  // what is new
  VMambaConfig config;
  // Images a second; 0 where the network is not the authors' own.
  double paper_inference = 0, paper_training = 0;
};

// Channels, classes and input channels are the model's; the authors' are those of vmamba_tiny_s1l8.
// Vanilla runs by permuted copies, a and b by einsums (reference_scan.h), everything from c on by ours.
std::vector<Rung> acceleration_ladder(const VMambaConfig& model);

struct RungResult {
  Rung rung;
  int64_t parameters = 0;
  Measurement inference, training;
};

std::vector<RungResult> climb_ladder(const Bench& bench, const VMambaConfig& model, int64_t size);

}  // namespace linescan::lab
