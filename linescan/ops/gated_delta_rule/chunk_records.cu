// gated_delta_rule, the records of chunks (gpu_record.cuh): everything that a chunk's tokens have to do
// with each other, before any state is known.
//
// A block takes a chunk and a head of q and k: their products q k^T and k k^T once, then, for every value
// head that reads them, gates, decays and the inverse of I + L: 16 x 16 blocks on the diagonal by
// substitution, the rest by products, inverse(below left) = -inverse(below right) L inverse(above left).
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

// Doubles the blocks of the inverse that are known, [kSize, kSize] each; below them L is still there. L inverse(above left)
// goes above the diagonal.
template <int kSize, int kChunk, int kStride, int kNumberPieces>
__device__ __forceinline__ void merge_blocks(float* L) {
  constexpr int kPieces = kSize / 16, kTasks = kChunk / (2 * kSize) * kPieces * kPieces;
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int task = threadIdx.x / 32;
  const int pair = task / (kPieces * kPieces) * 2 * kSize;
  const int m = task / kPieces % kPieces * 16, n = task % kPieces * 16;
  const bool works = task < kTasks;
  float* const below = L + (pair + kSize) * kStride + pair;  // and the result
  const float* const above = L + pair * (kStride + 1);
  float* const between = L + pair * kStride + pair + kSize;
  const float* const right = L + (pair + kSize) * (kStride + 1);
  Sums<2> sums;
  // Of lower triangles only what is not above the diagonal has been written.
  const auto product = [&](const float* a_tile, const float* b_tile, int first, int last) {
    sums.clear();
#pragma unroll 1
    for (int k = first; k <= last; k += 16) {
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
  if (works) {
    product(below, above, n, kSize - 16);
    store(between, 1.f);
  }
  __syncthreads();
  if (works) {
    product(right, between, 0, m);
    store(below, -1.f);
  }
  __syncthreads();
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
    look_ahead(head * in.group());
    wait_copies<0>();
    __syncthreads();
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

    for (int h = head * in.group(); h < (head + 1) * in.group(); ++h) {
      // Those of the value head before this one may still be read.
      float* const gate = gates + h % 2 * 2 * kChunk;
      float* const beta = gate + kChunk;
      if (threadIdx.x < kChunk) {
        gate[threadIdx.x] = next_gate;
        beta[threadIdx.x] = next_beta;
      }
      look_ahead(h + 1);
      __syncthreads();  // of the first one, too: the tiles have been used
      decays.template fill<2 * Sizes::kChunk>(gate, threadIdx.x);
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
      __syncthreads();
      // Half of the threads invert, the others store P meanwhile.
      if (threadIdx.x < max(kChunk, 32)) invert_diagonal<kChunk, kSquare>(L);
      if (threadIdx.x >= kChunk) {
        constexpr int kNumbers = 16 / sizeof(T), kPacks = kChunk / kNumbers;
        const int thread = threadIdx.x % kChunk, column = thread % kPacks * kNumbers;
#pragma unroll
        for (int n = 0; n < kPacks; ++n) {
          const int row = thread / kPacks + n * (kChunk / kPacks);
          uint4 pack = {};
          if (column / 16 <= row / 16)
            pack = *reinterpret_cast<const uint4*>(P + row * kSquare + column);
          *reinterpret_cast<uint4*>(record.P + row * kChunk + column) = pack;
        }
      }
      __syncthreads();
      if constexpr (kChunk >= 32) merge_blocks<16, kChunk, kSquare, kNumberPieces>(L);
      if constexpr (kChunk >= 64) merge_blocks<32, kChunk, kSquare, kNumberPieces>(L);
      // Eight numbers at a time; all are read before the first is stored.
      constexpr int kPacks = kChunk / 16, kRowPacks = kChunk / 8;  // a thread, a row
      const int column = threadIdx.x % kRowPacks * 8;
      Pack<T, 8> packs[kPacks];
#pragma unroll
      for (int n = 0; n < kPacks; ++n) {
        const int row = threadIdx.x / kRowPacks + n * (2 * kChunk / kRowPacks);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 four =
              column / 16 <= row / 16
                  ? *reinterpret_cast<const float4*>(L + row * kSquare + column + 4 * half)
                  : make_float4(0.f, 0.f, 0.f, 0.f);
          packs[n].values[4 * half] = from_float<T>(four.x);
          packs[n].values[4 * half + 1] = from_float<T>(four.y);
          packs[n].values[4 * half + 2] = from_float<T>(four.z);
          packs[n].values[4 * half + 3] = from_float<T>(four.w);
        }
      }
#pragma unroll
      for (int n = 0; n < kPacks; ++n)
        *reinterpret_cast<Pack<T, 8>*>(record.A + 8 * (threadIdx.x + n * 2 * kChunk)) = packs[n];
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
    if constexpr (sizeof(T) == 2 && kKeys == DeltaLayout::kPairKeys)
      if (plan.key_pair)
        return launch("gated_delta_rule, records", records_kernel<T, kKeys, true>,
                      shape_of(plan.records), stream, args);
    launch("gated_delta_rule, records", records_kernel<T, kKeys, false>, shape_of(plan.records),
           stream, args);
  });
}

}  // namespace linescan
