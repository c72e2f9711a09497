// How a binding runs one pass of an operator on the CPU: with a plan for PyTorch's threads, a workspace
// that LibTorch allocates, and those threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cstddef>

#include "linescan/base/activity.h"
#include "linescan/binding/tensors.h"
#include "linescan/ops/pass.h"

namespace linescan {

// Calls run(plan, workspace, parallel_for) for a checked problem.
template <class Problem, class Run>
void with_cpu_plan(const Problem& problem, Pass pass, const Run& run) {
  const auto how = plan(size_of(problem), pass, int64_t{at::get_num_threads()});
  const OperatorRunning running(how);
  const at::Tensor workspace = at::empty({how.workspace_bytes}, at::kByte);
  run(how, static_cast<std::byte*>(workspace.data_ptr()), torch_parallel_for());
}

}  // namespace linescan
