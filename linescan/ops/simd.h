// SIMD vocabulary of the CPU kernels, compiled once an instruction set (Highway's foreach_target):
// exponentials, conversions between storage types and accumulators, tiles in and out of memory.
//
// Include inside a kernel file after foreach_target.h. Raw pointers only: a function of a standard
// container that is compiled here could become the one copy that the linker keeps for everyone.

#if defined(LINESCAN_OPS_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESCAN_OPS_SIMD_H_
#undef LINESCAN_OPS_SIMD_H_
#else
#define LINESCAN_OPS_SIMD_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <type_traits>

#include "linescan/base/half.h"
#include "linescan/base/tensor_view.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
using Vec = hn::Vec<hn::ScalableTag<T>>;

// Numbers in a vector, as sizes and indices are counted.
template <typename T>
HWY_INLINE int64_t LanesOf() {
  return static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
}

// ---- Functions ---------------------------------------------------------------------------------

// exp(x) (not named Exp: argument-dependent lookup would find Highway's too). In float32: a few
// roundings where exp(x) is a normal number; zero below 2^-126.5, infinity from 2^127.5 on; NaN
// stays NaN. 14 instructions without a branch or a table.
//
// x = (k + r) ln 2 with integer k and |r| <= 1/2; adding 1.5 * 2^23 + 127 leaves k + 127, the
// exponent field of 2^k, in the low bits of the sum. exp(r ln 2) is a polynomial of degree 6,
// fitted to 3.1e-9.
template <class D>
HWY_INLINE hn::Vec<D> Exponential(D d, hn::Vec<D> x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::Exp(d, x);
  } else {
    const hn::RebindToSigned<D> di;
    const auto magic = hn::Set(d, 12583039.0f);
    // The constants come first: x86 returns the second operand if one of them is NaN.
    x = hn::Min(hn::Set(d, 88.8f), hn::Max(hn::Set(d, -88.02f), x));
    const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
    const auto k = hn::Sub(shifted, magic);
    auto r = hn::NegMulAdd(k, hn::Set(d, 0.693145752f), x);
    r = hn::NegMulAdd(k, hn::Set(d, 1.42860677e-6f), r);
    auto p = hn::Set(d, 0.0013814517f);
    p = hn::MulAdd(p, r, hn::Set(d, 0.0083687562f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.0416683919f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.1666652031f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.4999999343f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
    return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
  }
}

// log(1 + e) for 0 <= e <= 1. In float32 2 artanh(e / (2 + e)) with an odd polynomial fitted to
// 4.5e-9, so that the relative error stays small for tiny e, where log(1 + e) is nearly e.
template <class D>
HWY_INLINE hn::Vec<D> Log1pUnit(D d, hn::Vec<D> e) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::Log1p(d, e);
  } else {
    const auto s = hn::Div(e, hn::Add(e, hn::Set(d, 2.0f)));
    const auto s2 = hn::Mul(s, s);
    auto p = hn::Set(d, 0.1400615051f);
    p = hn::MulAdd(p, s2, hn::Set(d, 0.1400087400f));
    p = hn::MulAdd(p, s2, hn::Set(d, 0.2001076516f));
    p = hn::MulAdd(p, s2, hn::Set(d, 0.3333320812f));
    const auto twice = hn::Add(s, s);
    return hn::MulAdd(hn::Mul(p, s2), twice, twice);
  }
}

// softplus(x) = log(1 + exp(x)), and x itself above 20.
template <class D>
HWY_INLINE hn::Vec<D> Softplus(D d, hn::Vec<D> x) {
  const auto e = Exponential(d, hn::Neg(hn::Abs(x)));
  const auto positive = hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), x);
  const auto value = hn::Add(positive, Log1pUnit(d, e));
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 20)), x, value);
}

template <class D>
HWY_INLINE hn::Vec<D> Sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1);
  const auto e = Exponential(d, hn::Neg(hn::Abs(x)));
  const auto large = hn::Div(one, hn::Add(one, e));  // sigmoid(|x|)
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(e, large), large);
}

// The derivative of Softplus: sigmoid(x), and 1 above 20.
template <class D>
HWY_INLINE hn::Vec<D> SoftplusSlope(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 20)), hn::Set(d, 1), Sigmoid(d, x));
}

// ---- Storage types -----------------------------------------------------------------------------

HWY_INLINE float ToScalar(float x) { return x; }
HWY_INLINE double ToScalar(double x) { return x; }
HWY_INLINE float ToScalar(hwy::float16_t x) { return float16_to_float(x.bits); }
HWY_INLINE float ToScalar(hwy::bfloat16_t x) { return bfloat16_to_float(x.bits); }

HWY_INLINE void FromScalar(double x, float* to) { *to = static_cast<float>(x); }
HWY_INLINE void FromScalar(double x, double* to) { *to = x; }
HWY_INLINE void FromScalar(double x, hwy::float16_t* to) {
  to->bits = float_to_float16(static_cast<float>(x));
}
HWY_INLINE void FromScalar(double x, hwy::bfloat16_t* to) {
  to->bits = float_to_bfloat16(static_cast<float>(x));
}

// Lanes(d) elements of storage type S, as accumulators.
template <class D, typename S>
HWY_INLINE hn::Vec<D> LoadAs(D d, const S* from) {
  if constexpr (sizeof(S) == sizeof(hn::TFromD<D>)) {
    return hn::LoadU(d, from);
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<S, D>(), from));
  }
}

// The reverse, rounded to nearest, ties to even.
template <class D, typename S>
HWY_INLINE void StoreAs(D d, hn::Vec<D> v, S* to) {
  if constexpr (sizeof(S) == sizeof(hn::TFromD<D>)) {
    hn::StoreU(v, d, to);
  } else {
    // Highway 1.0 truncates to bfloat16, and float16 without F16C: element by element from a
    // buffer is right everywhere; outputs are a small share of the work.
    HWY_ALIGN hn::TFromD<D> lanes[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)];
    hn::Store(v, d, lanes);
    for (size_t i = 0; i < hn::Lanes(d); ++i) FromScalar(lanes[i], to + i);
  }
}
#if HWY_TARGET <= HWY_AVX2
template <class D>
HWY_INLINE void StoreAs(D d, hn::VFromD<D> v, hwy::float16_t* to) {
  const hn::Rebind<hwy::float16_t, D> dh;
  hn::StoreU(hn::DemoteTo(dh, v), dh, to);  // F16C rounds to nearest
}
template <class D>
HWY_INLINE void StoreAs(D d, hn::VFromD<D> v, hwy::bfloat16_t* to) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> dh;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
  hn::StoreU(hn::TruncateTo(dh, high), dh, reinterpret_cast<uint16_t*>(to));
}
#endif

// Calls function(S*) with the tensor's pointer in its storage type. T is the accumulator.
template <typename T, class Function>
HWY_INLINE void WithStorage(const void* data, DType dtype, const Function& function) {
  void* memory = const_cast<void*>(data);
  switch (dtype) {
    case DType::kFloat32:
      return function(static_cast<float*>(memory));
    case DType::kFloat64:
      return function(static_cast<double*>(memory));
    case DType::kFloat16:
      return function(static_cast<hwy::float16_t*>(memory));
    case DType::kBFloat16:
      return function(static_cast<hwy::bfloat16_t*>(memory));
  }
}

// ---- Tiles: [steps, channels] of a tensor in any type and strides <-> accumulators in scratch ----

// A window on a tensor: element (step, channel) lies at data + step * step_stride + channel *
// channel_stride, in elements of dtype.
struct Window {
  void* data;
  DType dtype;
  int64_t step_stride, channel_stride;
};

HWY_INLINE Window WindowAt(const TensorView& tensor, int64_t offset, int64_t step_stride,
                           int64_t channel_stride) {
  return {static_cast<char*>(tensor.data) + offset * static_cast<int64_t>(size_of(tensor.dtype)),
          tensor.dtype, step_stride, channel_stride};
}

#if HWY_TARGET != HWY_SCALAR
// Four rows of four become four columns of four.
template <class D4, class V>
HWY_INLINE void Transpose4(D4 d, V& a, V& b, V& c, V& e) {
  const hn::RepartitionToWide<D4> wide;
  const auto ab_low = hn::InterleaveLower(d, a, b), ab_high = hn::InterleaveUpper(d, a, b);
  const auto ce_low = hn::InterleaveLower(d, c, e), ce_high = hn::InterleaveUpper(d, c, e);
  const auto cast = [&](auto v) HWY_ATTR { return hn::BitCast(wide, v); };
  a = hn::BitCast(d, hn::InterleaveLower(wide, cast(ab_low), cast(ce_low)));
  b = hn::BitCast(d, hn::InterleaveUpper(wide, cast(ab_low), cast(ce_low)));
  c = hn::BitCast(d, hn::InterleaveLower(wide, cast(ab_high), cast(ce_high)));
  e = hn::BitCast(d, hn::InterleaveUpper(wide, cast(ab_high), cast(ce_high)));
}
#endif

// tile[step * stride + channel] = window(step, channel); zero for channels .. width - 1. `width` is
// a multiple of the vector length.
template <typename T>
HWY_NOINLINE void LoadTile(const Window& window, int64_t steps, int64_t channels, int64_t width,
                           T* HWY_RESTRICT tile, int64_t stride) {
  WithStorage<T>(window.data, window.dtype, [&](const auto* HWY_RESTRICT from) HWY_ATTR {
    using S = std::remove_cvref_t<decltype(*from)>;
    const hn::ScalableTag<T> d;
    const int64_t lanes = LanesOf<T>();
    const int64_t step_stride = window.step_stride, channel_stride = window.channel_stride;
    constexpr bool kVector = sizeof(S) <= sizeof(T);  // never narrowed on loading
    int64_t first_step = 0;                           // what the transposing loop leaves over
    if constexpr (kVector) {
      if (channel_stride == 1) {
        for (int64_t t = 0; t < steps; ++t) {
          const S* row = from + t * step_stride;
          T* to = tile + t * stride;
          int64_t c = 0;
          if constexpr (sizeof(S) == sizeof(T) || sizeof(T) == 4)
            for (; c + lanes <= channels; c += lanes) hn::Store(LoadAs(d, row + c), d, to + c);
          for (; c < channels; ++c) to[c] = static_cast<T>(ToScalar(row[c]));
          for (; c < width; ++c) to[c] = 0;
        }
        return;
      }
#if HWY_TARGET != HWY_SCALAR
      if constexpr (sizeof(T) == 4) {
        if (step_stride == 1) {
          const hn::FixedTag<float, 4> d4;
          const int64_t whole = channels / 4 * 4;
          for (; first_step + 4 <= steps; first_step += 4)
            for (int64_t c = 0; c < whole; c += 4) {
              const S* corner = from + c * channel_stride + first_step;
              auto v0 = LoadAs(d4, corner), v1 = LoadAs(d4, corner + channel_stride);
              auto v2 = LoadAs(d4, corner + 2 * channel_stride);
              auto v3 = LoadAs(d4, corner + 3 * channel_stride);
              Transpose4(d4, v0, v1, v2, v3);
              T* to = tile + first_step * stride + c;
              hn::StoreU(v0, d4, to);
              hn::StoreU(v1, d4, to + stride);
              hn::StoreU(v2, d4, to + 2 * stride);
              hn::StoreU(v3, d4, to + 3 * stride);
            }
          for (int64_t t = 0; t < first_step; ++t)
            for (int64_t c = whole; c < width; ++c)
              tile[t * stride + c] = c < channels ? ToScalar(from[t + c * channel_stride]) : T(0);
        }
      }
#endif
    }
    for (int64_t t = first_step; t < steps; ++t)
      for (int64_t c = 0; c < width; ++c)
        tile[t * stride + c] =
            c < channels ? static_cast<T>(ToScalar(from[t * step_stride + c * channel_stride]))
                         : T(0);
  });
}

// Asks for the window's memory ahead of its use: a tile touches a few lines in each of dozens of rows,
// more streams than the hardware's own prefetcher follows.
HWY_INLINE void PrefetchWindow(const Window& window, int64_t steps, int64_t channels) {
  constexpr int64_t kLine = 64;
  const int64_t element = static_cast<int64_t>(size_of(window.dtype));
  const bool along_time = window.step_stride == 1;
  if (!along_time && window.channel_stride != 1) return;
  const int64_t rows = along_time ? channels : steps, length = along_time ? steps : channels;
  const int64_t stride = along_time ? window.channel_stride : window.step_stride;
  for (int64_t i = 0; i < rows; ++i) {
    const char* row = static_cast<const char*>(window.data) + i * stride * element;
    for (int64_t byte = 0; byte < length * element; byte += kLine) hwy::Prefetch(row + byte);
  }
}

// window(step, channel) = tile[step * stride + channel] for the given steps and channels.
template <typename T>
HWY_NOINLINE void StoreTile(const T* HWY_RESTRICT tile, int64_t stride, int64_t steps,
                            int64_t channels, const Window& window) {
  WithStorage<T>(window.data, window.dtype, [&](auto* HWY_RESTRICT to) HWY_ATTR {
    using S = std::remove_cvref_t<decltype(*to)>;
    const hn::ScalableTag<T> d;
    const int64_t lanes = LanesOf<T>();
    const int64_t step_stride = window.step_stride, channel_stride = window.channel_stride;
    int64_t first_step = 0;
    if constexpr (sizeof(S) == sizeof(T) || (sizeof(T) == 4 && sizeof(S) == 2)) {
      if (channel_stride == 1) {
        for (int64_t t = 0; t < steps; ++t) {
          const T* row = tile + t * stride;
          S* out = to + t * step_stride;
          int64_t c = 0;
          for (; c + lanes <= channels; c += lanes) StoreAs(d, hn::Load(d, row + c), out + c);
          for (; c < channels; ++c) FromScalar(row[c], out + c);
        }
        return;
      }
#if HWY_TARGET != HWY_SCALAR
      if constexpr (sizeof(T) == 4) {
        if (step_stride == 1) {
          const hn::FixedTag<float, 4> d4;
          const int64_t whole = channels / 4 * 4;
          for (; first_step + 4 <= steps; first_step += 4)
            for (int64_t c = 0; c < whole; c += 4) {
              const T* corner = tile + first_step * stride + c;
              auto v0 = hn::LoadU(d4, corner), v1 = hn::LoadU(d4, corner + stride);
              auto v2 = hn::LoadU(d4, corner + 2 * stride);
              auto v3 = hn::LoadU(d4, corner + 3 * stride);
              Transpose4(d4, v0, v1, v2, v3);
              S* out = to + c * channel_stride + first_step;
              StoreAs(d4, v0, out);
              StoreAs(d4, v1, out + channel_stride);
              StoreAs(d4, v2, out + 2 * channel_stride);
              StoreAs(d4, v3, out + 3 * channel_stride);
            }
          for (int64_t t = 0; t < first_step; ++t)
            for (int64_t c = whole; c < channels; ++c)
              FromScalar(tile[t * stride + c], to + t + c * channel_stride);
        }
      }
#endif
    }
    for (int64_t t = first_step; t < steps; ++t)
      for (int64_t c = 0; c < channels; ++c)
        FromScalar(tile[t * stride + c], to + t * step_stride + c * channel_stride);
  });
}

// tensor[i] = sum over parts of sums[part * stride + i], for contiguous i in [0, count).
template <typename T>
HWY_INLINE void StoreSum(const T* sums, int64_t parts, int64_t stride, int64_t count,
                         const Window& window) {
  for (int64_t i = 0; i < count; ++i) {
    T sum = sums[i];
    for (int64_t part = 1; part < parts; ++part) sum += sums[part * stride + i];
    StoreTile(&sum, 1, 1, 1,
              {static_cast<char*>(window.data) +
                   i * window.channel_stride * static_cast<int64_t>(size_of(window.dtype)),
               window.dtype, 0, 0});
  }
}

// to[0 .. count) = factor from[0 .. count), in place if wanted; count is a multiple of the vector
// length.
template <typename T>
HWY_INLINE void Scale(const T* from, int64_t count, T factor, T* to) {
  const hn::ScalableTag<T> d;
  const auto v = hn::Set(d, factor);
  for (int64_t i = 0; i < count; i += LanesOf<T>())
    hn::Store(hn::Mul(hn::Load(d, from + i), v), d, to + i);
}

// array[0 .. count) = value; count is a multiple of the vector length.
template <typename T>
HWY_INLINE void Fill(T* HWY_RESTRICT array, int64_t count, T value) {
  const hn::ScalableTag<T> d;
  const auto v = hn::Set(d, value);
  for (int64_t i = 0; i < count; i += LanesOf<T>()) hn::Store(v, d, array + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace linescan
HWY_AFTER_NAMESPACE();

#endif  // LINESCAN_OPS_SIMD_H_
