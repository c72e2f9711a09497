// What the gradients' kernels (chunk_gradients.cu, group_gradients.cu) are given, the part of the work that
// a thread has, and the sums over rows that several threads share.
#pragma once

#include "linescan/ops/device_code/tile_product.cuh"
#include "linescan/ops/gated_delta_rule/gpu_record.cuh"
#include "linescan/ops/gated_delta_rule/gpu_tokens.cuh"

namespace linescan {

template <typename T>
struct GradientArgs {
  DeltaInputs<T> in;
  DeltaSequences sequences;
  DeltaRows<const T> o;  // upstream
  DeltaRows<T> q, k, v;  // v: gX in the beginning (reverse_scan.cu)
  DeltaRows<float> g;
  DeltaRows<unsigned char> beta;  // of the type of the input
  bool o_vectors, v_vectors, key_vectors, pairs;
  int padded_values, stages;
  int64_t chunks;
  std::byte* records;
  const T *states, *state_gradients, *corrections;
  int correction_step;  // to the next chunk and value head, or slice of V where these lie by themselves
  float* parameter_sums;  // [chunks, 2, value_heads]: for A_log and dt_bias
  float* slots;           // of blocks of warp groups (group_gradients.cu)
  int64_t slot_floats;    // of one
};

// What the kernel keeps in shared memory for every token beside the record.
enum GradientRow { kReads, kWrites, kToBeta, kCorrection, kWarpSums };

// A tile with rows kStride numbers apart, as kernels that take tiles of several kinds see it.
template <typename T, int kStride>
struct StridedTile {
  T* data;
  __device__ __forceinline__ T* at(int row, int column) const {
    return data + row * kStride + column;
  }
};

// Sums over the four lanes that share a row.
__device__ __forceinline__ float sum_of_quad(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// A thread's place: 16 tokens from `token`, keys from `key`, and of the products of tokens with tokens the
// tiles at columns 16 n for n = unit * kKeyWarps + key_warp, as far as they reach below the diagonal.
template <class Tiles>
struct GradientPlace {
  static constexpr int kTokenTiles = Tiles::kChunk / 16;
  static constexpr int kUnits = (kTokenTiles + Tiles::kKeyWarps - 1) / Tiles::kKeyWarps;
  int tile, key_warp, token, key, g, q;

  __device__ __forceinline__ GradientPlace() : GradientPlace(threadIdx.x / 32, threadIdx.x % 32) {}
  __device__ __forceinline__ GradientPlace(int warp, int lane)
      : tile(warp % kTokenTiles),
        key_warp(warp / kTokenTiles),
        token(16 * tile),
        key(Tiles::kOwn * key_warp),
        g(lane / 4),
        q(lane % 4) {}

  // visit(unit, n)
  template <class Visit>
  __device__ __forceinline__ void for_units(const Visit& visit) const {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int n = unit * Tiles::kKeyWarps + key_warp;
      if (n <= tile) visit(unit, n);
    }
  }
  // The same without a branch, which products would turn into selections of every sum: what lies above the
  // diagonal is computed for nothing.
  template <class Visit>
  __device__ __forceinline__ void for_products(const Visit& visit) const {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
      visit(unit, min(unit * Tiles::kKeyWarps + key_warp, kTokenTiles - 1));
  }
  // result[i, j] = function(value, i, j, whether they are of one block of 16) for the units' numbers.
  template <class Function>
  __device__ __forceinline__ Sums<2 * kUnits> weighted(const Sums<2 * kUnits>& sums,
                                                       const Function& function) const {
    return sums.mapped([&](float x, int row, int column) {
      const int n = column / 16 * Tiles::kKeyWarps + key_warp;
      return n <= tile ? function(x, token + g + 8 * row, 16 * n + column % 16, n == tile) : 0.f;
    });
  }
  template <typename T>
  __device__ __forceinline__ void store(const Sums<2 * kUnits>& sums, T* to, int stride) const {
    for_units([&](int unit, int n) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float* pair = &sums.tiles[2 * unit + half][2 * row];
          store_two(to + (token + g + 8 * row) * stride, 16 * n + 8 * half + 2 * q, stride,
                    sizeof(T) == 2, pair[0], pair[1]);
        }
    });
  }
  // parts[token, key_warp] <- the rows' sums of term(row, tile, number, place among the row's numbers)
  template <int kTiles, class Term>
  __device__ __forceinline__ void sum_rows(float* parts, const Term& term) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) sum += term(row, i, 2 * row + j, 2 * i + j);
      sum = sum_of_quad(sum);
      if (q == 0) parts[(token + g + 8 * row) * Tiles::kKeyWarps + key_warp] = sum;
    }
  }
  // visit(tile, place in the tile's sums, number) for the numbers of q or k that stand where the thread's sums of
  // keys stand, of one of the two rows. A tile has at(row, column).
  template <typename T, class Tile, class Visit>
  __device__ __forceinline__ void for_keys(const Tile& tile, int row, const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < Tiles::kOwn / 8; ++i) {
      const T* const at = tile.at(token + g + 8 * row, key + 8 * i + 2 * q);
      Two<T> two;
      if constexpr (sizeof(T) == 2)
        two.word = *reinterpret_cast<const uint32_t*>(at);
      else
        two.values = *reinterpret_cast<const float2*>(at);
#pragma unroll
      for (int j = 0; j < 2; ++j) visit(i, 2 * row + j, two[j]);
    }
  }
  // visit(tile, row 0 or 1, two numbers), for tiles of half types in panels.
  template <typename T, class Visit>
  __device__ __forceinline__ void for_key_pairs(const Panels<T>& tile, const Visit& visit) const {
    const int lane = 4 * g + q;
#pragma unroll
    for (int i = 0; i < Tiles::kOwn / 16; ++i) {
      uint32_t words[4];
      load_matrices(words, tile.at(token + lane % 16, key + 16 * i + lane / 16 * 8));
#pragma unroll
      for (int n = 0; n < 4; ++n) visit(2 * i + n / 2, n % 2, Two<T>{words[n]});
    }
  }
  template <typename T, class Tile>
  __device__ __forceinline__ void read_keys(const Tile& tile, int row,
                                            float (&numbers)[Tiles::kOwn / 4]) const {
    for_keys<T>(tile, row, [&](int i, int j, float x) { numbers[2 * i + j % 2] = x; });
  }
  // parts <- the sums over keys of the tile's numbers times those of `sums`; for two at once.
  template <typename T, int kParts, int kTiles, class Tile>
  __device__ __forceinline__ void dot_rows(const Tile& tile,
                                           const Sums<kTiles>* const (&sums)[kParts],
                                           float* const (&parts)[kParts]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float numbers[Tiles::kOwn / 4];
      read_keys<T>(tile, row, numbers);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
#pragma unroll
          for (int j = 0; j < 2; ++j)
            sum = fmaf(numbers[2 * i + j], sums[part]->tiles[i][2 * row + j], sum);
        sum = sum_of_quad(sum);
        if (q == 0) parts[part][(token + g + 8 * row) * Tiles::kKeyWarps + key_warp] = sum;
      }
    }
  }
};

// The sum of numbers over `lanes` neighbouring threads, a power of two.
__device__ __forceinline__ float sum_of_lanes(float x, int lanes) {
  for (int mask = 1; mask < lanes; mask *= 2) x += __shfl_xor_sync(kAllLanes, x, mask);
  return x;
}

template <int kKeyWarps>
__device__ __forceinline__ float sum_of_parts(const float* parts, int token) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kKeyWarps; ++i) sum += parts[token * kKeyWarps + i];
  return sum;
}

// norms[0, token], norms[1, token] <- or, unless `first`, += x . gy and x . x over the keys that the block has. By all
// threads with keys, which have met since they read `parts`, and meet before norms are used.
template <typename T, class Tiles, int kTiles, class Tile>
__device__ __forceinline__ void add_row_dots(const GradientPlace<Tiles>& place,
                                             const Sums<kTiles>& sums, const Tile& tile,
                                             float* parts, float* norms, bool first) {
  constexpr int kPart = Tiles::kChunk * Tiles::kKeyWarps;
  place.template dot_rows<T, 1>(tile, {&sums}, {parts});
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float numbers[Tiles::kOwn / 4], sum = 0;
    place.template read_keys<T>(tile, row, numbers);
    for (const float x : numbers) sum = fmaf(x, x, sum);
    sum = sum_of_quad(sum);
    if (place.q == 0)
      parts[kPart + (place.token + place.g + 8 * row) * Tiles::kKeyWarps + place.key_warp] = sum;
  }
  Tiles::meet();
  for (int i = threadIdx.x; i < 2 * Tiles::kChunk; i += Tiles::kThreads)
    norms[i] = (first ? 0.f : norms[i]) + sum_of_parts<Tiles::kKeyWarps>(parts, i);
  Tiles::meet();
}

// The gradients of rows x from n gy (chunk_gradients.cu), for the tokens that there are; keys from first_key on.
// norms: what add_row_dots() leaves, or null where there is no norm.
template <typename T, class Tiles, int kTiles, class Tile>
__device__ __forceinline__ void store_rows(const GradientPlace<Tiles>& place,
                                           const Sums<kTiles>& sums, const Tile& tile,
                                           const float* norms, const DeltaRows<T>& to,
                                           const DeltaChunk& chunk, int head, int first_key, int K,
                                           bool pairs) {
  if (!to.data) return;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int token = place.token + place.g + 8 * row;
    const float along = norms ? norms[token] / (norms[Tiles::kChunk + token] + 1e-6f) : 0.f;
    if (token >= chunk.tokens) continue;
    T* const out = chunk.rows(to, head) + token * chunk.row_step(to) + first_key;
    float x[Tiles::kOwn / 4];
    place.template read_keys<T>(tile, row, x);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      store_two(out, place.key + 8 * i + 2 * place.q, K - first_key, pairs,
                sums.tiles[i][2 * row] - along * x[2 * i],
                sums.tiles[i][2 * row + 1] - along * x[2 * i + 1]);
  }
}

// ---- The kernel of warp groups ----------------------------------------------------------------------------

// For BFloat16 and Float16 (group_gradients.cu).
template <typename T>
void launch_delta_group_gradients(const GradientArgs<T>& args, int64_t padded_keys,
                                  const LaunchShape& shape, GpuStream stream);

}  // namespace linescan
