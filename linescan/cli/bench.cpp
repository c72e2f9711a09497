// linescan bench: how fast operators and networks run on this machine.

#include "linescan/cli/bench.h"

#include "linescan/cli/command.h"

namespace linescan::cli {

void add_bench(CLI::App& command) {
  command.require_subcommand(1);
  add_bench_op(command);
  add_bench_network(command);
  add_example(command, "linescan bench network vmamba_tiny_s1l8 --size 224 --batch 8");
}

}  // namespace linescan::cli
