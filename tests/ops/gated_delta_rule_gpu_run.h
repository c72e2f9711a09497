// gated_delta_rule's kernels on a sample, for their tests: on a GPU, or on the CPU through the emulator.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "linescan/ops/gated_delta_rule/gpu_layout.h"
#include "linescan/ops/gated_delta_rule/sample.h"
#include "tests/support/gpu_sample.h"

namespace linescan::testing {

// Eight-byte numbers on the GPU.
inline const int64_t* take_numbers(GpuTensors& gpu, SampleTensor& memory,
                                   const std::vector<int64_t>& numbers) {
  memory = SampleTensor({static_cast<int64_t>(numbers.size())}, DType::kFloat64);
  std::memcpy(memory.view().data, numbers.data(), numbers.size() * sizeof(int64_t));
  return gpu.take(memory).as<int64_t>();
}

// What a test changes about a run.
struct Twist {
  int64_t largest_grid = kLargestGrid;
  bool upstream = true;            // whether there is a gradient of o
  bool of_q = true, of_k = true;   // whether their gradients are wanted
  bool final_state = true;         // whether it is wanted
  GatedDeltaRulePiece piece = {};  // of a backward pass, with states that the forward pass keeps
  bool keep = true;                // without, only the forward pass knows the piece
  int backward_passes = 1;         // behind one forward pass
  bool two_streams =
      false;              // backward, wherever its scans may come at once, however short they are
  bool in_place = false;  // final_state starts as initial_state and takes its place; forward only
};

// check, plan, forward and backward in a workspace full of NaN, or another filling; results come back to
// the sample. The kernels planned for one GPU run on every later one.
inline void run(GatedDeltaRuleSample& s, int filling = 0xFF, const Gpu& planned_for = test_gpu(),
                const Twist& twist = {}) {
  GpuTensors gpu;
  const bool heads_first =
      s.problem.q.shape != s.q.view().shape || s.problem.q.strides != s.q.view().strides;
  const auto take = [&](SampleTensor& tensor) {
    TensorView view = gpu.take(tensor);
    if (heads_first && view) {
      std::swap(view.shape[1], view.shape[2]);
      std::swap(view.strides[1], view.strides[2]);
    }
    return view;
  };
  GatedDeltaRuleProblem problem = s.problem;
  problem.q = take(s.q);
  problem.k = take(s.k);
  problem.v = take(s.v);
  problem.g = take(s.g);
  problem.beta = take(s.beta);
  problem.initial_state = gpu.take(s.initial);
  problem.inputs.A_log = gpu.take(s.A_log);
  problem.inputs.dt_bias = gpu.take(s.dt_bias);
  problem.o = take(s.o);
  if (twist.in_place) s.final_state.memory() = s.initial.memory();
  problem.final_state = twist.final_state ? gpu.take(s.final_state) : TensorView{};
  if (twist.in_place) problem.initial_state = problem.final_state;
  SampleTensor bounds;
  if (problem.packed) problem.bounds = take_numbers(gpu, bounds, s.bounds);
  const GatedDeltaRuleGradients gradients = {.o = twist.upstream ? take(s.go) : TensorView{},
                                             .final_state = gpu.take(s.gfinal),
                                             .q = twist.of_q ? take(s.gq) : TensorView{},
                                             .k = twist.of_k ? take(s.gk) : TensorView{},
                                             .v = take(s.gv),
                                             .g = take(s.gg),
                                             .beta = take(s.gbeta),
                                             .initial_state = gpu.take(s.ginitial),
                                             .A_log = gpu.take(s.gA_log),
                                             .dt_bias = gpu.take(s.gdt_bias)};
  check(problem);
  check_gpu(problem);
  check_gpu(gradients);
  SampleTensor states;
  GatedDeltaRulePiece piece = gpu_piece(size_of(problem), problem.packed);
  if (twist.piece.batch > 0) piece = twist.piece;
  if (twist.piece.batch > 0 && twist.keep) {
    states =
        SampleTensor({gpu_kept_states(size_of(problem), problem.packed, piece)}, DType::kFloat32);
    problem.states = gpu.take(states);
  }
  const GatedDeltaRuleSize size = size_of(problem);
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    auto how = plan(size, problem.packed, pass, planned_for, piece);
    for (DeltaLaunch* launch :
         {&how.records, &how.scan, &how.reverse_scan, &how.gradients, &how.ends, &how.chain})
      launch->grid = std::min(launch->grid, twist.largest_grid);
    if (twist.two_streams)
      how.scans_side_by_side = pass == Pass::kBackward && how.scan.grid > 0 &&
                               !how.corrections_take_place && !how.shares_walks;
    GpuWorkspace workspace(how.workspace_bytes, filling);
    if (pass == Pass::kForward)
      forward(problem, how, workspace.data(), {});
    else
      for (int i = 0; i < twist.backward_passes; ++i)
        backward(problem, gradients, how, workspace.data(), {});
    if (pass == Pass::kBackward || twist.in_place) gpu.bring_back();
    if (twist.in_place) return;
  }
}

// All that a forward and a backward pass leave behind.
inline std::vector<const SampleTensor*> results_of(const GatedDeltaRuleSample& s) {
  return {&s.o,  &s.final_state, &s.gq,     &s.gk,       &s.gv,
          &s.gg, &s.gbeta,       &s.gA_log, &s.gdt_bias, &s.ginitial};
}
inline void expect_same_bits(const GatedDeltaRuleSample& one, const GatedDeltaRuleSample& two) {
  const auto a = results_of(one), b = results_of(two);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i]->bytes(), b[i]->bytes());
}
// The same of samples that lie at other addresses.
inline void expect_same_numbers(const GatedDeltaRuleSample& one, const GatedDeltaRuleSample& two) {
  const auto numbers_of = [](const SampleTensor& tensor) {
    std::vector<uint64_t> numbers;
    if (tensor)
      for_each_index(tensor.view().shape, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
        numbers.push_back(std::bit_cast<uint64_t>(read_element(tensor.view(), i, j, k, l)));
      });
    return numbers;
  };
  const auto a = results_of(one), b = results_of(two);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(numbers_of(*a[i]), numbers_of(*b[i]));
}

}  // namespace linescan::testing
