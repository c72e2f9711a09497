#include "linescan/cli/compute_options.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

namespace linescan::cli {

void add_compute_options(CLI::App& command, ComputeOptions& options) {
  command.add_option("--device", options.device, "cpu (default), cuda or cuda:N");
  command.add_option("--precision", options.precision,
                     "fp32 (default), tf32, bf16 or fp16; on the CPU fp32 or bf16");
}

std::string describe_workers(const Compute& compute) {
  if (compute.on_gpu()) return describe(compute);
  const int threads = at::get_num_threads();
  return fmt::format("{} {}", threads, threads == 1 ? "thread" : "threads");
}

}  // namespace linescan::cli
