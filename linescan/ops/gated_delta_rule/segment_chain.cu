// gated_delta_rule, the chain over the segments of a sequence that were walked alone. What a walk left at the boundary
// behind its segment, or, of gradients, in front of it, becomes the state there:
//
//   S_i <- S_i + M_{i-1} S_{i-1}          i = 2 ..: boundaries in order; M: the transition of the segment between
//   gS_i <- gS_i + M_i^T gS_{i+1}         from the last but one to the first
//
// A block takes eight columns of V of a sequence and value head along all boundaries, its columns of the state in front in
// shared memory. A warp has up to 128 keys of the result and an equal share of the sum's terms; a thread reads the numbers
// of the transition some terms, at best a whole boundary, ahead. The warps' parts are added up in order.
//
// Numerics:  float32.
// Reference: reference.cpp beside this file, through the scans; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/device_code/predicated.cuh"
#include "linescan/ops/gated_delta_rule/gpu_kernels.h"
#include "linescan/ops/gated_delta_rule/gpu_layout.h"
#include "linescan/ops/gated_delta_rule/gpu_segments.cuh"

namespace linescan {
namespace {

struct ChainArgs {
  DeltaSequences sequences;
  DeltaSegments segments;
  int64_t items;  // sequences x value heads x parts of V
  int value_heads, parts, K, V;
  bool backwards;
};

template <int kKeys>
__global__ void __launch_bounds__(DeltaLayout::kChainThreads, 2) chain_kernel(ChainArgs args) {
  constexpr int kColumns = DeltaLayout::kChainColumns, kThreads = DeltaLayout::kChainThreads;
  constexpr int kKeyWarps = kKeys > 128 ? kKeys / 128 : 1, kTermWarps = kThreads / 32 / kKeyWarps;
  constexpr int kOwnKeys = kKeys < 128 ? kKeys / 32 : 4;  // of a thread: 32 apart
  constexpr int kOwnTerms = kKeys / kTermWarps;
  constexpr int kAhead = kKeys > 128 ? 8 : kOwnTerms;  // terms: what the registers hold
  constexpr int kOwnNumbers = kKeys * kColumns / kThreads, kOwnStep = kThreads / kColumns;

  float* const before = reinterpret_cast<float*>(shared_memory());  // [keys, columns]
  float* const parts = before + kKeys * kColumns;                   // [term warps, keys, columns]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_key = warp % kKeyWarps * 128 + lane, term_warp = warp / kKeyWarps;
  const int first_term = term_warp * kOwnTerms;

  for (int64_t item = blockIdx.x; item < args.items; item += gridDim.x) {
    const int first_column = static_cast<int>(item % args.parts) * kColumns;
    const int head = static_cast<int>(item / args.parts % args.value_heads);
    const int64_t sequence = item / args.parts / args.value_heads;
    const int64_t first_segment = args.segments.first_of(args.sequences, sequence);
    const int64_t boundaries = args.segments.count_of(args.sequences, sequence) - 1;
    const int64_t steps = boundaries - 1;
    if (steps < 1) continue;
    // The first step makes a state of what lies at this boundary.
    const int64_t first_to = args.backwards ? boundaries - 1 : 2;
    const auto boundary = [&](int64_t number) {
      return args.segments.boundary(first_segment + number).of(sequence, head);
    };
    // The thread's numbers of a [keys, columns] part of a state: of one column, keys kOwnStep apart.
    const DeltaStates& strides = args.segments.boundaries;
    const int own_key = static_cast<int>(threadIdx.x) / kColumns,
              own_column = first_column + static_cast<int>(threadIdx.x) % kColumns;
    const int own_keys = own_column < args.V ? args.K - own_key : 0;
    const int64_t own_step = kOwnStep * strides.key;
    const auto own_of = [&](int64_t number) {
      return boundary(number) + own_key * strides.key + own_column * strides.value;
    };
    // Calls visit(i, number, address, whether it is one) for them, `state` being the first one's.
    const auto for_each_own = [&](float* state, const auto& visit) {
#pragma unroll
      for (int i = 0; i < kOwnNumbers; ++i)
        visit(i, static_cast<int>(threadIdx.x) + i * kThreads, state + i * own_step,
              i * kOwnStep < own_keys);
    };
    // From step to step, of neighbouring boundaries; and from the last of a transition's slices of terms to the next one's first.
    const int64_t next_state =
        args.backwards ? -args.segments.boundary_step : args.segments.boundary_step;
    const int64_t next_transition =
        (args.backwards ? -args.segments.transition_step : args.segments.transition_step) -
        (kOwnTerms - kAhead) * kKeys;
    float of[kAhead][kOwnKeys];  // [terms, keys] of a transition
    const auto read = [&](int term, const float* from) {
#pragma unroll
      for (int k = 0; k < kOwnKeys; ++k) of[term][k] = from[term * kKeys + 32 * k];
    };
    const float* at =
        args.segments.transition(first_segment + (args.backwards ? first_to : first_to - 1))
            .of(sequence, head) +
        first_term * kKeys + first_key;
#pragma unroll
    for (int term = 0; term < kAhead; ++term) read(term, at);
    for_each_own(own_of(args.backwards ? boundaries : 1),
                 [&](int, int number, const float* from, bool exists) {
                   before[number] = load_if(exists, from);
                 });
    float* state = own_of(first_to);
    __syncthreads();

    for (int64_t step = 0; step < steps; ++step, state += next_state) {
      float own[kOwnNumbers];
      for_each_own(state, [&](int i, int, const float* from, bool exists) {
        own[i] = load_if(exists, from);
      });
      float sums[kOwnKeys][kColumns] = {};
#pragma unroll 1
      for (int slice = 0; slice < kOwnTerms; slice += kAhead) {
        const bool is_last = slice + kAhead == kOwnTerms;
        if (!is_last)
          at += kAhead * kKeys;
        else if (step + 1 < steps)
          at += next_transition;
        const float* const rows = before + (first_term + slice) * kColumns;
#pragma unroll
        for (int term = 0; term < kAhead; ++term) {
          float columns[kColumns];
#pragma unroll
          for (int c = 0; c < kColumns; c += 4) {
            const float4 four = *reinterpret_cast<const float4*>(rows + term * kColumns + c);
            columns[c] = four.x, columns[c + 1] = four.y;
            columns[c + 2] = four.z, columns[c + 3] = four.w;
          }
#pragma unroll
          for (int k = 0; k < kOwnKeys; ++k)
#pragma unroll
            for (int c = 0; c < kColumns; ++c) sums[k][c] += of[term][k] * columns[c];
          read(term, at);
        }
      }
#pragma unroll
      for (int k = 0; k < kOwnKeys; ++k)
#pragma unroll
        for (int c = 0; c < kColumns; c += 4)
          *reinterpret_cast<float4*>(parts + (term_warp * kKeys + first_key + 32 * k) * kColumns +
                                     c) =
              make_float4(sums[k][c], sums[k][c + 1], sums[k][c + 2], sums[k][c + 3]);
      __syncthreads();
      for_each_own(state, [&](int i, int number, float* to, bool exists) {
        float sum = 0;
#pragma unroll
        for (int part = 0; part < kTermWarps; ++part)
          sum += parts[part * kKeys * kColumns + number];
        sum += own[i];
        before[number] = sum;
        store_if(exists, to, sum);
      });
      __syncthreads();
    }
  }
}

}  // namespace

void launch_delta_chain(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGpuPlan& plan,
                        const DeltaSegments& segments, std::byte* workspace, GpuStream stream) {
  if (segments.count < 3) return;
  const GatedDeltaRuleSize size = size_of(p);
  const int64_t parts = (size.V + DeltaLayout::kChainColumns - 1) / DeltaLayout::kChainColumns;
  const ChainArgs args = {delta_sequences(p, workspace),
                          segments,
                          size.sequences * size.value_heads * parts,
                          static_cast<int>(size.value_heads),
                          static_cast<int>(parts),
                          static_cast<int>(size.K),
                          static_cast<int>(size.V),
                          plan.pass == Pass::kBackward};
  dispatch_keys(plan.padded_keys, [&]<int kKeys>() {
    launch("gated_delta_rule, chain of segments", chain_kernel<kKeys>, shape_of(plan.chain), stream,
           args);
  });
}

}  // namespace linescan
