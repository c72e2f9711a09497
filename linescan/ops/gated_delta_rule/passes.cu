// gated_delta_rule on a GPU: which kernels a pass is made of, in order, zeros for tokens that belong to no packed
// sequence, and the sums for the parameters behind the gate.

#include <utility>

#include "linescan/ops/device_code/ordered_sums.h"
#include "linescan/ops/gated_delta_rule/gpu_kernels.h"

namespace linescan {
namespace {

// A tensor [1, length, heads, ..] as bytes.
struct ByteRows {
  unsigned char* data;
  int64_t token, head;  // strides
  int heads, row_bytes;
};
constexpr int kMostTensors = 5, kOutsideThreads = 256;
struct OutsideArgs {
  ByteRows tensors[kMostTensors];
  int count = 0;

  void add(const TensorView& view) {
    if (!view || view.shape.rank() < 3) return;
    const int64_t number = size_of(view.dtype);
    tensors[count++] = {view.as<unsigned char>(), view.strides[1] * number,
                        view.strides[2] * number, static_cast<int>(view.shape[2]),
                        static_cast<int>((view.shape.rank() > 3 ? view.shape[3] : 1) * number)};
  }
};

// A block takes every gridDim-th token in front of the first bound or behind the last.
__global__ void __launch_bounds__(kOutsideThreads)
    outside_kernel(OutsideArgs args, const int64_t* __restrict__ bounds, int64_t sequences,
                   int64_t length) {
  const int64_t begin = bounds[0], end = sequences > 0 ? bounds[sequences] : begin;
  for (int64_t token = blockIdx.x; token < length; token += gridDim.x) {
    if (token >= begin && token < end) continue;
    for (int i = 0; i < args.count; ++i) {
      const ByteRows& rows = args.tensors[i];
      for (int64_t at = threadIdx.x; at < int64_t{1} * rows.heads * rows.row_bytes;
           at += blockDim.x)
        rows.data[token * rows.token + at / rows.row_bytes * rows.head + at % rows.row_bytes] = 0;
    }
  }
}

void clear_outside(const GatedDeltaRuleProblem& p, const OutsideArgs& args, std::byte* workspace,
                   GpuStream stream) {
  const int64_t length = p.q.shape[1];
  if (p.packed)
    launch("gated_delta_rule, tokens of no sequence", outside_kernel,
           {min(length, int64_t{1024}), kOutsideThreads}, stream, args,
           reinterpret_cast<const int64_t*>(workspace), p.packed_sequences, length);
}

void add_parameter_sums(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGradients& gradients,
                        const GatedDeltaRuleGpuPlan& plan, std::byte* workspace, GpuStream stream) {
  if (!p.inputs.A_log) return;
  const float* const sums = delta_parameter_sums(plan, workspace);
  const int64_t rows = plan.whole_sequences ? size_of(p).sequences : plan.chunks;
  const int64_t heads = p.v.shape[2];
  OrderedSums totals;
  for (const auto& [which, result] :
       {std::pair{0, &gradients.A_log}, std::pair{1, &gradients.dt_bias}})
    if (*result)
      totals.add(sum_of_columns(sums, rows, 2 * heads, which * heads, heads, result->as<float>()));
  launch_ordered_sums("gated_delta_rule, sums of A_log and dt_bias", totals, stream);
}

}  // namespace

void forward(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGpuPlan& plan,
             std::byte* workspace, GpuStream stream) {
  launch_delta_bounds(p, workspace, stream);
  OutsideArgs outputs;
  outputs.add(p.o);
  clear_outside(p, outputs, workspace, stream);
  if (plan.mode == GatedDeltaRuleMode::kRecurrent)
    return launch_delta_recurrence(p, plan, workspace, stream);
  if (plan.whole_sequences) return launch_delta_sequence_forward(p, plan, workspace, stream);
  launch_delta_records(p, plan, workspace, stream);
  launch_delta_scan(p, plan, workspace, stream);
}

void backward(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGradients& gradients,
              const GatedDeltaRuleGpuPlan& plan, std::byte* workspace, GpuStream stream) {
  launch_delta_bounds(p, workspace, stream);
  OutsideArgs results;
  for (const TensorView* result :
       {&gradients.q, &gradients.k, &gradients.v, &gradients.g, &gradients.beta})
    results.add(*result);
  clear_outside(p, results, workspace, stream);
  if (plan.whole_sequences) {
    launch_delta_sequence_backward(p, gradients, plan, workspace, stream);
  } else {
    launch_delta_records(p, plan, workspace, stream);
    launch_delta_scan(p, plan, workspace, stream);
    launch_delta_reverse_scan(p, gradients, plan, workspace, stream);
    launch_delta_gradients(p, gradients, plan, workspace, stream);
  }
  add_parameter_sums(p, gradients, plan, workspace, stream);
}

}  // namespace linescan
