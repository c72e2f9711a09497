// What makes a record (gpu_record.cuh) of the products q k^T and k k^T: gates and their decays, factors of the norms, rows, and L and
// P pair by pair.
#pragma once

#include "linescan/ops/device_code/tile_product.cuh"
#include "linescan/ops/gated_delta_rule/gpu_record.cuh"
#include "linescan/ops/gated_delta_rule/gpu_tokens.cuh"

namespace linescan {

// E[i, j] (gpu_record.cuh) for i >= j, in factors: exp of the gates up to i in its block of 16 tokens, of the blocks between, and of
// the gates behind j in its block; within a block the same of its eights, and within an eight pair by pair. A sum of gates
// is never a difference of sums: one strong gate would leave nothing of the digits of those behind it.
template <int kChunk>
struct alignas(16) RecordDecays {
  float near[kChunk][8];  // E[i, j] for j in i's eight, zero for i < j
  // From the start of its eight, and of its block, to a token, itself included; and from behind it to their ends.
  float upto_8[kChunk], upto[kChunk];
  float ahead_8[kChunk], ahead[kChunk];

  // By two threads a token, a block a warp; `gate`: log2(e) g, at a multiple of 16 bytes.
  __device__ __forceinline__ void fill(const float* gate, int thread) {
    const int i = thread / 2, lane = thread % 2, first = i / 8 * 8, place = i % 8;
    const auto four = [&](int at) { return *reinterpret_cast<const float4*>(gate + at); };
    const float4 low = four(first), high = four(first + 4);
    const float gates[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const float4 other_low = four(first ^ 8), other_high = four((first ^ 8) + 4);
    const float other = ((other_low.x + other_low.y) + (other_low.z + other_low.w)) +
                        ((other_high.x + other_high.y) + (other_high.z + other_high.w));
    // A thread's four tokens j of the eight, the last one first; of the gates behind them up to i, and of those behind i.
    float behind = 0, rest = 0, own[4];
#pragma unroll
    for (int j = 7; j >= 4; --j) behind += lane == 0 && j <= place ? gates[j] : 0.f;
#pragma unroll
    for (int j = 7; j >= 1; --j) rest += j > place ? gates[j] : 0.f;
#pragma unroll
    for (int n = 3; n >= 0; --n) {
      const bool in_front = 4 * lane + n <= place;
      const float e = exp2_approx(behind);
      own[n] = in_front ? e : 0.f;
      behind += in_front ? (lane == 0 ? gates[n] : gates[4 + n]) : 0.f;
    }
    *reinterpret_cast<float4*>(&near[i][4 * lane]) = make_float4(own[0], own[1], own[2], own[3]);
    // The first thread has all gates up to i.
    const float sum = lane == 0 ? behind : rest;
    (lane == 0 ? upto_8 : ahead_8)[i] = exp2_approx(sum);
    (lane == 0 ? upto : ahead)[i] = exp2_approx(lane == i / 8 % 2 ? sum : sum + other);
  }
  // exp of the gates of a block, and of all from one up to another, which does not belong to them.
  __device__ __forceinline__ float block(int number) const { return upto[16 * number + 15]; }
  __device__ __forceinline__ float blocks(int from, int to) const {
    float product = 1;
#pragma unroll
    for (int number = 0; number < kChunk / 16; ++number)
      if (from <= number && number < to) product *= block(number);
    return product;
  }
  // exp of all gates up to token i, and of all behind it.
  __device__ __forceinline__ float from_start(int i) const { return upto[i] * blocks(0, i / 16); }
  __device__ __forceinline__ float to_end(int i) const {
    return ahead[i] * blocks(i / 16 + 1, kChunk / 16);
  }
};

// Where the gate of a walk's first token and its beta lie, of a value head; the tokens behind it follow in steps.
struct RecordGateRows {
  const unsigned char *gate, *beta;

  template <typename T>
  __device__ __forceinline__ RecordGateRows(const DeltaInputs<T>& in, const DeltaWalk& walk,
                                            int head) {
    const int64_t token = walk.token(0);
    gate = reinterpret_cast<const unsigned char*>(in.g.at(walk.batch, token, head));
    beta =
        in.beta.data + (walk.batch * in.beta.batch + token * in.beta.token + head * in.beta.head) *
                           bytes_of_beta(in);
  }
  template <typename T>
  static __device__ __forceinline__ int bytes_of_beta(const DeltaInputs<T>& in) {
    return in.beta_type == DType::kFloat32 ? 4 : 2;
  }
};

// The gates of a warp's block of 16 tokens, by its first lanes, and their betas, by the others; of one value head or chunk after the
// other. They are asked for while the record before is made: nothing waits for them, or does anything with them, until they are
// kept.
template <typename T, int kChunk>
class RecordGates {
 public:
  __device__ __forceinline__ explicit RecordGates(const DeltaInputs<T>& in) : in_(in) {}

  // Of so many tokens of a walk, whose direction is `step`, from one on.
  __device__ __forceinline__ void ask(const RecordGateRows& rows, int64_t start, int tokens,
                                      int step, int thread) {
    at_ = (is_beta() ? rows.beta : rows.gate) +
          (start + place(thread)) * step *
              (is_beta() ? in_.beta.token * beta_bytes() : in_.g.token * 4);
    read(place(thread) < tokens);
  }
  // The next value head's.
  __device__ __forceinline__ void ask_next_head(int tokens, int thread) {
    at_ += is_beta() ? in_.beta.head * beta_bytes() : in_.g.head * 4;
    read(place(thread) < tokens);
  }
  // What was asked for, of a value head, to [gates and betas, kChunk], where it stands from now on as far as the warp is concerned.
  __device__ __forceinline__ void keep(float* to, int head, int tokens, int thread) const {
    float number = 0;
    if (place(thread) < tokens)
      number = is_beta() ? in_.beta_of(beta_in(bits_))
                         : kLog2e * in_.gate_of(__uint_as_float(bits_), head);
    to[(is_beta() ? kChunk : 0) + place(thread)] = number;
    __syncwarp();
  }

 private:
  const DeltaInputs<T>& in_;
  const unsigned char* at_ = nullptr;
  uint32_t bits_ = 0;  // as they stand in memory

  // The token of a thread.
  static __device__ __forceinline__ int place(int thread) { return thread / 32 * 16 + thread % 16; }
  static __device__ __forceinline__ bool is_beta() { return threadIdx.x % 32 >= 16; }
  __device__ __forceinline__ float beta_in(uint32_t bits) const {
    return read_as_float(&bits, in_.beta_type, 0);
  }
  __device__ __forceinline__ int beta_bytes() const { return RecordGateRows::bytes_of_beta(in_); }
  __device__ __forceinline__ void read(bool exists) {
    if (!exists) return;
    if (is_beta() && beta_bytes() == 2)
      bits_ = *reinterpret_cast<const uint16_t*>(at_);
    else
      bits_ = *reinterpret_cast<const uint32_t*>(at_);
  }
};

// The record's rows of token i. gate: those of RecordGates.
template <typename T, int kChunk>
__device__ __forceinline__ void store_rows(const DeltaRecord<T>& record, int i, int tokens,
                                           float scale, const float* gate, const float* factor_q,
                                           const float* factor_k,
                                           const RecordDecays<kChunk>& decays) {
  const float before = decays.from_start(i), valid = i < tokens ? 1.f : 0.f;
  const float nk = valid * factor_k[i], nq = valid * scale * factor_q[i];
  record.rows[kGate * kChunk + i] = gate[i];
  record.rows[kBeta * kChunk + i] = gate[kChunk + i];
  record.rows[kFactorQ * kChunk + i] = nq;
  record.rows[kFactorK * kChunk + i] = nk;
  record.rows[kReadQ * kChunk + i] = nq * before;
  record.rows[kReadK * kChunk + i] = nk * before;
  record.rows[kWrite * kChunk + i] = nk * decays.to_end(i);
  if (i == kChunk - 1) record.rows[kDecay * kChunk] = before;
}

// factors <- 1 / |row| of a matrix of tokens, or 1; two threads a row.
template <typename T, int kKeys, class Matrix>
__device__ __forceinline__ void norm_factors(const Matrix& tokens, bool norm, float* factors,
                                             int thread) {
  if (!norm) {
    if (thread % 2 == 0) factors[thread / 2] = 1;
    return;
  }
  using Numbers = Pack<T, 16 / sizeof(T)>;
  constexpr int kNumbers = 16 / sizeof(T);
  float sum = 0;
#pragma unroll 4
  for (int i = thread % 2 * kNumbers; i < kKeys; i += 2 * kNumbers) {
    const Numbers numbers = *reinterpret_cast<const Numbers*>(tokens.at(thread / 2, i));
    for (const T number : numbers.values) sum = fmaf(to_float(number), to_float(number), sum);
  }
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  if (thread % 2 == 0) factors[thread / 2] = rsqrtf(sum + 1e-6f);
}

// Calls visit(n, half, r, i, j, row, column) for every thread's pairs of tokens in its warp's 16 x 16 blocks: i and j, j + 1 have
// numbers 2 r and 2 r + 1 of tile `half` of block n's sums; row times column: E[i, j] nk_j of both. Before, for i of another row of
// blocks, begin_row(r, i). Blocks, of the thread's `lane`: those of kMost that has(n), at row(n) and column(n), with
// between(decays, n): exp of the gates of the blocks between; begins_row(n): in another row than the block before; is_near(n): on the
// diagonal.
template <class Blocks, int kChunk, class BeginRow, class Visit>
__device__ __forceinline__ void for_each_pair(Blocks own, const RecordDecays<kChunk>& decays,
                                              const float* factor_k, const BeginRow& begin_row,
                                              const Visit& visit) {
  const int lane = own.lane;
  const auto two = [](const float* at) { return *reinterpret_cast<const float2*>(at); };
  const auto product = [](float2 a, float2 b) { return make_float2(a.x * b.x, a.y * b.y); };
  float upto[2];
#pragma unroll
  for (int n = 0; n < Blocks::kMost; ++n) {
    const int row = own.row(n), first = 16 * own.column(n) + lane % 4 * 2;
    const int i[2] = {16 * row + lane / 4, 16 * row + lane / 4 + 8};
    if (own.begins_row(n))
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        upto[r] = decays.upto[i[r]];
        begin_row(r, i[r]);
      }
    if (!own.has(n)) continue;
    const float2 factors[2] = {two(factor_k + first), two(factor_k + first + 8)};
    if (own.is_near(n)) {
      const float2 zeros = {};
      visit(n, 0, 0, i[0], first, 1.f, product(two(&decays.near[i[0]][lane % 4 * 2]), factors[0]));
      visit(n, 1, 0, i[0], first + 8, 0.f, zeros);
      visit(n, 0, 1, i[1], first, decays.upto_8[i[1]],
            product(two(decays.ahead_8 + first), factors[0]));
      visit(n, 1, 1, i[1], first + 8, 1.f,
            product(two(&decays.near[i[1]][lane % 4 * 2]), factors[1]));
    } else {
      const float between = own.between(decays, n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 column = product(two(decays.ahead + first + 8 * half), factors[half]);
#pragma unroll
        for (int r = 0; r < 2; ++r)
          visit(n, half, r, i[r], first + 8 * half, upto[r] * between, column);
      }
    }
  }
}

// Two neighbours of L, from those of k k^T, and of P, from q k^T. factor: beta_i nk_i and scale nq_i, times for_each_pair()'s
// row.
template <int kStride>
__device__ __forceinline__ void store_l(float* L, int i, int j, float factor, float2 column,
                                        const float* kk) {
  *reinterpret_cast<float2*>(L + i * kStride + j) = make_float2(
      i == j ? 0.f : factor * column.x * kk[0], i == j + 1 ? 0.f : factor * column.y * kk[1]);
}
template <class Matrix>
__device__ __forceinline__ void store_p(const Matrix& P, int i, int j, float factor, float2 column,
                                        const float* qk) {
  store_two(P.at(i, j), 0, 2, true, factor * column.x * qk[0], factor * column.y * qk[1]);
}

}  // namespace linescan
