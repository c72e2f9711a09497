// gated_delta_rule on a GPU: which kernels a pass is made of, in order, and in which pieces; zeros for tokens that belong to
// no packed sequence, and the sums for the parameters behind the gate.

#include <algorithm>
#include <utility>

#include "linescan/base/math.h"
#include "linescan/ops/device_code/between_blocks.cuh"
#include "linescan/ops/device_code/ordered_sums.h"
#include "linescan/ops/device_code/side_stream.h"
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

// sums: [rows, 2, value_heads]
void add_parameter_sums(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGradients& gradients,
                        const float* sums, int64_t rows, GpuStream stream) {
  if (!p.inputs.A_log) return;
  const int64_t heads = p.v.shape[2];
  OrderedSums totals;
  for (const auto& [which, result] :
       {std::pair{0, &gradients.A_log}, std::pair{1, &gradients.dt_bias}})
    if (*result)
      totals.add(sum_of_columns(sums, rows, 2 * heads, which * heads, heads, result->as<float>()));
  launch_ordered_sums("gated_delta_rule, sums of A_log and dt_bias", totals, stream);
}

// `count` places of a dimension from `first` on.
TensorView part_of(TensorView view, int dim, int64_t first, int64_t count) {
  if (!view) return view;
  view.data = view.as<std::byte>() + first * view.strides[dim] * size_of(view.dtype);
  view.shape[dim] = count;
  return view;
}

// A piece of a backward pass as a problem by itself.
struct Piece {
  GatedDeltaRuleProblem problem;
  GatedDeltaRuleGradients gradients;
  GatedDeltaRuleGpuPlan plan;
  DeltaKept kept;
};

// Of the whole problem. In the workspace is what nobody keeps: records, and states if segments are split.
DeltaKept kept_of(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGpuPlan& plan,
                  std::byte* workspace) {
  const int64_t boundaries = delta_segment_count(p, plan) - 1;
  DeltaKept kept = {plan.makes_records ? nullptr : workspace + plan.records_at};
  if (plan.piece.keeps_records) kept.records = p.states.as<std::byte>();
  if (plan.piece.keeps_states) {
    const GatedDeltaRuleSize size = size_of(p);
    const int64_t keys = plan.padded_keys;
    kept.states = kept.records + gpu_kept_records(size, plan.piece) * int64_t{sizeof(float)};
    kept.corrections = kept.states + gpu_kept_chunk_states(size, plan.piece) *
                                         int64_t{sizeof(float)} * keys / (keys + plan.chunk);
  }
  if (boundaries == 0 || !(p.states || plan.piece.split)) return kept;
  if (p.states) {
    kept.turned = p.states.as<float>() + gpu_kept_records(size_of(p), plan.piece);
    kept.boundaries = p.states.as<float>() + p.states.shape[0] - boundaries * plan.kept_step;
  } else {
    kept.boundaries = reinterpret_cast<float*>(workspace + plan.boundaries_at);
  }
  return kept;
}

// Calls run(p, gradients) for the heads of a piece, one after another: problems of their own.
template <class Run>
void for_each_heads(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGradients& gradients,
                    const GatedDeltaRuleGpuPlan& plan, const Run& run) {
  if (plan.piece.heads == 0) return run(p, gradients);
  const int64_t heads = p.q.shape[2], group = p.v.shape[2] / heads;
  for (int64_t first = 0; first < heads; first += plan.piece.heads) {
    const int64_t count = std::min(plan.piece.heads, heads - first);
    GatedDeltaRuleProblem part = p;
    GatedDeltaRuleGradients part_gradients = gradients;
    for (TensorView* view : {&part.q, &part.k, &part_gradients.q, &part_gradients.k})
      *view = part_of(*view, 2, first, count);
    for (const auto& [view, dim] : {std::pair{&part.v, 2},
                                    {&part.g, 2},
                                    {&part.beta, 2},
                                    {&part.initial_state, 1},
                                    {&part.inputs.A_log, 0},
                                    {&part.inputs.dt_bias, 0},
                                    {&part_gradients.o, 2},
                                    {&part_gradients.v, 2},
                                    {&part_gradients.g, 2},
                                    {&part_gradients.beta, 2},
                                    {&part_gradients.initial_state, 1},
                                    {&part_gradients.final_state, 1},
                                    {&part_gradients.A_log, 0},
                                    {&part_gradients.dt_bias, 0}})
      *view = part_of(*view, dim, first * group, count * group);
    run(part, part_gradients);
  }
}

// Calls run(piece) for the pieces of such a problem, those of a sequence from the last one to the first. What a piece needs is the
// state in front of it, which the forward pass kept, and the gradient of the one behind it, which the piece before it in
// this order left in the workspace.
template <class Run>
void for_each_piece(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGradients& gradients,
                    const GatedDeltaRuleGpuPlan& plan, std::byte* workspace, const Run& run) {
  const DeltaKept kept = kept_of(p, plan, workspace);
  if (plan.piece.batch >= p.q.shape[0] && plan.piece.tokens >= p.q.shape[1])
    return run(Piece{p, gradients, plan, kept});
  const int64_t batch = p.q.shape[0], length = p.q.shape[1];
  const int64_t last_start = (length - 1) / plan.piece.tokens * plan.piece.tokens;
  Piece piece{p, gradients, plan, {}};
  for (int64_t item = 0; item < batch; item += plan.piece.batch) {
    const int64_t items = std::min(plan.piece.batch, batch - item);
    const Shape state_shape = gpu_state_shape(p, items);
    const auto of_items = [&](const TensorView& view) { return part_of(view, 0, item, items); };
    // What is kept from a segment of the sequences on.
    const auto kept_from = [&](int64_t segment) -> DeltaKept {
      if (!kept.boundaries) return {.records = kept.records};
      return {kept.records,
              kept.turned + segment * plan.transition_step + item * (plan.transition_step / batch),
              kept.boundaries + segment * plan.kept_step + item * (plan.kept_step / batch)};
    };
    // Kept records of chunks from a token on; where a piece has several items, it has all of their chunks.
    const auto records_from = [&](int64_t start) {
      const int64_t chunk = item * ceil_div(length, plan.chunk) + start / plan.chunk;
      return kept.records + chunk * p.v.shape[2] * plan.record_bytes;
    };
    // A block leaves the next piece's gradient where it has read this piece's. Where segments are walked side by side
    // another block would: two places take turns.
    const auto carry = [&](int64_t start) {
      const int64_t which = plan.piece.split ? start / plan.piece.tokens % 2 : 0;
      const int64_t numbers = plan.piece.batch * (plan.kept_step / batch);
      return contiguous_view(workspace + plan.carry_at + which * numbers * int64_t{sizeof(float)},
                             DType::kFloat32, state_shape);
    };
    for (int64_t start = last_start; start >= 0; start -= plan.piece.tokens) {  // along the walk
      const int64_t tokens = std::min(plan.piece.tokens, length - start);
      const int64_t first = p.reverse ? length - start - tokens : start;
      const int64_t segment = start / plan.piece.segment;
      const auto of_tokens = [&](const TensorView& view) {
        return part_of(of_items(view), 1, first, tokens);
      };
      for (const auto view :
           {&GatedDeltaRuleProblem::q, &GatedDeltaRuleProblem::k, &GatedDeltaRuleProblem::v,
            &GatedDeltaRuleProblem::g, &GatedDeltaRuleProblem::beta})
        piece.problem.*view = of_tokens(p.*view);
      for (const auto view : {&GatedDeltaRuleGradients::o, &GatedDeltaRuleGradients::q,
                              &GatedDeltaRuleGradients::k, &GatedDeltaRuleGradients::v,
                              &GatedDeltaRuleGradients::g, &GatedDeltaRuleGradients::beta})
        piece.gradients.*view = of_tokens(gradients.*view);
      piece.kept = kept_from(segment);
      if (plan.piece.keeps_records) piece.kept.records = records_from(start);
      if (item == 0) {  // pieces are whole sequences where there are such
        piece.kept.states = kept.states;
        piece.kept.corrections = kept.corrections;
      }
      piece.problem.initial_state =
          segment == 0
              ? of_items(p.initial_state)
              : contiguous_view(kept_from(segment - 1).boundaries, DType::kFloat32, state_shape);
      piece.gradients.initial_state = start == 0 ? of_items(gradients.initial_state) : carry(start);
      piece.gradients.final_state =
          start == last_start ? of_items(gradients.final_state) : carry(start + plan.piece.tokens);
      piece.plan.chunks = items * ((tokens + plan.chunk - 1) / plan.chunk);
      run(piece);
      piece.plan.parameter_sums_at += 2 * piece.plan.chunks * p.v.shape[2] * int64_t{sizeof(float)};
    }
  }
}

// Of the blocks that share walks; they leave zeros behind.
void clear_signals(const GatedDeltaRuleGpuPlan& plan, std::byte* workspace, GpuStream stream) {
  if (plan.shares_walks)
    fill_zeros("gated_delta_rule, signals", workspace + plan.signals_at, plan.signals_bytes,
               stream);
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
  clear_signals(plan, workspace, stream);
  const DeltaKept kept = kept_of(p, plan, workspace);
  launch_delta_records(p, plan, kept, workspace, stream);
  launch_delta_scan(p, plan, kept, workspace, stream);
}

void backward(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGradients& gradients,
              const GatedDeltaRuleGpuPlan& plan, std::byte* workspace, GpuStream stream) {
  launch_delta_bounds(p, workspace, stream);
  OutsideArgs results;
  for (const TensorView* result :
       {&gradients.q, &gradients.k, &gradients.v, &gradients.g, &gradients.beta})
    results.add(*result);
  clear_outside(p, results, workspace, stream);
  const auto add_sums = [&](const GatedDeltaRuleProblem& of,
                            const GatedDeltaRuleGradients& its_gradients, int64_t rows) {
    add_parameter_sums(of, its_gradients, delta_parameter_sums(plan, workspace), rows, stream);
  };
  if (plan.whole_sequences) {
    launch_delta_sequence_backward(p, gradients, plan, workspace, stream);
    return add_sums(p, gradients, size_of(p).sequences);
  }
  clear_signals(plan, workspace, stream);
  for_each_heads(
      p, gradients, plan,
      [&](const GatedDeltaRuleProblem& of, const GatedDeltaRuleGradients& its_gradients) {
        int64_t sums = 0;
        for_each_piece(of, its_gradients, plan, workspace, [&](const Piece& piece) {
          if (!plan.piece.keeps_records)
            launch_delta_records(piece.problem, piece.plan, piece.kept, workspace, stream);
          const bool wants_states = piece.kept.states == nullptr;
          const auto find_states = [&](GpuStream where) {
            launch_delta_scan(piece.problem, piece.plan, piece.kept, workspace, where);
          };
          const auto scan_in_reverse = [&] {
            launch_delta_reverse_scan(piece.problem, piece.gradients, piece.plan, piece.kept,
                                      workspace, stream);
          };
          if (wants_states && plan.scans_side_by_side) {
            SideStream side(stream);
            scan_in_reverse();  // the longer one
            find_states(side.stream());
            side.join();
          } else {
            if (wants_states && !plan.corrections_take_place) find_states(stream);
            scan_in_reverse();
            if (wants_states && plan.corrections_take_place) find_states(stream);
          }
          launch_delta_gradients(piece.problem, piece.gradients, piece.plan, piece.kept, workspace,
                                 stream);
          sums += piece.plan.chunks;
        });
        add_sums(of, its_gradients, sums);
      });
}

}  // namespace linescan
