// The command line of `linescan throughput`, read and checked before anything is measured.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "linescan/models/networks/image_network.h"

namespace linescan::cli {

// Of a number that was not given.
inline constexpr int64_t kNotGiven = std::numeric_limits<int64_t>::min();

struct ThroughputOptions {
  std::string model;
  std::vector<std::string> settings;
  int64_t size = kNotGiven, batch = kNotGiven, threads = kNotGiven, rounds = kNotGiven;
  std::string device = "cpu", precisions = "fp32";
  int64_t warmup = 50, repetitions = 30;
  bool with_optimizer = false, graph = false;

  std::vector<std::string> sweep;  // "resolution" and the sizes; empty: none
  std::string against, states, plan_device;
  bool ladder = false, scan_modes = false;

  std::string trace, html;  // files to write
  bool json = false, csv = false;
};

void add_options(CLI::App& command, ThroughputOptions& options);

// What the options mean. Throws InvalidArgument, and Unsupported for a device or precision that is not
// to be had here.
struct ThroughputPlan {
  ImageConfig config;
  int64_t size = 0, batch = 0, rounds = 0;
  std::vector<std::string> precisions;
  std::vector<int64_t> sizes, states;
  std::vector<PlainKind> rivals;

  // The network of the measurements that know VMambas only.
  const VMambaConfig& vmamba() const { return std::get<VMambaConfig>(config); }
};
ThroughputPlan plan_of(const ThroughputOptions& options);

}  // namespace linescan::cli
