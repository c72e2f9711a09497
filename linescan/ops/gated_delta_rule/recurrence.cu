// gated_delta_rule token by token: whole sequences in mode "recurrent", and the step, one token for each of
// many sequences whose states lie in a pool.
//
// A block carries 32 columns of the state of one sequence and value head, a column a lane; its warps share
// the rows. A token costs two passes over these registers: S^T k and S^T q in one, S itself in the
// other. Sums over K (and those of the norms and of q . k) meet in shared memory, once a token.
//
// Numerics:  float32, inputs not rounded, o rounded once.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/base/math.h"
#include "linescan/ops/gated_delta_rule/gpu_kernels.h"
#include "linescan/ops/gated_delta_rule/gpu_layout.h"

namespace linescan {
namespace {

template <typename T>
struct RecurrenceArgs {
  DeltaInputs<T> in;
  DeltaSequences sequences;
  DeltaStates initial, final_state;
  DeltaRows<T> o;
  const int64_t* slots;  // of a step: where the state of sequence i is; null: at i
  int64_t pool, items;   // states there are; sequences x value heads x parts of V
};

template <int kKeys>
struct RecurrenceSizes {
  static constexpr DeltaLayout kLayout{4, kKeys};
  static constexpr int kRows = kLayout.recurrence_rows(), kWarps = kLayout.recurrence_warps();
};

// Sums over K of one token, by warp: S^T k and S^T q of 32 columns, |k|^2, |q|^2, q . k.
struct TokenSums {
  float sk[32], sq[32], kk, qq, qk;
};

template <typename T, int kKeys>
__global__ void __launch_bounds__(256) recurrence_kernel(RecurrenceArgs<T> args) {
  constexpr int kRows = RecurrenceSizes<kKeys>::kRows, kWarps = RecurrenceSizes<kKeys>::kWarps;
  constexpr int kLoads = kKeys / (32 * kWarps) + (kKeys < 32 * kWarps);
  // Three tokens, because a warp may be one ahead of another that still reads; two of the sums.
  __shared__ float k_of[3][kKeys], q_of[3][kKeys];
  __shared__ TokenSums sums_of[2][kWarps];
  const DeltaInputs<T>& in = args.in;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = warp * kRows;
  const int parts = (in.V + 31) / 32;

  for (int64_t item = blockIdx.x; item < args.items; item += gridDim.x) {
    const int v = static_cast<int>(item % parts) * 32 + lane;
    const int head = static_cast<int>(item / parts % in.value_heads);
    const int64_t s = item / parts / in.value_heads;
    const int key_head = head / in.group();
    const DeltaWalk walk = args.sequences.walk(s);
    const int64_t state_of = args.slots ? args.slots[s] : s;
    const bool exists = state_of >= 0 && state_of < args.pool, own = v < in.V;
    if (!exists) {  // of a step
      if (warp == 0 && own) *(args.o.at(s, 0, head) + v) = from_float<T>(0.f);
      continue;
    }
    float state[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      state[r] = args.initial.data && own && first + r < in.K
                     ? args.initial.of(
                           state_of, head)[(first + r) * args.initial.key + v * args.initial.value]
                     : 0.f;
    float next_k[kLoads], next_q[kLoads];
    const auto load = [&](int64_t i) {
      const bool there = i < walk.length;
      const int64_t token = walk.token(there ? i : 0);
#pragma unroll
      for (int n = 0; n < kLoads; ++n) {
        const int k = threadIdx.x + n * 32 * kWarps;
        const bool valid = there && k < in.K;
        next_k[n] = valid ? to_float(in.k.at(walk.batch, token, key_head)[k]) : 0.f;
        next_q[n] = valid ? to_float(in.q.at(walk.batch, token, key_head)[k]) : 0.f;
      }
    };
    const auto keep = [&](int64_t i) {
#pragma unroll
      for (int n = 0; n < kLoads; ++n) {
        const int k = threadIdx.x + n * 32 * kWarps;
        if (k < kKeys) {
          k_of[i % 3][k] = next_k[n];
          q_of[i % 3][k] = next_q[n];
        }
      }
    };
    load(0);
    keep(0);
    __syncthreads();
    for (int64_t i = 0; i < walk.length; ++i) {
      load(i + 1);
      const int64_t token = walk.token(i);
      const float value = own ? to_float(in.v.at(walk.batch, token, head)[v]) : 0.f;
      const float decay = exp2_approx(kLog2e * in.gate(walk.batch, token, head));
      const float beta = in.beta_of(walk.batch, token, head);
      const float* const k = k_of[i % 3] + first;
      const float* const q = q_of[i % 3] + first;
      float sk = 0, sq = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sk = fmaf(state[r], k[r], sk);
        sq = fmaf(state[r], q[r], sq);
      }
      float kk = 0, qq = 0, qk = 0;
      for (int r = lane; r < kRows; r += 32) {
        kk = fmaf(k[r], k[r], kk);
        qq = fmaf(q[r], q[r], qq);
        qk = fmaf(q[r], k[r], qk);
      }
      for (int mask = 16; mask > 0; mask /= 2) {
        kk += __shfl_xor_sync(kAllLanes, kk, mask);
        qq += __shfl_xor_sync(kAllLanes, qq, mask);
        qk += __shfl_xor_sync(kAllLanes, qk, mask);
      }
      TokenSums& mine = sums_of[i % 2][warp];
      mine.sk[lane] = sk;
      mine.sq[lane] = sq;
      if (lane == 0) {
        mine.kk = kk;
        mine.qq = qq;
        mine.qk = qk;
      }
      keep(i + 1);
      __syncthreads();
      sk = sq = kk = qq = qk = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const TokenSums& part = sums_of[i % 2][w];
        sk += part.sk[lane];
        sq += part.sq[lane];
        kk += part.kk;
        qq += part.qq;
        qk += part.qk;
      }
      const float nk = in.norm ? rsqrtf(kk + 1e-6f) : 1.f, nq = in.norm ? rsqrtf(qq + 1e-6f) : 1.f;
      const float u = beta * (value - decay * nk * sk);
      if (warp == 0 && own)
        args.o.at(walk.batch, token, head)[v] =
            from_float<T>(in.scale * nq * (decay * sq + nk * qk * u));
#pragma unroll
      for (int r = 0; r < kRows; ++r) state[r] = fmaf(nk * u, k[r], decay * state[r]);
    }
    __syncthreads();
    if (!args.final_state.data || !own) continue;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (first + r < in.K)
        args.final_state.of(state_of,
                            head)[(first + r) * args.final_state.key + v * args.final_state.value] =
            state[r];
  }
}

template <typename T>
void launch_recurrence(const RecurrenceArgs<T>& args, int64_t padded_keys, GpuStream stream) {
  const auto run = [&]<int kKeys>() {
    launch("gated_delta_rule, recurrence", recurrence_kernel<T, kKeys>,
           {min(args.items, kLargestGrid), 32 * RecurrenceSizes<kKeys>::kWarps}, stream, args);
  };
  dispatch_keys(padded_keys, run);
}

// A tensor [tokens, heads, ..] as one sequence of a token each.
template <typename T>
DeltaRows<T> single_rows(const TensorView& view) {
  return {view.as<T>(), view.strides[0], 0, view.strides[1]};
}

}  // namespace

void launch_delta_recurrence(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGpuPlan& plan,
                             std::byte* workspace, GpuStream stream) {
  const GatedDeltaRuleSize size = size_of(p);
  const bool v_first = p.inputs.state_v_first;
  dispatch_data(p.q.dtype, [&]<typename T>() {
    launch_recurrence<T>(
        {delta_inputs<T>(p), delta_sequences(p, workspace), delta_states(p.initial_state, v_first),
         delta_states(p.final_state, v_first), delta_rows<T>(p.o), nullptr, size.sequences,
         size.sequences * size.value_heads * plan.column_parts},
        plan.padded_keys, stream);
  });
}

void step(const GatedDeltaRuleStepProblem& p, GpuStream stream) {
  const int64_t tokens = p.q.shape[0], value_heads = p.v.shape[1], V = p.v.shape[2];
  const DeltaStates states = delta_states(p.pool, p.inputs.state_v_first);
  dispatch_data(p.q.dtype, [&]<typename T>() {
    DeltaInputs<T> in = delta_inputs<T>(p.inputs, p.q.shape[1], value_heads, p.q.shape[2], V);
    in.q = single_rows<const T>(p.q);
    in.k = single_rows<const T>(p.k);
    in.v = single_rows<const T>(p.v);
    in.g = single_rows<const float>(p.g);
    in.beta = single_rows<const unsigned char>(p.beta);
    in.beta_type = p.beta.dtype;
    launch_recurrence<T>({in,
                          {nullptr, tokens, 1, false},
                          states,
                          states,
                          single_rows<T>(p.o),
                          p.slots,
                          p.pool.shape[0],
                          tokens * value_heads * ceil_div(V, 32)},
                         delta_padded_keys(p.q.shape[2]), stream);
  });
}

}  // namespace linescan
