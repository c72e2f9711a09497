// The two halves of `linescan bench`.
#pragma once

#include <CLI/CLI.hpp>

namespace linescan::cli {

void add_bench_op(CLI::App& bench);
void add_bench_network(CLI::App& bench);

}  // namespace linescan::cli
