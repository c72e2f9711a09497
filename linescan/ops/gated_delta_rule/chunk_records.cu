// gated_delta_rule, the records of chunks (gpu_record.cuh): everything that a chunk's tokens have to do
// with each other, before any state is known.
//
// A block takes a chunk and a head of q and k: their products q k^T and k k^T once, then, for every value
// head that reads them, gates, decays and the inverse of I + L: 16 x 16 blocks on the diagonal by
// substitution, the rest by products, inverse(below left) = -inverse(below right) L inverse(above left).
//
// Numerics:  q, k as they come; sums and the inverse in float32 (products of tf32 pieces: three, or two where A is rounded to a half type); A and P
//            are rounded to T.

#include "linescan/base/math.h"
#include "linescan/ops/device_code/dispatch.cuh"
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

template <typename T, int kKeys>
struct RecordsBytes {
  static constexpr int64_t value = DeltaSizes<T, kKeys>::kLayout.records_bytes();
  static constexpr int64_t decays = DeltaSizes<T, kKeys>::kLayout.decays_bytes();
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

// inverse <- the inverses of the 16 x 16 blocks I + L on the diagonal, a column a thread.
template <int kChunk, int kStride>
__device__ __forceinline__ void invert_diagonal(const float* L, float* inverse) {
  if (threadIdx.x >= kChunk) return;
  const int first = threadIdx.x / 16 * 16, column = threadIdx.x % 16;
  const float* block = L + first * (kStride + 1);
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    x[i] = i == column ? 1.f : 0.f;
#pragma unroll
    for (int k = 0; k < i; ++k) x[i] = fmaf(-block[i * kStride + k], x[k], x[i]);
    inverse[(first + i) * kStride + first + column] = x[i];
  }
}

// Doubles the blocks of the inverse that are known, [kSize, kSize] each. The block of L between them
// becomes L inverse(above left) on the way.
template <int kSize, int kChunk, int kStride, int kNumberPieces>
__device__ __forceinline__ void merge_blocks(float* L, float* inverse) {
  constexpr int kPieces = kSize / 16, kTasks = kChunk / (2 * kSize) * kPieces * kPieces;
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int task = threadIdx.x / 32;
  const int pair = task / (kPieces * kPieces) * 2 * kSize;
  const int m = task / kPieces % kPieces * 16, n = task % kPieces * 16;
  const bool works = task < kTasks;
  float* const below = L + (pair + kSize) * kStride + pair;
  const float* const above = inverse + pair * (kStride + 1);
  float* const result = inverse + (pair + kSize) * kStride + pair;
  const float* const right = inverse + (pair + kSize) * (kStride + 1);
  Sums<2> sums;
  const auto product = [&](const float* a_tile, const float* b_tile) {
    sums.clear();
#pragma unroll
    for (int k = 0; k < kSize; k += 16) {
      FragmentA<float> a;
      FragmentB<float> b[2];
      load_a(a, a_tile + m * kStride + k, kStride);
      load_b_columns(b, b_tile + k * kStride + n, kStride);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
        multiply<kNumberPieces>(sums.tiles[tile], a, b[tile], sums.tiles[tile]);
    }
  };
  const auto store = [&](float* to, float sign) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        to[(m + g + 8 * (j >> 1)) * kStride + n + 8 * tile + 2 * q + (j & 1)] =
            sign * sums.tiles[tile][j];
  };
  if (works) product(below, above);
  __syncthreads();
  if (works) store(below, 1.f);
  __syncthreads();
  if (works) {
    product(right, below);
    store(result, -1.f);
  }
  __syncthreads();
}

template <typename T, int kKeys>
__global__ void __launch_bounds__(2 * DeltaSizes<T, kKeys>::kChunk, 4)
    records_kernel(RecordArgs<T> args) {
  using Sizes = DeltaSizes<T, kKeys>;
  constexpr int kChunk = Sizes::kChunk, kStride = Sizes::kStride, kSquare = Sizes::kSquare;
  constexpr int64_t kBytes = RecordsBytes<T, kKeys>::value;
  static_assert(sizeof(DeltaDecays<kChunk>) == RecordsBytes<T, kKeys>::decays);
  const DeltaInputs<T>& in = args.in;
  T* const k_tile = reinterpret_cast<T*>(shared_memory());
  T* const q_tile = k_tile + kChunk * kStride;
  float* const L = reinterpret_cast<float*>(shared_memory());  // where the tiles were
  float* const inverse = L + kChunk * kSquare;
  float* const gate = reinterpret_cast<float*>(shared_memory() + kBytes) - 4 * kChunk;
  float* const beta = gate + kChunk;
  float* const factor_q = beta + kChunk;
  float* const factor_k = factor_q + kChunk;
  auto& decays = *reinterpret_cast<DeltaDecays<kChunk>*>(reinterpret_cast<unsigned char*>(gate) -
                                                         sizeof(DeltaDecays<kChunk>));
  // The inverse of a record that is rounded to half types needs no third piece.
  constexpr int kNumberPieces = sizeof(T) == 2 ? 2 : 3;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = 16 * warp + lane / 4;
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
    look_ahead(head * in.group());
    wait_copies<0>();
    __syncthreads();
    norm_factors<T, kKeys, kStride>(k_tile, in.norm, factor_k);
    norm_factors<T, kKeys, kStride>(q_tile, in.norm, factor_q);
    Sums<kChunk / 8> kk, qk;  // of rows 16 warp to 16 warp + 15
    kk.clear();
    qk.clear();
#pragma unroll 2
    for (int k = 0; k < kKeys; k += 16) {
      FragmentA<T> from_k, from_q;
      load_a(from_k, k_tile + 16 * warp * kStride + k, kStride);
      load_a(from_q, q_tile + 16 * warp * kStride + k, kStride);
#pragma unroll
      for (int n = 0; n < kChunk / 16; ++n) {
        if (n > warp) break;  // above the diagonal
        FragmentB<T> b[2];
        load_b_rows(b, k_tile + 16 * n * kStride + k, kStride);
        multiply_add(kk, n, from_k, b);
        multiply_add(qk, n, from_q, b);
      }
    }

    for (int h = head * in.group(); h < (head + 1) * in.group(); ++h) {
      __syncthreads();  // the tiles, or the last value head's numbers, have been used
      if (threadIdx.x < kChunk) {
        gate[threadIdx.x] = next_gate;
        beta[threadIdx.x] = next_beta;
      }
      look_ahead(h + 1);
      __syncthreads();
      decays.fill(gate);
      for (int i = threadIdx.x; i < kChunk * kSquare / 4; i += blockDim.x)
        reinterpret_cast<float4*>(inverse)[i] = make_float4(0.f, 0.f, 0.f, 0.f);
      __syncthreads();

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
      // Every thread's numbers of P and L, a tile of columns at a time.
#pragma unroll
      for (int tile = 0; tile < kChunk / 8; ++tile) {
        float p[4] = {}, l[4] = {};
        if (tile / 2 <= warp) {
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const int i = first + 8 * (n >> 1), j = 8 * tile + lane % 4 * 2 + (n & 1);
            if (i < j) continue;
            const float decay = decays(i, j, tile / 2 == warp) * factor_k[j];
            p[n] = in.scale * factor_q[i] * decay * qk.tiles[tile][n];
            if (i > j) l[n] = beta[i] * factor_k[i] * decay * kk.tiles[tile][n];
          }
        }
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int i = first + 8 * row, j = 8 * tile + lane % 4 * 2;
          store_two(record.P + i * kChunk, j, kChunk, true, p[2 * row], p[2 * row + 1]);
          *reinterpret_cast<float2*>(L + i * kSquare + j) = make_float2(l[2 * row], l[2 * row + 1]);
        }
      }
      __syncthreads();
      invert_diagonal<kChunk, kSquare>(L, inverse);
      __syncthreads();
      if constexpr (kChunk >= 32) merge_blocks<16, kChunk, kSquare, kNumberPieces>(L, inverse);
      if constexpr (kChunk >= 64) merge_blocks<32, kChunk, kSquare, kNumberPieces>(L, inverse);
      for (int i = threadIdx.x; i < kChunk * kChunk / 8; i += blockDim.x) {
        const int row = 8 * i / kChunk, column = 8 * i % kChunk;
        Pack<T, 8> numbers;
#pragma unroll
        for (int n = 0; n < 8; ++n)
          numbers.values[n] = from_float<T>(inverse[row * kSquare + column + n]);
        *reinterpret_cast<Pack<T, 8>*>(record.A + row * kChunk + column) = numbers;
      }
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
                          std::byte* workspace, GpuStream stream) {
  dispatch_delta(p.q.dtype, plan.padded_keys, [&]<typename T, int kKeys>() {
    const RecordArgs<T> args = {delta_inputs<T>(p), delta_sequences(p, workspace),
                                workspace + plan.records_at, plan.chunks};
    launch("gated_delta_rule, records", records_kernel<T, kKeys>, shape_of(plan.records), stream,
           args);
  });
}

}  // namespace linescan
