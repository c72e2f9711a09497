// Products of small matrices that lie in the cache, and triangular solves beside them: what the
// chunkwise operators are made of. No blocking for caches, no packing: operands are scratch arrays of
// some dozen KiB whose rows start at vector boundaries.
//
// Include inside a kernel file after foreach_target.h, like simd.h.

#if defined(LINESCAN_OPS_SMALL_PRODUCT_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESCAN_OPS_SMALL_PRODUCT_H_
#undef LINESCAN_OPS_SMALL_PRODUCT_H_
#else
#define LINESCAN_OPS_SMALL_PRODUCT_H_
#endif

#include "linescan/ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {

// What of a product is known to be zero, or not wanted.
enum class Part {
  kAll,
  kLowerLeft,    // A(i, k) = 0 for k > i
  kUpperLeft,    // A(i, k) = 0 for k < i
  kLowerResult,  // only C(i, j) with j <= i is wanted; some beyond are written too
};

// C(i, j) = keep_i C(i, j) + times_i sum_k A(i, k) B(k, j). `columns` is a multiple of the vector
// length; rows of B and C start at vector boundaries.
template <typename T>
struct Product {
  int64_t rows, columns, depth;
  const T* a;  // A(i, k) = a[i * a_row + k * a_step]: any strides, so transposed A is free
  int64_t a_row, a_step;
  const T* b;  // B(k, j) = b[k * b_row + j]
  int64_t b_row;
  T* c;
  int64_t c_row;
  const T* keep = nullptr;   // [rows]; null: C is not read
  const T* times = nullptr;  // [rows]; null: 1
  Part part = Part::kAll;
};

// Rows and vectors of C that are in registers at once: 16 accumulators of AVX-512's 32, 8 of AVX2's 16.
inline constexpr int kTileRows = HWY_TARGET <= HWY_AVX3 ? 8 : 4;
inline constexpr int kTileVectors = 2;

// The sums of a tile of kRows x kVectors vectors over k in [first, last).
template <int kRows, int kVectors, typename T>
struct TileSums {
  using V = Vec<T>;
  V sum[kRows][kVectors];

  HWY_INLINE void Clear() {
    const hn::ScalableTag<T> d;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n) sum[r][n] = hn::Zero(d);
  }

  // kNegative: subtracts the products.
  template <bool kNegative = false>
  HWY_INLINE void Accumulate(const T* HWY_RESTRICT a, int64_t a_row, int64_t a_step,
                             const T* HWY_RESTRICT b, int64_t b_row, int64_t first, int64_t last) {
    const hn::ScalableTag<T> d;
    const int64_t lanes = LanesOf<T>();
    a += first * a_step;
    b += first * b_row;
    for (int64_t k = first; k < last; ++k, a += a_step, b += b_row) {
      V row[kVectors];
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n) row[n] = hn::Load(d, b + n * lanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const V factor = hn::Set(d, a[r * a_row]);
#pragma GCC unroll 2
        for (int n = 0; n < kVectors; ++n)
          sum[r][n] = kNegative ? hn::NegMulAdd(factor, row[n], sum[r][n])
                                : hn::MulAdd(factor, row[n], sum[r][n]);
      }
    }
  }
};

template <int kRows, int kVectors, typename T>
HWY_INLINE void ProductTile(const Product<T>& p, int64_t i, int64_t j, int64_t first,
                            int64_t last) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  TileSums<kRows, kVectors, T> tile;
  tile.Clear();
  tile.Accumulate(p.a + i * p.a_row, p.a_row, p.a_step, p.b + j, p.b_row, first, last);
  T* HWY_RESTRICT c = p.c + i * p.c_row + j;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < kVectors; ++n) {
      T* at = c + r * p.c_row + n * lanes;
      auto value = tile.sum[r][n];
      if (p.times) value = hn::Mul(value, hn::Set(d, p.times[i + r]));
      if (p.keep) value = hn::MulAdd(hn::Load(d, at), hn::Set(d, p.keep[i + r]), value);
      hn::Store(value, d, at);
    }
}

template <int kRows, typename T>
HWY_INLINE void ProductRows(const Product<T>& p, int64_t i) {
  const int64_t lanes = LanesOf<T>();
  const int64_t first = p.part == Part::kUpperLeft ? i : 0;
  const int64_t last = p.part == Part::kLowerLeft ? HWY_MIN(p.depth, i + kRows) : p.depth;
  const int64_t columns = p.part == Part::kLowerResult
                              ? HWY_MIN(p.columns, (i + kRows + lanes - 1) / lanes * lanes)
                              : p.columns;
  int64_t j = 0;
  for (; j + kTileVectors * lanes <= columns; j += kTileVectors * lanes)
    ProductTile<kRows, kTileVectors>(p, i, j, first, last);
  for (; j < columns; j += lanes) ProductTile<kRows, 1>(p, i, j, first, last);
}

template <typename T>
HWY_NOINLINE void Multiply(const Product<T>& p) {
  int64_t i = 0;
  for (; i + kTileRows <= p.rows; i += kTileRows) ProductRows<kTileRows>(p, i);
  if constexpr (kTileRows == 8)
    for (; i + 4 <= p.rows; i += 4) ProductRows<4>(p, i);
  for (; i + 2 <= p.rows; i += 2) ProductRows<2>(p, i);
  for (; i < p.rows; ++i) ProductRows<1>(p, i);
}

// ---- Triangular solves -------------------------------------------------------------------------

// Rows i .. i + kRows - 1 of X <- (I + L)^-1 X, with the rows before them done already; or, kTransposed,
// of X <- (I + L)^-T X, with the rows behind them done. L(i, k) = l[i * l_row + k], read for k < i.
template <bool kTransposed, int kRows, int kVectors, typename T>
HWY_INLINE void SolveTile(const T* HWY_RESTRICT l, int64_t l_row, T* x, int64_t x_row, int64_t rows,
                          int64_t i, int64_t j) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  TileSums<kRows, kVectors, T> tile;
  T* own = x + i * x_row + j;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < kVectors; ++n) tile.sum[r][n] = hn::Load(d, own + r * x_row + n * lanes);
  if constexpr (kTransposed) {
    tile.template Accumulate<true>(l + i, 1, l_row, x + j, x_row, i + kRows, rows);
  } else {
    tile.template Accumulate<true>(l + i * l_row, l_row, 1, x + j, x_row, 0, i);
  }
#pragma GCC unroll 8
  for (int step = 0; step < kRows; ++step) {
    const int done = kTransposed ? kRows - 1 - step : step;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      if (kTransposed ? r >= done : r <= done) continue;
      const auto factor =
          hn::Set(d, kTransposed ? l[(i + done) * l_row + i + r] : l[(i + r) * l_row + i + done]);
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n)
        tile.sum[r][n] = hn::NegMulAdd(factor, tile.sum[done][n], tile.sum[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < kVectors; ++n) hn::Store(tile.sum[r][n], d, own + r * x_row + n * lanes);
}

template <bool kTransposed, int kRows, typename T>
HWY_INLINE void SolveRows(const T* l, int64_t l_row, T* x, int64_t x_row, int64_t rows,
                          int64_t columns, int64_t i) {
  const int64_t lanes = LanesOf<T>();
  int64_t j = 0;
  for (; j + kTileVectors * lanes <= columns; j += kTileVectors * lanes)
    SolveTile<kTransposed, kRows, kTileVectors>(l, l_row, x, x_row, rows, i, j);
  for (; j < columns; j += lanes) SolveTile<kTransposed, kRows, 1>(l, l_row, x, x_row, rows, i, j);
}

// X [rows, columns] <- (I + L)^-1 X, L strictly lower triangular; kTransposed: (I + L)^-T X.
template <bool kTransposed, typename T>
HWY_NOINLINE void SolveUnitLower(const T* l, int64_t l_row, T* x, int64_t x_row, int64_t rows,
                                 int64_t columns) {
  for (int64_t done = 0; done < rows;) {
    const int64_t left = rows - done;
    const int64_t count = left >= kTileRows ? kTileRows : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const int64_t i = kTransposed ? left - count : done;
    if (count == 8) {
      if constexpr (kTileRows == 8) SolveRows<kTransposed, 8>(l, l_row, x, x_row, rows, columns, i);
    } else if (count == 4) {
      SolveRows<kTransposed, 4>(l, l_row, x, x_row, rows, columns, i);
    } else if (count == 2) {
      SolveRows<kTransposed, 2>(l, l_row, x, x_row, rows, columns, i);
    } else {
      SolveRows<kTransposed, 1>(l, l_row, x, x_row, rows, columns, i);
    }
    done += count;
  }
}

// to(j, i) = from(i, j); columns of `to` from `rows` to `width` become zero.
template <typename T>
HWY_NOINLINE void Transpose(const T* HWY_RESTRICT from, int64_t from_row, int64_t rows,
                            int64_t columns, T* HWY_RESTRICT to, int64_t to_row, int64_t width) {
  int64_t whole_rows = 0, whole_columns = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    const hn::FixedTag<float, 4> d;
    whole_rows = rows / 4 * 4;
    whole_columns = columns / 4 * 4;
    for (int64_t j = 0; j < whole_columns; j += 4)
      for (int64_t i = 0; i < whole_rows; i += 4) {
        const T* corner = from + i * from_row + j;
        auto v0 = hn::LoadU(d, corner), v1 = hn::LoadU(d, corner + from_row);
        auto v2 = hn::LoadU(d, corner + 2 * from_row), v3 = hn::LoadU(d, corner + 3 * from_row);
        Transpose4(d, v0, v1, v2, v3);
        T* out = to + j * to_row + i;
        hn::StoreU(v0, d, out);
        hn::StoreU(v1, d, out + to_row);
        hn::StoreU(v2, d, out + 2 * to_row);
        hn::StoreU(v3, d, out + 3 * to_row);
      }
  }
#endif
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = j < whole_columns ? whole_rows : 0; i < width; ++i)
      to[j * to_row + i] = i < rows ? from[i * from_row + j] : T(0);
}

}  // namespace HWY_NAMESPACE
}  // namespace linescan
HWY_AFTER_NAMESPACE();

#endif  // LINESCAN_OPS_SMALL_PRODUCT_H_
