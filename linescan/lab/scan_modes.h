// Training throughput by the routes of the scan, over many rounds: how far it varies, and what of that
// variation the modes share. docs/throughput.md says how to read it.
#pragma once

#include <string>
#include <vector>

#include "linescan/lab/measurement.h"

namespace linescan::lab {

struct ModeResult {
  std::string mode;           // "one", "two", "cross", "cascade", and "two, new images"
  std::vector<double> rates;  // images a second, one a round; none where memory did not suffice
  Statistics rate;
  // Of the rate divided by that of cross in the same round: what is left of the variation when clocks,
  // temperature and neighbours, which all modes of a round feel, are divided out. Of no values where
  // one of the two has no rates.
  Statistics relative;
  double within = 0;  // the mean variation of single steps inside of a round
  double drift = 0;   // the last quarter of the rounds over the first, less 1
};

struct ScanModes {
  int64_t batch = 0, size = 0;  // batch 0: not even one image fits the memory
  int rounds = 0, steps = 0;
  std::vector<ModeResult> modes;
};

// Each round times every mode in turn, so that what changes with time hits all of them. The last mode
// scans in two directions and gets new images every round: were the work to depend on the data, it
// would vary more than the one that keeps its images. Memory holds one network's weights, which all
// modes compute with, and two batches; a mode for which it does not suffice has no rates.
ScanModes compare_scan_modes(const Bench& bench, const VMambaConfig& config, int64_t size,
                             int rounds);

}  // namespace linescan::lab
