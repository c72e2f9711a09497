// --device and --precision, as every command that runs a network has them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "linescan/models/compute.h"

namespace linescan::cli {

struct ComputeOptions {
  std::string device = "cpu", precision = "fp32";

  // Throws as open_compute() does.
  Compute open() const { return open_compute(device, precision); }
};

// `options` must live as long as the command.
void add_compute_options(CLI::App& command, ComputeOptions& options);

// What works: the GPU by its name, or "1 thread", "8 threads" of the CPU.
std::string describe_workers(const Compute& compute);

}  // namespace linescan::cli
