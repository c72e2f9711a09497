// What the kernels in which a warp walks a whole sequence (gpu_sequence.cuh) keep in shared memory, and how tokens, gates
// and states come there and leave.
#pragma once

#include "linescan/ops/device_code/group_product.cuh"
#include "linescan/ops/gated_delta_rule/gpu_sequence_products.cuh"
#include "linescan/ops/gated_delta_rule/gpu_tokens.cuh"

namespace linescan {

// ---- A warp's shared memory -----------------------------------------------------------------------

// Rows of floats, one number a token. kToken.. means what DeltaRow (gpu_record.cuh) has under the same name.
enum SequenceRow {
  kOwnDecay,  // exp(g)
  kUpto,  // the product of these from the start of the token's block of 8 to the token, itself included
  kAhead,    // nk times that from behind it to the end of the block
  kSquareQ,  // |q|^2, for the norm
  kSquareK,  // |k|^2
  kTokenBeta,
  kTokenFactorQ,
  kTokenFactorK,
  kTokenReadQ,
  kTokenReadK,
  kTokenWrite,
  kGateParameters,  // not by token
  kSequenceRows
};
static_assert(kSequenceRows == DeltaLayout::kSequenceRows);

enum SequenceTile { kTileK, kTileV, kTileQ, kTileGo };

template <typename T>
struct SequenceStage {
  T* data;

  __device__ __forceinline__ T* tile(SequenceTile which) const {
    return data + which * kSequenceTile;
  }
  __device__ __forceinline__ TokenOperand<T> operand(SequenceTile which) const {
    TokenOperand<T> tokens;
    tokens.load(tile(which));
    return tokens;
  }
  __device__ __forceinline__ TokenColumns<T> columns(SequenceTile which) const {
    TokenColumns<T> tokens;
    tokens.load(tile(which));
    return tokens;
  }
  // Rounded: S in front of the chunk, and A.
  __device__ __forceinline__ uint4* kept() const {
    return reinterpret_cast<uint4*>(tile(kTileGo) + kSequenceTile);
  }
};

// Two stages of tiles, those of a backward pass with go and a rounded state; then the rows.
template <typename T, bool kBackward>
struct SequenceTiles {
  static constexpr int64_t kStageBytes = DeltaLayout::sequence_stage_bytes(kBackward);
  static constexpr int64_t kWarpBytes = DeltaLayout::sequence_warp_bytes(kBackward);
  unsigned char* stages;
  float* rows;

  __device__ __forceinline__ SequenceTiles()
      : stages(shared_memory() + threadIdx.x / 32 * kWarpBytes),
        rows(reinterpret_cast<float*>(stages + 2 * kStageBytes)) {}
  __device__ __forceinline__ SequenceStage<T> stage(int chunk) const {
    return {reinterpret_cast<T*>(stages + (chunk & 1) * kStageBytes)};
  }
  __device__ __forceinline__ float* scratch() const { return reinterpret_cast<float*>(stages); }
  __device__ __forceinline__ float& row(SequenceRow which, int token) const {
    return rows[which * kSequenceTokens + token];
  }
};

// ---- Tokens ---------------------------------------------------------------------------------------

// A tensor [batch, length, heads, columns].
template <typename T>
struct SequenceTensor {
  DeltaRows<T> rows = {};
  int64_t step = 0;  // from token to token of a walk
  int columns = 0;

  SequenceTensor(const TensorView& view, bool reverse) {
    if (!view) return;
    rows = delta_rows<T>(view);
    // One token needs no step; rows_are_vectors() has not looked at it.
    const int64_t token = view.shape[1] > 1 ? rows.token : 0;
    step = reverse ? -token : token;
    columns = static_cast<int>(view.shape[3]);
  }
};

// The rows of a chunk's tokens, as a lane sees them: a token of either half, eight columns. kVectors: rows of all
// tensors are vectors.
template <typename T, bool kVectors>
struct SequenceRows {
  const SequenceTensor<T>& of;
  T* at = nullptr;

  __device__ __forceinline__ void start(const DeltaWalk& walk, int64_t chunk, int head) {
    at = of.rows.at(walk.batch, walk.first, head) + (chunk * kSequenceTokens + token()) * of.step +
         column();
  }
  __device__ __forceinline__ void move(int chunks) { at += chunks * kSequenceTokens * of.step; }

  // tile <- the rows, zeros where there are no tokens or columns; arrives with the copies committed next.
  __device__ __forceinline__ void fetch(std::remove_const_t<T>* tile, int tokens) const {
    std::remove_const_t<T>* const to = place_of(tile, token(), column());
    if constexpr (kVectors) {
      const int valid = column() < of.columns ? tokens - token() : 0;
      copy_async<16>(to, at, valid > 0 ? 16 : 0);
      copy_async<16>(to + 8 * kSequenceWidth, at + 8 * of.step, valid > 8 ? 16 : 0);
    } else {
#pragma unroll 1
      for (int i = 0; i < 16; ++i) {
        const int row = i / 8 * 8, c = i % 8;
        const bool valid = token() + row < tokens && column() + c < of.columns;
        to[row * kSequenceWidth + c] = valid ? at[row * of.step + c] : std::remove_const_t<T>{};
      }
    }
  }
  // The rows <- an operand [16 tokens, 32], through `tile`, which nobody reads any more.
  __device__ __forceinline__ void send(T* tile, const TokenOperand<T>& tokens_by_columns,
                                       int tokens) const {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 2; ++k)
      store_matrices<false>(place_of(tile, lane % 16, 16 * k + lane / 16 * 8),
                            tokens_by_columns.parts[k].words);
    __syncwarp();
    const T* const from = place_of(tile, token(), column());
#pragma unroll
    for (int row = 0; row < kSequenceTokens; row += 8)
      if (token() + row < tokens) store_row(at + row * of.step, from + row * kSequenceWidth);
  }

 private:
  __device__ __forceinline__ void store_row(T* to, const T* from) const {
    if constexpr (kVectors) {
      if (column() < of.columns)
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll 1
      for (int c = 0; c < min(of.columns - column(), 8); ++c) to[c] = from[c];
    }
  }
  static __device__ __forceinline__ int token() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int column() { return threadIdx.x % 4 * 8; }
};

// What a token's gate comes from in lanes 0 to 15, and its beta in lanes 16 to 31: one register, on its way while the chunk
// before is worked on.
template <typename T>
struct SequenceGates {
  const DeltaInputs<T>& in;
  const bool& reverse;
  float* parameters;  // in shared memory: -exp(A_log) and dt_bias
  const unsigned char* at = nullptr;

  __device__ __forceinline__ void start(const DeltaWalk& walk, int64_t chunk, int head) {
    at = of_gate()
             ? reinterpret_cast<const unsigned char*>(in.g.at(walk.batch, walk.first, head))
             : in.beta.data + beta_bytes() * (walk.batch * in.beta.batch +
                                              walk.first * in.beta.token + head * in.beta.head);
    at += (chunk * kSequenceTokens + token()) * step();
    if (!in.A_log || threadIdx.x % 32 > 0) return;
    parameters[0] = -expf(in.A_log[head]);
    parameters[1] = in.dt_bias ? in.dt_bias[head] : 0.f;
  }
  __device__ __forceinline__ void move(int chunks) { at += chunks * kSequenceTokens * step(); }
  __device__ __forceinline__ uint32_t fetch(int tokens) const {
    if (token() >= tokens) return 0;
    return of_gate() || wide() ? *reinterpret_cast<const uint32_t*>(at)
                               : *reinterpret_cast<const uint16_t*>(at);
  }
  // exp(g), or beta, of what was fetched. To be found before the next ones are asked for: both may have the same scoreboard.
  __device__ __forceinline__ float value_of(uint32_t bits, int tokens) const {
    const bool valid = token() < tokens;
    const float number = __uint_as_float(bits);
    float value = of_gate() ? 1.f : 0.f;
    if (valid && of_gate())
      value = exp2_approx(kLog2e *
                          (in.A_log ? parameters[0] * softplus(number + parameters[1]) : number));
    else if (valid)
      value = in.beta_of(wide() ? number : Two<T>{bits}[0]);
    return in_register(value);
  }

 private:
  static __device__ __forceinline__ int token() {
    return static_cast<int>(threadIdx.x) % kSequenceTokens;
  }
  static __device__ __forceinline__ bool of_gate() { return threadIdx.x % 32 < kSequenceTokens; }
  __device__ __forceinline__ bool wide() const { return in.beta_type == DType::kFloat32; }
  __device__ __forceinline__ int beta_bytes() const { return wide() ? 4 : 2; }
  // Bytes from token to token.
  __device__ __forceinline__ int64_t step() const {
    const int64_t bytes = of_gate() ? 4 * in.g.token : beta_bytes() * in.beta.token;
    return reverse ? -bytes : bytes;
  }
};

// The chunks of a sequence, and the tokens in one: none outside of it.
struct SequenceChunks {
  int count, of_last;

  __device__ __forceinline__ explicit SequenceChunks(const DeltaWalk& walk)
      : count(static_cast<int>((walk.length + kSequenceTokens - 1) / kSequenceTokens)),
        of_last(static_cast<int>((walk.length - 1) % kSequenceTokens) + 1) {}
  __device__ __forceinline__ int tokens(int chunk) const {
    if (chunk < 0 || chunk >= count) return 0;
    return chunk + 1 == count ? of_last : kSequenceTokens;
  }
};

// ---- States ---------------------------------------------------------------------------------------

// A state of the caller's passes through shared memory that nobody uses, [32 of V, 33].
inline constexpr int kSquarePitch = kSequenceWidth + 1;

// visit(number, place in that memory)
template <class Visit>
__device__ __forceinline__ void for_square(Sums<4> (&state)[2], const Visit& visit) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        visit(state[m].tiles[i][j],
              (16 * m + g + 8 * (j >> 1)) * kSquarePitch + 8 * i + 2 * q + (j & 1));
}
// How lanes go over a state of the caller's: side by side along V or K, and row after row along the other.
struct SquareWalk {
  float* at;
  int64_t step;
  int rows, place, place_step;
  bool own;

  __device__ __forceinline__ SquareWalk(const DeltaStates& states, int64_t sequence, int head,
                                        int V, int K) {
    const int lane = threadIdx.x % 32;
    const bool along_v = states.value == 1;
    at = states.of(sequence, head) + lane * (along_v ? states.value : states.key);
    step = along_v ? states.key : states.value;
    rows = along_v ? K : V;
    place = along_v ? kSquarePitch * lane : lane;
    place_step = along_v ? 1 : kSquarePitch;
    own = lane < (along_v ? V : K);
  }
};

// Zero if there is none.
template <class Tiles>
__device__ __forceinline__ void load_square(Sums<4> (&state)[2], const Tiles& tiles,
                                            const DeltaStates& from, int64_t sequence, int head,
                                            int V, int K) {
  for (Sums<4>& half : state) half.clear();
  if (!from.data) return;
  SquareWalk walk(from, sequence, head, V, K);
  __syncwarp();
#pragma unroll 4
  for (int i = 0; i < kSequenceWidth; ++i, walk.place += walk.place_step, walk.at += walk.step)
    tiles.scratch()[walk.place] = walk.own && i < walk.rows ? *walk.at : 0.f;
  __syncwarp();
  for_square(state, [&](float& x, int at) { x = tiles.scratch()[at]; });
  __syncwarp();
}
template <class Tiles>
__device__ __forceinline__ void store_square(Sums<4> (&state)[2], const Tiles& tiles,
                                             const DeltaStates& to, int64_t sequence, int head,
                                             int V, int K) {
  if (!to.data) return;
  SquareWalk walk(to, sequence, head, V, K);
  __syncwarp();
  for_square(state, [&](float x, int at) { tiles.scratch()[at] = x; });
  __syncwarp();
  if (walk.own) {
#pragma unroll 4
    for (int i = 0; i < walk.rows; ++i, walk.place += walk.place_step, walk.at += walk.step)
      *walk.at = tiles.scratch()[walk.place];
  }
  __syncwarp();
}

}  // namespace linescan
