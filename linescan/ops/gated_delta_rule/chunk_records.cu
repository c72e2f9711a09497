// gated_delta_rule, the records of chunks (gpu_record.cuh): everything that a chunk's tokens have to do
// with each other, before any state is known.
//
// A block takes a chunk and a head of q and k: their products q k^T and k k^T once, then, for every value
// head that reads them, or, where there are few chunks, for some of these, gates, decays and the inverse of I + L
// (gpu_record_inverse.cuh).
//
// Numerics:  q, k as they come; sums and the inverse in float32 (products of tf32 pieces: three, two for float16, one for bfloat16); A and P
//            are rounded to T.

#include "linescan/base/math.h"
#include "linescan/ops/device_code/dispatch.cuh"
#include "linescan/ops/gated_delta_rule/gpu_kernels.h"
#include "linescan/ops/gated_delta_rule/gpu_record.cuh"
#include "linescan/ops/gated_delta_rule/gpu_record_inverse.cuh"
#include "linescan/ops/gated_delta_rule/gpu_record_pairs.cuh"
#include "linescan/ops/gated_delta_rule/gpu_tokens.cuh"

namespace linescan {
namespace {

template <typename T>
struct RecordArgs {
  DeltaInputs<T> in;
  DeltaSequences sequences;
  std::byte* records;
  int64_t chunks;
  int parts, part_heads;  // blocks that share the value heads of a head, and their heads each
};

// Bounds as they are used: at least 0, at most the length, none less than the one before. One block.
__global__ void __launch_bounds__(1024)
    bounds_kernel(const int64_t* __restrict__ given, int64_t* __restrict__ sane, int64_t count,
                  int64_t length) {
  __shared__ int64_t last_of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t largest = 0;  // of everything in front of this round
  for (int64_t start = 0; start < count; start += blockDim.x) {
    const int64_t i = start + threadIdx.x;
    int64_t bound = i < count ? min(max(given[i], int64_t{0}), length) : 0;
    for (int by = 1; by < 32; by *= 2) {
      const int64_t other = __shfl_up_sync(kAllLanes, bound, by);
      if (lane >= by) bound = max(bound, other);
    }
    if (lane == 31) last_of_warp[warp] = bound;
    __syncthreads();
    bound = max(bound, largest);
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
      if (w < warp) bound = max(bound, last_of_warp[w]);
      largest = max(largest, last_of_warp[w]);
    }
    if (i < count) sane[i] = bound;
    __syncthreads();
  }
}

template <class Sizes>
struct RecordsBytes {
  static constexpr int64_t value = Sizes::kLayout.records_bytes();
  static constexpr int64_t decays = Sizes::kLayout.record_decays_bytes();
};

// A or P in memory <- a matrix in shared memory, zeros in the blocks above the diagonal; by kThreads.
template <int kChunk, int kStride, int kThreads, typename T>
__device__ __forceinline__ void store_square(int thread, T* to, const T* from) {
  constexpr int kNumbers = 16 / sizeof(T), kRowPacks = kChunk / kNumbers;
  constexpr int kPacks = kChunk * kRowPacks / kThreads;  // a thread
  const int first = thread / kRowPacks,
            place = thread % kRowPacks;  // of a pack in its row in memory
  static_assert(kThreads / kRowPacks % 8 == 0 || square_pack<T, kChunk>(1, 0) == 0);
  const int column =
      square_pack<T, kChunk>(first, place) * kNumbers;  // the same in every eighth row
#pragma unroll
  for (int n = 0; n < kPacks; ++n) {
    const int row = first + n * (kThreads / kRowPacks);
    uint4 pack = {};
    if (column / 16 <= row / 16)
      pack = *reinterpret_cast<const uint4*>(from + row * kStride + column);
    *reinterpret_cast<uint4*>(to + row * kChunk + place * kNumbers) = pack;
  }
}

// The 16 x 16 blocks of a lower triangle, dealt out to as many warps as it has rows of blocks: the first two of a warp
// are of one row, a third one is on the diagonal.
template <int kRows>
struct TriangleBlocks {
  static constexpr int kMost = kRows == 4 ? 3 : kRows;
  int warp, lane;

  __device__ __forceinline__ int count() const {
    if constexpr (kRows == 4) return warp < 2 ? 3 : 2;
    return kRows == 2 ? 2 - warp : 1;
  }
  __device__ __forceinline__ bool has(int n) const { return n < count(); }
  __device__ __forceinline__ int row(int n) const {
    if constexpr (kRows == 4) {
      if (n == 2) return 2 * warp;     // 0, 2
      return warp < 2 ? 3 : 4 - warp;  // 3, 3, 2, 1
    }
    return kRows - 1 - warp;
  }
  __device__ __forceinline__ bool begins_row(int n) const { return n != 1 && has(n); }
  __device__ __forceinline__ bool is_near(int n) const { return row(n) == column(n); }
  template <class Decays>
  __device__ __forceinline__ float between(const Decays& decays, int n) const {
    return decays.blocks(column(n) + 1, row(n));
  }
  __device__ __forceinline__ int column(int n) const {
    if constexpr (kRows == 4) return n == 2 ? 2 * warp : warp == 1 ? 2 + n : n;
    return n;
  }
};

template <typename T, int kKeys, bool kDeep>
__global__ void __launch_bounds__(2 * DeltaSizes<T, kKeys, kDeep>::kChunk,
                                  DeltaSizes<T, kKeys, kDeep>::kLayout.record_blocks())
    records_kernel(RecordArgs<T> args) {
  using Sizes = DeltaSizes<T, kKeys, kDeep>;
  constexpr int kChunk = Sizes::kChunk, kStride = Sizes::kStride, kSquare = Sizes::kSquare;
  constexpr int64_t kBytes = RecordsBytes<Sizes>::value;
  static_assert(sizeof(RecordDecays<kChunk>) == RecordsBytes<Sizes>::decays);
  const DeltaInputs<T>& in = args.in;
  constexpr int kRows = kChunk / 16;  // of blocks
  const TriangleBlocks<kRows> blocks = {static_cast<int>(threadIdx.x) / 32,
                                        static_cast<int>(threadIdx.x) % 32};
  T* const k_tile = reinterpret_cast<T*>(shared_memory());
  T* const q_tile = k_tile + kChunk * kStride;
  float* const L = reinterpret_cast<float*>(shared_memory());  // where the tiles were
  T* const P = reinterpret_cast<T*>(L + kChunk * kSquare);
  T* const A = P + kChunk * kSquare;
  float* const gates = reinterpret_cast<float*>(shared_memory() + kBytes) - 6 * kChunk;
  float* const factor_q = gates + 4 * kChunk;
  float* const factor_k = factor_q + kChunk;
  auto& decays = *reinterpret_cast<RecordDecays<kChunk>*>(reinterpret_cast<unsigned char*>(gates) -
                                                          sizeof(RecordDecays<kChunk>));
  // Eleven bits a piece: enough is what the record is rounded to.
  constexpr int kNumberPieces = std::is_same_v<T, BFloat16> ? 1 : sizeof(T) == 2 ? 2 : 3;
  constexpr int kThreads = 2 * kChunk;
  const DeltaTeam team = {static_cast<int>(threadIdx.x), kThreads};

  for (int64_t item = blockIdx.x; item < args.chunks * in.heads * args.parts; item += gridDim.x) {
    const int64_t unit = item / args.parts, number = unit / in.heads;
    const int head = static_cast<int>(unit % in.heads);
    const int first_head =
        head * in.group() + static_cast<int>(item % args.parts) * args.part_heads;
    const int end_head = min(first_head + args.part_heads, (head + 1) * in.group());
    if (first_head >= end_head) continue;  // there are no value heads
    const DeltaChunk chunk = chunk_of(args.sequences, number, kChunk);
    if (chunk.tokens == 0) continue;
    load_tile(team, k_tile, kStride, chunk.rows(in.k, head), chunk.row_step(in.k), kChunk,
              chunk.tokens, kKeys, in.K, in.vectors);
    load_tile(team, q_tile, kStride, chunk.rows(in.q, head), chunk.row_step(in.q), kChunk,
              chunk.tokens, kKeys, in.K, in.vectors);
    commit_copies();
    RecordGates<T, kChunk> heads(in);
    heads.ask({in, chunk.walk, first_head}, chunk.start, chunk.tokens, chunk.walk.step,
              threadIdx.x);
    float* gate = gates;  // those of a value head before may still be read
    heads.keep(gate, first_head, chunk.tokens, threadIdx.x);
    wait_copies<0>();
    __syncthreads();
    decays.fill(gate, threadIdx.x);
    norm_factors<T, kKeys>(RowTile<T, kStride>{k_tile}, in.norm, factor_k, threadIdx.x);
    norm_factors<T, kKeys>(RowTile<T, kStride>{q_tile}, in.norm, factor_q, threadIdx.x);
    Sums<2> kk[blocks.kMost], qk[blocks.kMost];
#pragma unroll
    for (int n = 0; n < blocks.kMost; ++n) {
      kk[n].clear();
      qk[n].clear();
    }
#pragma unroll 2
    for (int k = 0; k < kKeys; k += 16) {
      FragmentA<T> from_k, from_q;
#pragma unroll
      for (int n = 0; n < blocks.kMost; ++n) {
        if (n >= blocks.count()) break;
        if (blocks.begins_row(n)) {
          load_a(from_k, k_tile + 16 * blocks.row(n) * kStride + k, kStride);
          load_a(from_q, q_tile + 16 * blocks.row(n) * kStride + k, kStride);
        }
        FragmentB<T> b[2];
        load_b_rows(b, k_tile + 16 * blocks.column(n) * kStride + k, kStride);
        multiply_add(kk[n], 0, from_k, b);
        multiply_add(qk[n], 0, from_q, b);
      }
    }

    __syncthreads();  // the tiles have been used

    for (int h = first_head; h < end_head; ++h) {
      if (h + 1 < end_head) heads.ask_next_head(chunk.tokens, threadIdx.x);
      const DeltaRecord<T> record =
          delta_record<T>(args.records, number * in.value_heads + h, kChunk);
      if (threadIdx.x < kChunk)
        store_rows<T, kChunk>(record, threadIdx.x, chunk.tokens, in.scale, gate, factor_q, factor_k,
                              decays);
      // Where a thread's numbers of P and L lie is found anew for every value head: there are no registers to keep it.
      const TriangleBlocks<kRows> own = {in_register(blocks.warp), in_register(blocks.lane)};
      const float* const beta = gate + kChunk;
      float of_p[2], of_l[2];
      for_each_pair(
          own, decays, factor_k,
          [&](int r, int i) {
            of_p[r] = in.scale * factor_q[i];
            of_l[r] = beta[i] * factor_k[i];
          },
          [&](int n, int half, int r, int i, int j, float row, float2 column) {
            store_p(RowTile<T, kSquare>{P}, i, j, of_p[r] * row, column, &qk[n].tiles[half][2 * r]);
            store_l<kSquare>(L, i, j, of_l[r] * row, column, &kk[n].tiles[half][2 * r]);
          });
      const bool more = h + 1 < end_head;
      if (more) {
        gate = gate == gates ? gates + 2 * kChunk : gates;
        heads.keep(gate, h + 1, chunk.tokens, threadIdx.x);
      }
      __syncthreads();
      invert_block<kSquare>(L, RowTile<T, kSquare>{A}, own.warp, own.lane);
      store_square<kChunk, kSquare, kThreads>(threadIdx.x, record.P, P);
      if (more) decays.fill(gate, threadIdx.x);
      __syncthreads();
      solve_below<kChunk, kSquare, kNumberPieces>(L, RowTile<T, kSquare>{A}, own.warp);
      __syncthreads();
      store_square<kChunk, kSquare, kThreads>(threadIdx.x, record.A, A);
    }
    __syncthreads();
  }
}

}  // namespace

void launch_delta_bounds(const GatedDeltaRuleProblem& p, std::byte* workspace, GpuStream stream) {
  if (p.packed)
    launch("gated_delta_rule, bounds", bounds_kernel, {1, 1024}, stream, p.bounds,
           reinterpret_cast<int64_t*>(workspace), p.packed_sequences + 1, p.q.shape[1]);
}

void launch_delta_records(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGpuPlan& plan,
                          const DeltaKept& kept, std::byte* workspace, GpuStream stream) {
  const GatedDeltaRuleSize size = size_of(p);
  const auto part_heads =
      static_cast<int>(ceil_div(size.value_heads / size.heads, plan.record_parts));
  dispatch_delta(p.q.dtype, plan.padded_keys, [&]<typename T, int kKeys>() {
    const RecordArgs<T> args = {
        delta_inputs<T>(p), delta_sequences(p, workspace),       kept.records,
        plan.chunks,        static_cast<int>(plan.record_parts), part_heads};
    if constexpr (sizeof(T) == 2 && kKeys == DeltaLayout::kDeepKeys)
      if (plan.deep_groups)
        return launch("gated_delta_rule, records", records_kernel<T, kKeys, true>,
                      shape_of(plan.records), stream, args);
    launch("gated_delta_rule, records", records_kernel<T, kKeys, false>, shape_of(plan.records),
           stream, args);
  });
}

}  // namespace linescan
