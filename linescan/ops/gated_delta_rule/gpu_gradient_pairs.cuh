// The gradients' kernel of warp groups (group_gradients.cu): products of tokens with tokens, scaled by what decays between the
// two, and what passes over the tokens between them. By the groups: the first has H = E o (gO u^T) and what passes is
// H o q k^T; the second N = -E o (gX u^T), from which M follows, and what passes is N o k k^T.
#pragma once

#include "linescan/ops/gated_delta_rule/gpu_gradient_tiles.cuh"

namespace linescan {

// What a thread scales its pairs by: rows g and g + 8 of its warp's block of 16 tokens, two neighbouring columns of every
// eight. All of it is read at once, while a product is under way.
template <class Tiles>
struct PairFactors {
  static constexpr int kChunk = Tiles::kChunk, kEarlier = kChunk / 16 - 1;
  float weight[2];               // of rows, from N to M
  float row[2];                  // of rows, in the own block
  float2 near[2][2];             // decays there: of row and eight of columns
  float2 own_columns[2];         // of eights of columns there
  float rows[kEarlier][2];       // of rows, in an earlier block
  float2 columns[2 * kEarlier];  // of eights of columns of earlier blocks

  // record: its rows.
  __device__ __forceinline__ PairFactors(const GradientPlace<Tiles>& place,
                                         const DeltaDecays<kChunk>& decays, const float* record) {
    const auto number = [&](DeltaRow which, int token) -> const float& {
      return record[which * kChunk + token];
    };
    const auto two = [](const float& numbers) {
      return *reinterpret_cast<const float2*>(&numbers);
    };
    const bool queries = place.key_warp == 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = place.token + place.g + 8 * r;
      weight[r] = queries ? 1.f : number(kBeta, token);
      row[r] = queries ? number(kFactorQ, token) : -number(kFactorK, token);
#pragma unroll
      for (int block = 0; block < kEarlier; ++block)
        rows[block][r] = decays.from_block(token, block);
#pragma unroll
      for (int half = 0; half <= r; ++half) {
        const float* const two_of_row = &decays.near[token][8 * half + 2 * place.q];
        near[r][half] = make_float2(two_of_row[0], two_of_row[1]);  // at an odd address
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      own_columns[half] = two(number(kFactorK, place.token + 8 * half + 2 * place.q));
#pragma unroll
    for (int t = 0; t < 2 * kEarlier; ++t) columns[t] = two(decays.ahead[8 * t + 2 * place.q]);
#pragma unroll
    for (int block = 0; block < kEarlier; ++block)
#pragma unroll
      for (int r = 0; r < 2; ++r) rows[block][r] = row[r] * exp2_approx(rows[block][r]);
  }
  // Of the numbers of row r in an eight of columns.
  template <int kBlock>
  __device__ __forceinline__ float2 of(int r, int t) const {
    if (t / 2 < kBlock)
      return make_float2(rows[t / 2][r] * columns[t].x, rows[t / 2][r] * columns[t].y);
    const float2 decay = near[r][t % 2], column = own_columns[t % 2];
    return make_float2(decay.x * (row[r] * column.x), decay.y * (row[r] * column.y));
  }
};

// result <- H or M of the warp's block of tokens, zeros behind the diagonal; tiles.over_of(..) <- what passes.
// row_sums <- its terms, summed up over rows g and g + 8. `pairs` and `square` are the products without their factors;
// kBlock: place.tile.
template <int kBlock, typename T, class Tiles>
__device__ __forceinline__ void weigh_pairs(const Tiles& tiles, const GradientPlace<Tiles>& place,
                                            const PairFactors<Tiles>& factors,
                                            const Sums<Tiles::kChunk / 8>& pairs,
                                            const Sums<Tiles::kChunk / 8>& square,
                                            float (&row_sums)[2]) {
  constexpr int kChunk = Tiles::kChunk;
  const bool queries = place.key_warp == 0;
  const Panels<T> result = {tiles.H.data + place.key_warp * Tiles::kSquare, kChunk};
  float* const over = tiles.over_of(place.key_warp, kBlock, place.g);
  bool at_or_behind[2], is[2];  // of eights on the diagonal: row g and column 2 q + n
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    at_or_behind[n] = place.g >= 2 * place.q + n;
    is[n] = queries ? at_or_behind[n] : place.g > 2 * place.q + n;
  }
  // What passes over a column comes from the columns in front of it. Ones in a product add them up: tf32 takes the
  // sums' registers as they are, once its numbers of k stand in another order (2 q is q, 2 q + 1 is q + 4).
  constexpr uint32_t kOne = 0x3F800000;
  const uint32_t all[2] = {kOne, kOne};
  const uint32_t in_front[2] = {2 * place.q < place.g ? kOne : 0,
                                2 * place.q + 1 < place.g ? kOne : 0};
  float so_far[4] = {};  // of rows, over the columns so far, twice each
#pragma unroll
  for (int block = 0; block < kChunk / 16; ++block) {
    uint32_t words[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (block > kBlock) break;
      const int t = 2 * block + half;
      uint32_t passes[4] = {};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool on_diagonal = block == kBlock && r == half;
        if (block == kBlock && r < half) continue;
        const float2 factor = factors.template of<kBlock>(r, t);
        float x[2] = {pairs.tiles[t][2 * r] * factor.x, pairs.tiles[t][2 * r + 1] * factor.y};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if (on_diagonal && !is[n]) x[n] = 0.f;
          passes[r + 2 * n] = __float_as_uint(x[n] * square.tiles[t][2 * r + n]);
        }
        words[2 * half + r] =
            pair_from_floats<T>(factors.weight[r] * x[0], factors.weight[r] * x[1]);
      }
      float before[4];
      mma_tf32(before, passes, in_front, so_far);
      mma_tf32(so_far, passes, all, so_far);
      // What passes over two columns, from rows at them or behind to columns in front.
      float passing[2] = {};
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < 2; ++n)
          if (block < kBlock || r > half || (r == half && at_or_behind[n]))
            passing[n] = fmaf(factors.weight[r], before[2 * r + n], passing[n]);
      *reinterpret_cast<float2*>(over + 8 * t + 2 * place.q) = make_float2(passing[0], passing[1]);
    }
    const int lane = 4 * place.g + place.q;
    store_matrices<false>(result.at(16 * kBlock + lane % 16, 16 * block + lane / 16 * 8), words);
  }
  row_sums[0] = so_far[0];
  row_sums[1] = so_far[2];
}

// The same for any block; a warp's code knows its own, so that nothing stands between the blocks of a row.
template <typename T, class Tiles>
__device__ __forceinline__ void weigh_pairs(const Tiles& tiles, const GradientPlace<Tiles>& place,
                                            const PairFactors<Tiles>& factors,
                                            const Sums<Tiles::kChunk / 8>& pairs,
                                            const Sums<Tiles::kChunk / 8>& square,
                                            float (&row_sums)[2]) {
  static_assert(Tiles::kChunk == 64);
  switch (place.tile) {
    case 0:
      return weigh_pairs<0, T>(tiles, place, factors, pairs, square, row_sums);
    case 1:
      return weigh_pairs<1, T>(tiles, place, factors, pairs, square, row_sums);
    case 2:
      return weigh_pairs<2, T>(tiles, place, factors, pairs, square, row_sums);
    default:
      return weigh_pairs<3, T>(tiles, place, factors, pairs, square, row_sums);
  }
}

}  // namespace linescan
