#include "linescan/cli/compute_options.h"

namespace linescan::cli {

void add_compute_options(CLI::App& command, ComputeOptions& options) {
  command.add_option("--device", options.device, "cpu (default), cuda or cuda:N");
  command.add_option("--precision", options.precision,
                     "fp32 (default), tf32, bf16 or fp16; on the CPU fp32 or bf16");
}

}  // namespace linescan::cli
