// What the kernels of gated_delta_rule share: the tensors, how sequences are walked, how they are cut
// into chunks, and how tokens get into shared memory.
#pragma once

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/device_code/group_product.cuh"
#include "linescan/ops/device_code/numbers.cuh"
#include "linescan/ops/device_code/row_boxes.cuh"
#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"

namespace linescan {

// A tensor [batch, length, heads, ..] whose last dimension is contiguous. Null: absent.
template <typename T>
struct DeltaRows {
  T* data;
  int64_t batch, token, head;  // strides

  __device__ __forceinline__ T* at(int64_t b, int64_t t, int64_t h) const {
    return data + b * batch + t * token + h * head;
  }
};
template <typename T>
DeltaRows<T> delta_rows(const TensorView& view) {
  if (!view) return {};
  return {view.as<T>(), view.strides[0], view.strides[1], view.strides[2]};
}

// Whether every row of the tensor starts at a multiple of 16 bytes and so does its end.
inline bool rows_are_vectors(const TensorView& view) {
  if (!view) return true;
  const int64_t numbers = 16 / size_of(view.dtype);
  for (int dim = 0; dim < 3; ++dim)
    if (view.shape[dim] > 1 && view.strides[dim] % numbers != 0) return false;
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.shape[3] % numbers == 0;
}

// Whether two neighbours in a row, from an even one on, are one aligned access everywhere.
inline bool rows_are_pairs(const TensorView& view) {
  for (int dim = 0; dim < 3; ++dim)
    if (view.shape[dim] > 1 && view.strides[dim] % 2 != 0) return false;
  return reinterpret_cast<std::uintptr_t>(view.data) % (2 * size_of(view.dtype)) == 0 &&
         view.shape[3] % 2 == 0;
}

// [sequences, value_heads, K, V] or [.., V, K], any strides.
struct DeltaStates {
  float* data;
  int64_t sequence, head, key, value;  // strides

  __device__ __forceinline__ float* of(int64_t s, int64_t h) const {
    return data + s * sequence + h * head;
  }
};
inline DeltaStates delta_states(const TensorView& view, bool v_first) {
  if (!view) return {};
  return {view.as<float>(), view.strides[0], view.strides[1], view.strides[v_first ? 3 : 2],
          view.strides[v_first ? 2 : 3]};
}

template <typename T>
struct DeltaInputs {
  DeltaRows<const T> q, k, v;
  DeltaRows<const float> g;
  DeltaRows<const unsigned char> beta;  // strides in elements of beta_type
  DType beta_type;
  const float *A_log, *dt_bias;  // may be null
  int heads, value_heads, K, V;
  float scale, largest_beta;
  bool norm, sigmoid, vectors;

  __device__ __forceinline__ int group() const { return value_heads / heads; }

  // The gate's two inputs on their way to g, for the gradient as well.
  __device__ __forceinline__ float gate(int64_t b, int64_t t, int h) const {
    return gate_of(*g.at(b, t, h), h);
  }
  __device__ __forceinline__ float gate_of(float raw, int h) const {
    if (!A_log) return raw;
    return -expf(A_log[h]) * softplus(dt_bias ? raw + dt_bias[h] : raw);
  }
  __device__ __forceinline__ float raw_beta(int64_t b, int64_t t, int h) const {
    return read_as_float(beta.data, beta_type, b * beta.batch + t * beta.token + h * beta.head);
  }
  __device__ __forceinline__ float beta_of(int64_t b, int64_t t, int h) const {
    return beta_of(raw_beta(b, t, h));
  }
  __device__ __forceinline__ float beta_of(float raw) const {
    return sigmoid ? largest_beta * linescan::sigmoid(raw) : raw;
  }
};

// Everything but the tensors of tokens.
template <typename T>
DeltaInputs<T> delta_inputs(const GatedDeltaRuleInputs& of, int64_t heads, int64_t value_heads,
                            int64_t K, int64_t V) {
  DeltaInputs<T> in = {};
  in.A_log = of.A_log.as<const float>();
  in.dt_bias = of.dt_bias.as<const float>();
  in.heads = static_cast<int>(heads);
  in.value_heads = static_cast<int>(value_heads);
  in.K = static_cast<int>(K);
  in.V = static_cast<int>(V);
  in.scale = static_cast<float>(of.scale);
  in.largest_beta = of.allow_neg_eigval ? 2.f : 1.f;
  in.norm = of.qk_l2norm;
  in.sigmoid = of.beta_sigmoid;
  return in;
}

template <typename T>
DeltaInputs<T> delta_inputs(const GatedDeltaRuleProblem& p) {
  const GatedDeltaRuleSize size = size_of(p);
  DeltaInputs<T> in = delta_inputs<T>(p.inputs, size.heads, size.value_heads, size.K, size.V);
  in.q = delta_rows<const T>(p.q);
  in.k = delta_rows<const T>(p.k);
  in.v = delta_rows<const T>(p.v);
  in.g = delta_rows<const float>(p.g);
  in.beta = delta_rows<const unsigned char>(p.beta);
  in.beta_type = p.beta.dtype;
  in.vectors = rows_are_vectors(p.q) && rows_are_vectors(p.k) && rows_are_vectors(p.v);
  return in;
}

// One sequence: token number i of the walk is `first + i * step` of a batch item.
struct DeltaWalk {
  int64_t batch, first, length;
  int step;

  __device__ __forceinline__ int64_t token(int64_t i) const { return first + i * step; }
};

// All sequences, and the numbers of their chunks. Those of a sequence are neighbours; between packed
// sequences a number may be left out.
struct DeltaSequences {
  const int64_t* bounds;  // [count + 1], sane; null: one sequence a batch item
  int64_t count, length;
  bool reverse;

  __device__ __forceinline__ DeltaWalk walk(int64_t s) const {
    const int64_t begin = bounds ? bounds[s] : 0, end = bounds ? bounds[s + 1] : length;
    return {bounds ? 0 : s, reverse ? end - 1 : begin, end - begin, reverse ? -1 : 1};
  }
  __device__ __forceinline__ int64_t first_chunk(int64_t s, int64_t chunk) const {
    return bounds ? bounds[s] / chunk + s : s * ((length + chunk - 1) / chunk);
  }
  // The sequence of a chunk; of a number that is left out some other one, of whose chunks it is none.
  __device__ __forceinline__ int64_t of_chunk(int64_t number, int64_t chunk) const {
    if (!bounds) return number / ((length + chunk - 1) / chunk);
    int64_t low = 0, high = count - 1;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (first_chunk(middle, chunk) <= number)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

// A chunk of a sequence: up to `chunk` tokens of the walk from `start` on.
struct DeltaChunk {
  DeltaWalk walk;
  int64_t start;
  int tokens;  // none: no such chunk

  __device__ __forceinline__ DeltaChunk(const DeltaWalk& walk, int64_t start, int chunk)
      : walk(walk),
        start(start),
        tokens(start < 0
                   ? 0
                   : static_cast<int>(max(int64_t{0}, min(int64_t{chunk}, walk.length - start)))) {}
  __device__ __forceinline__ int64_t token(int i) const { return walk.token(start + i); }

  // The chunk's first row of a head, and the way to the next.
  template <typename T>
  __device__ __forceinline__ T* rows(const DeltaRows<T>& tensor, int head) const {
    return tensor.data ? tensor.at(walk.batch, token(0), head) : nullptr;
  }
  template <typename T>
  __device__ __forceinline__ int64_t row_step(const DeltaRows<T>& tensor) const {
    return tensor.token * walk.step;
  }
};

// Boxes of a tensor [batch, length, heads, numbers] of half types; false: there are none.
template <typename T>
bool describe_tokens(RowBoxes& boxes, const DeltaRows<T>& rows, int64_t heads, int64_t numbers,
                     const DeltaSequences& sequences) {
  return describe_rows(boxes, rows.data,
                       {numbers, heads, sequences.length, sequences.bounds ? 1 : sequences.count},
                       {1, rows.head, rows.token, rows.batch});
}

// Whether tokens of a walk come and go as a box: not in reverse, and not where fewer than a box has (`whole`) stop short of the
// tensor's end.
__device__ __forceinline__ bool tokens_are_box(const DeltaWalk& walk, bool whole, bool packed) {
  return kHasBoxes && walk.step == 1 && (whole || !packed);
}
// Whether those of every chunk do, on a device that has boxes.
inline bool all_tokens_are_boxes(const DeltaSequences& sequences) {
  return !sequences.bounds && !sequences.reverse;
}

// The chunk of that number; without tokens if the number is left out.
__device__ __forceinline__ DeltaChunk chunk_of(const DeltaSequences& sequences, int64_t number,
                                               int chunk) {
  const int64_t s = sequences.of_chunk(number, chunk);
  return DeltaChunk(sequences.walk(s), (number - sequences.first_chunk(s, chunk)) * chunk, chunk);
}

// The threads of a block that share a piece of work.
struct DeltaTeam {
  int thread, threads;
};

// tile[r, c] <- from[r * step + c], zero outside of valid rows and columns; arrives with the copies that
// the thread commits next. `vectors`: rows as rows_are_vectors() says; columns are 16 times a power of two.
template <typename T>
__device__ __forceinline__ void load_tile(DeltaTeam team, T* tile, int stride, const T* from,
                                          int64_t step, int rows, int valid_rows, int columns,
                                          int valid_columns, bool vectors) {
  constexpr int kNumbers = 16 / sizeof(T);
  const int packs_log2 = __ffs(columns / kNumbers) - 1, pass = team.threads >> packs_log2;
  if (vectors && pass > 0) {  // a thread goes down a column of packs
    const int first = team.thread >> packs_log2;
    if (first >= pass) return;
    const int column = (team.thread - (first << packs_log2)) * kNumbers;
    T* to = tile + first * stride + column;
    const T* at = from + first * step + column;
    const int64_t at_step = pass * step;
    // A power of two of rows at a time, as many as there are, and nothing to leave out.
    if (valid_rows >= rows && valid_columns >= columns && ((pass | rows) & (pass - 1)) == 0) {
      const int passes = rows / pass;
#pragma unroll 8
      for (int i = 0; i < passes; ++i, to += pass * stride, at += at_step) copy_async<16>(to, at);
      return;
    }
    const int valid = column < valid_columns ? min(rows, valid_rows) : 0;
#pragma unroll 1
    for (int row = first; row < rows; row += pass, to += pass * stride, at += at_step)
      if (row < valid)
        copy_async<16>(to, at);
      else
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    return;
  }
#pragma unroll 1
  for (int i = team.thread; i < rows * columns; i += team.threads) {
    const int row = i / columns, column = i % columns;
    const bool valid = row < valid_rows && column < valid_columns;
    tile[row * stride + column] = valid ? from[row * step + column] : T{};
  }
}

// The same for 64 rows of kColumns in panels, by thread `thread` of kThreads. Products of warp groups may read
// them once the copies have arrived and the threads have met.
template <int kColumns, int kThreads, typename T>
__device__ __forceinline__ void load_panels(int thread, const Panels<T>& tile, const T* from,
                                            int64_t step, int valid_rows, int valid_columns,
                                            bool vectors) {
  // Rows at a time, eights of them, so that a thread's packs of a column are swizzled alike; packs of a row at a time.
  constexpr int kRows = 64, kPacks = kColumns / 8;
  constexpr int kPass = kThreads >= 8 * kPacks ? kThreads / kPacks : 8;
  constexpr int kAtOnce = kThreads / kPass;
  static_assert(kPass % 8 == 0 && kPacks % kAtOnce == 0);
  if (vectors) {
    // Neighbouring threads have neighbouring packs, where they have all of a row.
    const int first = kAtOnce == kPacks ? thread / kPacks : thread % kPass;
#pragma unroll
    for (int pack = kAtOnce == kPacks ? thread % kPacks : thread / kPass, i = 0;
         i < kPacks / kAtOnce; ++i, pack += kAtOnce) {
      const int column = pack * 8;
      const int valid = column < valid_columns ? valid_rows - first : 0;  // rows from `first` on
      T* const to = tile.at(first, column);
      const T* at = from + first * step + column;
      const int64_t pass_step = kPass * step;
      if (valid_rows >= kRows && column < valid_columns) {
#pragma unroll
        for (int row = 0; row < kRows; row += kPass, at += pass_step)
          copy_async<16>(to + row * 64, at);
      } else {
#pragma unroll
        for (int row = 0; row < kRows; row += kPass, at += pass_step)
          copy_async<16>(to + row * 64, at, row < valid ? 16 : 0);
      }
    }
    return;
  }
  constexpr int kTogether = 8;  // numbers under way
  static_assert(kRows * kColumns % (kTogether * kThreads) == 0);
#pragma unroll 1
  for (int i = thread; i < kRows * kColumns; i += kTogether * kThreads) {
    T numbers[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const int row = (i + n * kThreads) / kColumns, column = (i + n * kThreads) % kColumns;
      numbers[n] = row < valid_rows && column < valid_columns ? from[row * step + column] : T{};
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n)
      *tile.at((i + n * kThreads) / kColumns, (i + n * kThreads) % kColumns) = numbers[n];
  }
  group_publish();
  __threadfence_block();  // arrivals (copies.cuh) do not speak for stores
}

// Two neighbours of a row of `columns` numbers, as far as it goes.
template <typename T>
__device__ __forceinline__ void store_two(T* row, int column, int columns, bool vectors, float low,
                                          float high) {
  if (column >= columns) return;
  if (vectors) {
    if constexpr (sizeof(T) == 2)
      *reinterpret_cast<uint32_t*>(row + column) = pair_from_floats<T>(low, high);
    else
      *reinterpret_cast<float2*>(row + column) = make_float2(low, high);
    return;
  }
  row[column] = from_float<T>(low);
  if (column + 1 < columns) row[column + 1] = from_float<T>(high);
}

}  // namespace linescan
