// The record of a chunk and value head: what the scans need to know beside q, k and v. Written once by
// the records' kernel and read by every block that walks over the chunk, or made by a scan for itself.
//
//   A [chunk, chunk]  (I + L)^-1, L[i, j] = beta_i nk_i nk_j E[i, j] (k_i . k_j) below the diagonal
//   P [chunk, chunk]  scale nq_i nk_j E[i, j] (q_i . k_j), diagonal included
//   rows of floats    see DeltaRow; nq, nk are the factors of the L2 norm, or 1
//
// In a row of A or P in memory packs stand where square_pack() says.
//
// E[i, j] = exp(g_{j+1} + .. + g_i); q and k are as they come. Rows of tokens that are missing from the last chunk
// of a sequence: A is the identity, everything else zero, but decays one.
#pragma once

#include "linescan/ops/device_code/numbers.cuh"
#include "linescan/ops/gated_delta_rule/gpu_layout.h"

namespace linescan {

// The layout's numbers, as device code may use them.
template <typename T, int kKeys, bool kDeep = false>
struct DeltaSizes {
  static constexpr DeltaLayout kLayout{sizeof(T), kKeys, kDeep};
  static constexpr int kChunk = kLayout.chunk(), kStride = kLayout.key_stride();
  static constexpr int kSquare = kLayout.square_stride();
};

enum DeltaRow {
  kGate,     // log2(e) g
  kBeta,     // after the sigmoid
  kFactorQ,  // scale nq
  kFactorK,  // nk
  kReadQ,    // scale nq exp(g up to here): of q when it reads the state in front of the chunk
  kReadK,    // nk exp(g up to here): of k when it reads
  kWrite,    // nk exp(g from here to the end of the chunk): of k when it writes
  kDecay,    // exp(all g of the chunk), in the row's first place
};

// Packs of 16 bytes stand as in panels (device_code/group_product.cuh) where chunks have 64 tokens of a half type: products of
// warp groups then find A and P in place when they are copied as they lie.
template <typename T, int kChunk>
__device__ __forceinline__ constexpr int square_pack(int row, int pack) {
  return sizeof(T) == 2 && kChunk == 64 ? pack ^ row % 8 : pack;
}

template <typename T>
struct DeltaRecord {
  T *A, *P;
  float* rows;
};

template <typename T>
__device__ __forceinline__ DeltaRecord<T> delta_record(std::byte* records, int64_t number,
                                                       int chunk) {
  std::byte* at =
      records + number * (2 * chunk * chunk * int64_t{sizeof(T)} + kDeltaRecordRows * chunk * 4);
  T* A = reinterpret_cast<T*>(at);
  return {A, A + chunk * chunk, reinterpret_cast<float*>(A + 2 * chunk * chunk)};
}

// E[i, j] for i >= j. Sums of the gates between two tokens, never a difference of sums: one strong gate would
// leave nothing of the digits of those behind it. Tokens are seen in blocks of 16: pairs within a block
// have a table, others add up the end of j's block, the blocks between and the start of i's.
template <int kChunk>
struct alignas(16) DeltaDecays {
  static constexpr int kBlocks = kChunk / 16;
  float near[kChunk][17];  // E[i, j] for j in i's block; rows of half a warp share no banks
  float ahead[kChunk];     // sum of gates after a token to the end of its block
  float upto[kChunk];      // from the start of its block to a token, itself included
  float between[kBlocks][kBlocks];  // [i, j]: of the blocks between j and i

  // By kThreads, a multiple of kChunk; `gate`: log2(e) g, at a multiple of 16 bytes. They must meet before the decays
  // are used.
  template <int kThreads>
  __device__ __forceinline__ void fill(const float* gate, int thread) {
    // A token's threads share the tokens of its block.
    constexpr int kLanes = kThreads >= 4 * kChunk ? 4 : kThreads / kChunk, kOwn = 16 / kLanes;
    static_assert(kThreads % kChunk == 0);
    const int i = thread / kLanes, lane = thread % kLanes, first = i / 16 * 16;
    if (i < kChunk) {
      // Of the gates up to i, of those behind i, and of those behind this thread's up to i.
      float sum = 0, rest = 0, behind = 0;
#pragma unroll
      for (int j = 12; j >= 0; j -= 4) {
        if (j + 4 == (lane + 1) * kOwn) behind = sum;
        const auto gates = *reinterpret_cast<const float4*>(gate + first + j);
        const auto add = [&](int j, float x) { (first + j <= i ? sum : rest) += x; };
        add(j + 3, gates.w);
        add(j + 2, gates.z);
        add(j + 1, gates.y);
        add(j, gates.x);
      }
      float own[kOwn];
#pragma unroll
      for (int n = kOwn - 1; n >= 0; --n) {
        const int j = lane * kOwn + n;
        const bool in_front = first + j <= i;
        own[n] = in_front ? exp2_approx(behind) : 0.f;
        if (in_front) behind += gate[first + j];
      }
      float* const to = &near[i][lane * kOwn];
#pragma unroll
      for (int n = 0; n < kOwn; ++n) to[n] = own[n];
      if (lane == 0) {
        upto[i] = sum;
        ahead[i] = rest;
      }
    }
    const int pair = kThreads - 1 - thread;
    if (pair < kBlocks * kBlocks) {
      const int to = pair / kBlocks, from = pair % kBlocks;
      float sum = 0;
      for (int block = from + 1; block < to; ++block)
#pragma unroll
        for (int j = 0; j < 16; j += 4) {
          const auto four = *reinterpret_cast<const float4*>(gate + 16 * block + j);
          sum += (four.x + four.y) + (four.z + four.w);
        }
      between[to][from] = sum;
    }
  }
  // `together`: i and j are of one block.
  __device__ __forceinline__ float operator()(int i, int j, bool together) const {
    return together ? near[i][j % 16] : exp2_approx(upto[i] + between[i / 16][j / 16] + ahead[j]);
  }
  // The exponent for tokens of an earlier block, but for what is ahead of them in it.
  __device__ __forceinline__ float from_block(int i, int block) const {
    return upto[i] + between[i / 16][block];
  }
};

}  // namespace linescan
