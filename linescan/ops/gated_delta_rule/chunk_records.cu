// gated_delta_rule, the records of chunks (gpu_record.cuh): everything that a chunk's tokens have to do
// with each other, before any state is known.
//
// A block takes a chunk and a head of q and k: their products q k^T and k k^T once, then, for every value
// head that reads them, gates, decays and the inverse of I + L: 16 x 16 blocks on the diagonal by
// substitution, those below them by products, a column of blocks a warp.
//
// Numerics:  q, k as they come; sums and the inverse in float32 (products of tf32 pieces: three, two for float16, one for bfloat16); A and P
//            are rounded to T.

#include "linescan/base/math.h"
#include "linescan/ops/device_code/dispatch.cuh"
#include "linescan/ops/device_code/group_product.cuh"
#include "linescan/ops/device_code/tile_product.cuh"
#include "linescan/ops/gated_delta_rule/gpu_kernels.h"
#include "linescan/ops/gated_delta_rule/gpu_record.cuh"
#include "linescan/ops/gated_delta_rule/gpu_tokens.cuh"

namespace linescan {
namespace {

template <typename T>
struct RecordArgs {
  DeltaInputs<T> in;
  DeltaSequences sequences;
  std::byte* records;
  int64_t chunks;
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
  static constexpr int64_t decays = Sizes::kLayout.decays_bytes();
};

// factors <- 1 / |row| of a tile, or 1; two threads a row.
template <typename T, int kKeys, int kStride>
__device__ __forceinline__ void norm_factors(const T* tile, bool norm, float* factors) {
  float sum = 0;
  if (norm) {
    using Numbers = Pack<T, 16 / sizeof(T)>;
    constexpr int kPacks = kKeys * sizeof(T) / 16;
    const auto* row = reinterpret_cast<const Numbers*>(tile + threadIdx.x / 2 * kStride);
#pragma unroll 4
    for (int i = threadIdx.x % 2; i < kPacks; i += 2) {
      const Numbers numbers = row[i];
      for (const T number : numbers.values) sum = fmaf(to_float(number), to_float(number), sum);
    }
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
  }
  if (threadIdx.x % 2 == 0) factors[threadIdx.x / 2] = norm ? rsqrtf(sum + 1e-6f) : 1.f;
}

// The 16 x 16 blocks of L on the diagonal <- the inverses of I + L there, a column a thread, by whole warps.
template <int kChunk, int kStride>
__device__ __forceinline__ void invert_diagonal(float* L) {
  const int first = threadIdx.x / 16 * 16 % kChunk, column = threadIdx.x % 16;
  float* const block = L + first * (kStride + 1);
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    x[i] = i == column ? 1.f : 0.f;
#pragma unroll
    for (int k = 0; k < i; k += 4) {
      const auto l = *reinterpret_cast<const float4*>(block + i * kStride + k);
      x[i] = fmaf(-l.x, x[k], x[i]);
      if (k + 1 < i) x[i] = fmaf(-l.y, x[k + 1], x[i]);
      if (k + 2 < i) x[i] = fmaf(-l.z, x[k + 2], x[i]);
      if (k + 3 < i) x[i] = fmaf(-l.w, x[k + 3], x[i]);
    }
  }
  __syncwarp();  // a block has been read by the warp that it belongs to
#pragma unroll
  for (int i = 0; i < 16; ++i) block[i * kStride + column] = x[i];
}

// inverse <- the blocks of X = (I + L)^-1 below the diagonal, rounded; the blocks on it stand in L's place. Warp j has column j:
// X[i, j] = -X[i, i] (L[i, j] X[j, j] + .. + L[i, i - 1] X[i - 1, j]). Everything is turned, so that what one product leaves
// is the next one's operand as it stands in registers.
template <int kChunk, int kStride, int kNumberPieces, typename T>
__device__ __forceinline__ void solve_below(const float* L, T* inverse) {
  constexpr int kRows = kChunk / 16;  // of blocks
  const int lane = threadIdx.x % 32, j = threadIdx.x / 32;
  FragmentA<float> x[kRows];  // X[j + n, j] turned
  load_a_transposed(x[0], L + 16 * j * (kStride + 1), kStride);
  const auto add = [](Sums<2>& sums, const FragmentA<float>& a, const float* block) {
    FragmentB<float> b[2];
    load_b_rows(b, block, kStride);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
      multiply<kNumberPieces>(sums.tiles[tile], a, b[tile], sums.tiles[tile]);
  };
#pragma unroll
  for (int n = 1; n < kRows; ++n) {
    if (j + n < kRows) {
      const float* const row = L + 16 * ((j + n) * kStride + j);
      Sums<2> sums;
      sums.clear();
#pragma unroll
      for (int m = 0; m < n; ++m) add(sums, x[m], row + 16 * m);
      const FragmentA<float> through = operand<float>(sums, 0);
      sums.clear();
      add(sums, through, row + 16 * n);
      sums.scale(-1.f);
      x[n] = operand<float>(sums, 0);
      T* const to = inverse + 16 * ((j + n) * kStride + j);
      if constexpr (sizeof(T) == 2) {
        // As an operand A the block's eights of columns are those of its transpose's rows.
        store_matrices<true>(to + (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8,
                             operand<T>(sums, 0).words);
      } else {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            to[(8 * tile + lane % 4 * 2 + i % 2) * kStride + lane / 4 + i / 2 * 8] =
                from_float<T>(sums.tiles[tile][i]);
      }
    }
  }
}

// inverse <- the blocks on the diagonal, rounded; by a warp.
template <int kChunk, int kStride, typename T>
__device__ __forceinline__ void round_diagonal(const float* L, T* inverse) {
  const int row = threadIdx.x % 32 / 2, column = threadIdx.x % 2 * 8;
#pragma unroll
  for (int block = 0; block < kChunk / 16; ++block) {
    const int at = 16 * block * (kStride + 1) + row * kStride + column;
    Pack<T, 8> pack;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto four = *reinterpret_cast<const float4*>(L + at + 4 * half);
      pack.values[4 * half] = from_float<T>(four.x);
      pack.values[4 * half + 1] = from_float<T>(four.y);
      pack.values[4 * half + 2] = from_float<T>(four.z);
      pack.values[4 * half + 3] = from_float<T>(four.w);
    }
    *reinterpret_cast<Pack<T, 8>*>(inverse + at) = pack;
  }
}

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
  int warp;

  __device__ __forceinline__ int count() const {
    if constexpr (kRows == 4) return warp < 2 ? 3 : 2;
    return kRows == 2 ? 2 - warp : 1;
  }
  __device__ __forceinline__ int row(int n) const {
    if constexpr (kRows == 4) {
      if (n == 2) return 2 * warp;     // 0, 2
      return warp < 2 ? 3 : 4 - warp;  // 3, 3, 2, 1
    }
    return kRows - 1 - warp;
  }
  __device__ __forceinline__ int column(int n) const {
    if constexpr (kRows == 4) return n == 2 ? 2 * warp : warp == 1 ? 2 + n : n;
    return n;
  }
};

template <typename T, int kKeys, bool kPair>
__global__ void __launch_bounds__(2 * DeltaSizes<T, kKeys, kPair>::kChunk, kPair ? 3 : 4)
    records_kernel(RecordArgs<T> args) {
  using Sizes = DeltaSizes<T, kKeys, kPair>;
  constexpr int kChunk = Sizes::kChunk, kStride = Sizes::kStride, kSquare = Sizes::kSquare;
  constexpr int64_t kBytes = RecordsBytes<Sizes>::value;
  static_assert(sizeof(DeltaDecays<kChunk>) == RecordsBytes<Sizes>::decays);
  const DeltaInputs<T>& in = args.in;
  constexpr int kRows = kChunk / 16;  // of blocks
  const int lane = threadIdx.x % 32;
  const TriangleBlocks<kRows> blocks = {static_cast<int>(threadIdx.x) / 32};
  T* const k_tile = reinterpret_cast<T*>(shared_memory());
  T* const q_tile = k_tile + kChunk * kStride;
  float* const L = reinterpret_cast<float*>(shared_memory());  // where the tiles were
  T* const P = reinterpret_cast<T*>(L + kChunk * kSquare);
  T* const A = P + kChunk * kSquare;
  float* const gates = reinterpret_cast<float*>(shared_memory() + kBytes) - 6 * kChunk;
  float* const factor_q = gates + 4 * kChunk;
  float* const factor_k = factor_q + kChunk;
  auto& decays = *reinterpret_cast<DeltaDecays<kChunk>*>(reinterpret_cast<unsigned char*>(gates) -
                                                         sizeof(DeltaDecays<kChunk>));
  // Eleven bits a piece: enough is what the record is rounded to.
  constexpr int kNumberPieces = std::is_same_v<T, BFloat16> ? 1 : sizeof(T) == 2 ? 2 : 3;
  const DeltaTeam team = {static_cast<int>(threadIdx.x), 2 * kChunk};

  for (int64_t item = blockIdx.x; item < args.chunks * in.heads; item += gridDim.x) {
    const int64_t number = item / in.heads;
    const int head = static_cast<int>(item % in.heads);
    const DeltaChunk chunk = chunk_of(args.sequences, number, kChunk);
    if (chunk.tokens == 0) continue;
    load_tile(team, k_tile, kStride, chunk.rows(in.k, head), chunk.row_step(in.k), kChunk,
              chunk.tokens, kKeys, in.K, in.vectors);
    load_tile(team, q_tile, kStride, chunk.rows(in.q, head), chunk.row_step(in.q), kChunk,
              chunk.tokens, kKeys, in.K, in.vectors);
    commit_copies();
    // Token threadIdx.x's gate and beta of the next value head.
    float next_gate = 0, next_beta = 0;
    const auto look_ahead = [&](int h) {
      const int i = threadIdx.x;
      if (i >= chunk.tokens || h >= (head + 1) * in.group()) return;
      next_gate = kLog2e * in.gate(chunk.walk.batch, chunk.token(i), h);
      next_beta = in.beta_of(chunk.walk.batch, chunk.token(i), h);
    };
    // Those of the value head before may still be read.
    const auto keep_gates = [&](int h) {
      float* const gate = gates + h % 2 * 2 * kChunk;
      if (threadIdx.x < kChunk) {
        gate[threadIdx.x] = next_gate;
        gate[kChunk + threadIdx.x] = next_beta;
      }
      return gate;
    };
    const int first_head = head * in.group(), end_head = first_head + in.group();
    look_ahead(first_head);
    const float* gate = keep_gates(first_head);
    wait_copies<0>();
    __syncthreads();
    decays.template fill<2 * Sizes::kChunk>(gate, threadIdx.x);
    norm_factors<T, kKeys, kStride>(k_tile, in.norm, factor_k);
    norm_factors<T, kKeys, kStride>(q_tile, in.norm, factor_q);
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
        if (n != 1) {  // of another row than the one before
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
      look_ahead(h + 1);
      const float* const beta = gate + kChunk;
      const DeltaRecord<T> record =
          delta_record<T>(args.records, number * in.value_heads + h, kChunk);
      if (threadIdx.x < kChunk) {
        const int i = threadIdx.x;
        const float before = decays.from_start(i), valid = i < chunk.tokens ? 1.f : 0.f;
        const float nk = valid * factor_k[i], nq = valid * in.scale * factor_q[i];
        record.rows[kGate * kChunk + i] = gate[i];
        record.rows[kBeta * kChunk + i] = beta[i];
        record.rows[kFactorQ * kChunk + i] = nq;
        record.rows[kFactorK * kChunk + i] = nk;
        record.rows[kReadQ * kChunk + i] = nq * before;
        record.rows[kReadK * kChunk + i] = nk * before;
        record.rows[kWrite * kChunk + i] = nk * decays.to_end(i);
        if (i == kChunk - 1) record.rows[kDecay * kChunk] = before;
      }
      // Every thread's numbers of P and L, a block at a time. Where they lie is found anew for every value head: there are
      // no registers to keep it.
      const TriangleBlocks<kRows> own = {in_register(blocks.warp)};
#pragma unroll
      for (int n = 0; n < own.kMost; ++n) {
        if (n >= own.count()) break;
        const int row = own.row(n), column = own.column(n);
        const bool near = row == column;
        float ahead_of_rows[2], of_p[2], of_l[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int i = 16 * row + lane / 4 + 8 * r;
          ahead_of_rows[r] = decays.upto[i] + decays.between[row][column];
          of_p[r] = in.scale * factor_q[i];
          of_l[r] = beta[i] * factor_k[i];
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int j = 16 * column + 8 * half + lane % 4 * 2;
          const auto factors = *reinterpret_cast<const float2*>(factor_k + j);
          const auto ahead = *reinterpret_cast<const float2*>(decays.ahead + j);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int i = 16 * row + lane / 4 + 8 * r;
            float p[2], l[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              const float E = near ? decays.near[i][(j + c) % 16]  // zero above the diagonal
                                   : exp2_approx(ahead_of_rows[r] + (c == 0 ? ahead.x : ahead.y));
              const float decay = E * (c == 0 ? factors.x : factors.y);
              p[c] = of_p[r] * decay * qk[n].tiles[half][2 * r + c];
              l[c] = i == j + c ? 0.f : of_l[r] * decay * kk[n].tiles[half][2 * r + c];
            }
            *reinterpret_cast<float2*>(L + i * kSquare + j) = make_float2(l[0], l[1]);
            store_two(P + i * kSquare, j, kChunk, true, p[0], p[1]);
          }
        }
      }
      gate = keep_gates(h + 1);
      __syncthreads();
      // Half of the threads invert; the others store P and see to the next value head's decays meanwhile.
      if (threadIdx.x < max(kChunk, 32)) invert_diagonal<kChunk, kSquare>(L);
      if (threadIdx.x >= kChunk) {
        const int thread = threadIdx.x - kChunk;
        store_square<kChunk, kSquare, kChunk>(thread, record.P, P);
        if (h + 1 < end_head) decays.template fill<Sizes::kChunk>(gate, thread);
      }
      __syncthreads();
      if (threadIdx.x / 32 + 1 < kRows)
        solve_below<kChunk, kSquare, kNumberPieces>(L, A);
      else
        round_diagonal<kChunk, kSquare>(L, A);
      __syncthreads();
      store_square<kChunk, kSquare, 2 * kChunk>(threadIdx.x, record.A, A);
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
  dispatch_delta(p.q.dtype, plan.padded_keys, [&]<typename T, int kKeys>() {
    const RecordArgs<T> args = {delta_inputs<T>(p), delta_sequences(p, workspace), kept.records,
                                plan.chunks};
    if constexpr (sizeof(T) == 2 && kKeys == DeltaLayout::kPairKeys)
      if (plan.key_pair)
        return launch("gated_delta_rule, records", records_kernel<T, kKeys, true>,
                      shape_of(plan.records), stream, args);
    launch("gated_delta_rule, records", records_kernel<T, kKeys, false>, shape_of(plan.records),
           stream, args);
  });
}

}  // namespace linescan
