// The recurrence itself, on one tile of [steps, kChannelBlock] accumulators: what selective_scan
// and ss2d share. Vectors run across channels; time is walked in order.
//
//   h[t,n] = exp(dt[t] A[n]) h[t-1,n] + dt[t] B[t,n] u[t]          y[t] = sum_n C[t,n] h[t,n]
//
// Include inside a kernel file after foreach_target.h, like simd.h.

#if defined(LINESCAN_OPS_SCAN_CORE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESCAN_OPS_SCAN_CORE_H_
#undef LINESCAN_OPS_SCAN_CORE_H_
#else
#define LINESCAN_OPS_SCAN_CORE_H_
#endif

#include "linescan/ops/scan_tiling.h"
#include "linescan/ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {

// B or C of one tile: a number for each (state, step), the same for all channels of the block; or,
// per_channel, a number for each (state, channel), the same for all steps.
// T is const for the factors and not for their gradients.
template <typename T>
struct Factor {
  T* data;
  int64_t state_stride, step_stride;  // per_channel: kChannelBlock, 0
  bool per_channel = false;
};

template <bool kPerChannel, class D, typename T>
HWY_INLINE hn::Vec<D> LoadFactor(D d, const Factor<const T>& factor, int64_t n, int64_t t,
                                 int64_t c) {
  const T* at = factor.data + n * factor.state_stride;
  if constexpr (kPerChannel) return hn::Load(d, at + c);
  return hn::Set(d, at[t * factor.step_stride]);
}

// Arrays over steps are [steps, kChannelBlock], arrays over states [states, kChannelBlock]; `width`
// channels of them, a multiple of the vector length, are worked on.
template <typename T>
struct ScanTile {
  int64_t steps, states, width;
  const T* dt;
  const T* u;
  const T* A;
  Factor<const T> B, C;
};

// Calls function with a compile-time switch for each factor.
template <typename T, class Function>
HWY_INLINE void WithFactors(const ScanTile<T>& tile, const Function& function) {
  using Yes = std::true_type;
  using No = std::false_type;
  if (tile.B.per_channel)
    tile.C.per_channel ? function(Yes(), Yes()) : function(Yes(), No());
  else
    tile.C.per_channel ? function(No(), Yes()) : function(No(), No());
}

// Advances h over the tile; with kOutput also y += sum_n C h.
template <bool kOutput, typename T>
HWY_NOINLINE void ScanForward(const ScanTile<T>& tile, T* HWY_RESTRICT state, T* HWY_RESTRICT y) {
  WithFactors(tile, [&](auto constant_B, auto constant_C) HWY_ATTR {
    const hn::ScalableTag<T> d;
    const int64_t lanes = LanesOf<T>(), steps = tile.steps;
    for (int64_t n = 0; n < tile.states; ++n) {
      for (int64_t c = 0; c < tile.width; c += lanes) {
        const auto A = hn::Load(d, tile.A + n * kChannelBlock + c);
        auto h = hn::Load(d, state + n * kChannelBlock + c);
        for (int64_t t = 0; t < steps; ++t) {
          const int64_t at = t * kChannelBlock + c;
          const auto dt = hn::Load(d, tile.dt + at);
          const auto B = LoadFactor<constant_B>(d, tile.B, n, t, c);
          const auto input = hn::Mul(hn::Mul(dt, hn::Load(d, tile.u + at)), B);
          h = hn::MulAdd(Exponential(d, hn::Mul(dt, A)), h, input);
          if constexpr (kOutput) {
            const auto C = LoadFactor<constant_C>(d, tile.C, n, t, c);
            hn::Store(hn::MulAdd(C, h, hn::Load(d, y + at)), d, y + at);
          }
        }
        hn::Store(h, d, state + n * kChannelBlock + c);
      }
    }
  });
}

// y = D u over a tile.
template <typename T>
HWY_INLINE void StartOutput(const ScanTile<T>& tile, const T* D, T* HWY_RESTRICT y) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  for (int64_t c = 0; c < tile.width; c += lanes) {
    const auto skip = hn::Load(d, D + c);
    for (int64_t t = 0; t < tile.steps; ++t) {
      const int64_t at = t * kChannelBlock + c;
      hn::Store(hn::Mul(skip, hn::Load(d, tile.u + at)), d, y + at);
    }
  }
}

// Arrays over the steps of one backward tile, [time_tile, block] each.
template <typename T>
struct StepGradients {
  T* gy;        // the gradient of y
  T* slope;     // d dt / d delta
  T* input;     // sum_n gh B, the gradient of dt * u; Finish makes it that of u
  T* exponent;  // sum_n A gh a h[t-1]; Finish makes it the gradient of delta
  T* decay;     // [steps, lanes] a[t]
  T* before;    // [steps + 1, lanes] h[t-1]
  T* sums;      // [2, steps, lanes] sums over the vectors of a block

  StepGradients(int64_t time_tile, Arena& arena) {
    const int64_t tile = time_tile * kChannelBlock, rows = (time_tile + 1) * kChannelBlock;
    gy = arena.take<T>(tile);
    slope = arena.take<T>(tile);
    input = arena.take<T>(tile);
    exponent = arena.take<T>(tile);
    decay = arena.take<T>(rows);
    before = arena.take<T>(rows);
    sums = arena.take<T>(2 * rows);
  }

  // After ScanBackward: gu = D gy + dt input, gdelta = (exponent + u input) slope; adds to the sums
  // over time of D and of the bias [block].
  HWY_NOINLINE void Finish(const ScanTile<T>& tile, const T* D, bool use_slope,
                           T* HWY_RESTRICT sum_D, T* HWY_RESTRICT sum_bias) const {
    const hn::ScalableTag<T> d;
    const int64_t lanes = LanesOf<T>();
    for (int64_t c = 0; c < tile.width; c += lanes) {
      const auto skip = hn::Load(d, D + c);
      auto gD = hn::Load(d, sum_D + c), gbias = hn::Load(d, sum_bias + c);
      for (int64_t t = 0; t < tile.steps; ++t) {
        const int64_t at = t * kChannelBlock + c;
        const auto u = hn::Load(d, tile.u + at), out = hn::Load(d, gy + at);
        const auto from_input = hn::Load(d, input + at);
        auto gdelta = hn::MulAdd(from_input, u, hn::Load(d, exponent + at));
        if (use_slope) gdelta = hn::Mul(gdelta, hn::Load(d, slope + at));
        hn::Store(hn::MulAdd(from_input, hn::Load(d, tile.dt + at), hn::Mul(skip, out)), d,
                  input + at);
        hn::Store(gdelta, d, exponent + at);
        gD = hn::MulAdd(out, u, gD);
        gbias = hn::Add(gbias, gdelta);
      }
      hn::Store(gD, d, sum_D + c);
      hn::Store(gbias, d, sum_bias + c);
    }
  }
};

// What one backward tile reads, carries and adds to besides.
template <typename T>
struct TileGradients {
  const T* start;  // [states, block] the states entering the tile
  T* carry;        // [states, block] in: a[end] gh[end]; out: a[0] gh[0]
  T* y;            // [steps, block] += sum_n C h, or null
  T* A;            // [states, block] += sum_t gh dt a h[t-1]
  Factor<T> B, C;  // +=, per channel or not as the factors themselves
};

// Adds the lane sums of rows [count, lanes] to out[t * stride].
template <typename T>
HWY_INLINE void AddLaneSums(const T* HWY_RESTRICT rows, int64_t count, T* HWY_RESTRICT out,
                            int64_t stride) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  for (int64_t t = 0; t < count; ++t)
    out[t * stride] += hn::GetLane(hn::SumOfLanes(d, hn::Load(d, rows + t * lanes)));
}

template <typename T>
HWY_NOINLINE void ScanBackward(const ScanTile<T>& tile, const StepGradients<T>& step,
                               const TileGradients<T>& g) {
  WithFactors(tile, [&](auto constant_B, auto constant_C) HWY_ATTR {
    const hn::ScalableTag<T> d;
    const int64_t lanes = LanesOf<T>(), steps = tile.steps;
    T* HWY_RESTRICT decay = step.decay;
    T* HWY_RESTRICT before = step.before;
    T* HWY_RESTRICT sums_B = step.sums;
    T* HWY_RESTRICT sums_C = step.sums + steps * lanes;
    Fill(step.input, steps * kChannelBlock, T(0));
    Fill(step.exponent, steps * kChannelBlock, T(0));
    for (int64_t n = 0; n < tile.states; ++n) {
      for (int64_t c = 0; c < tile.width; c += lanes) {
        const int64_t at_state = n * kChannelBlock + c;
        const auto A = hn::Load(d, tile.A + at_state);
        auto h = hn::Load(d, g.start + at_state);
        hn::Store(h, d, before);
        for (int64_t t = 0; t < steps; ++t) {
          const int64_t at = t * kChannelBlock + c;
          const auto dt = hn::Load(d, tile.dt + at);
          const auto B = LoadFactor<constant_B>(d, tile.B, n, t, c);
          const auto a = Exponential(d, hn::Mul(dt, A));
          h = hn::MulAdd(a, h, hn::Mul(hn::Mul(dt, hn::Load(d, tile.u + at)), B));
          hn::Store(a, d, decay + t * lanes);
          hn::Store(h, d, before + (t + 1) * lanes);
          if (g.y) {
            const auto C = LoadFactor<constant_C>(d, tile.C, n, t, c);
            hn::Store(hn::MulAdd(C, h, hn::Load(d, g.y + at)), d, g.y + at);
          }
        }
        auto carry = hn::Load(d, g.carry + at_state);
        auto gA = hn::Load(d, g.A + at_state);
        auto gB = hn::Zero(d), gC = hn::Zero(d);
        for (int64_t t = steps - 1; t >= 0; --t) {
          const int64_t at = t * kChannelBlock + c;
          const auto dt = hn::Load(d, tile.dt + at), gy = hn::Load(d, step.gy + at);
          const auto B = LoadFactor<constant_B>(d, tile.B, n, t, c);
          const auto C = LoadFactor<constant_C>(d, tile.C, n, t, c);
          const auto a = hn::Load(d, decay + t * lanes);
          const auto gh = hn::MulAdd(C, gy, carry);
          carry = hn::Mul(a, gh);
          const auto through = hn::Mul(carry, hn::Load(d, before + t * lanes));  // gh a h[t-1]
          gA = hn::MulAdd(dt, through, gA);
          hn::Store(hn::MulAdd(gh, B, hn::Load(d, step.input + at)), d, step.input + at);
          hn::Store(hn::MulAdd(A, through, hn::Load(d, step.exponent + at)), d, step.exponent + at);
          const auto to_B = hn::Mul(gh, hn::Mul(dt, hn::Load(d, tile.u + at)));
          const auto to_C = hn::Mul(gy, hn::Load(d, before + (t + 1) * lanes));
          const auto add = [&](auto constant, auto& sum, T* sums, auto term) HWY_ATTR {
            if constexpr (constant)
              sum = hn::Add(sum, term);
            else if (c == 0)
              hn::Store(term, d, sums + t * lanes);
            else
              hn::Store(hn::Add(hn::Load(d, sums + t * lanes), term), d, sums + t * lanes);
          };
          add(constant_B, gB, sums_B, to_B);
          add(constant_C, gC, sums_C, to_C);
        }
        hn::Store(carry, d, g.carry + at_state);
        hn::Store(gA, d, g.A + at_state);
        const auto add_constant = [&](const Factor<T>& factor, auto sum) HWY_ATTR {
          T* to = factor.data + n * factor.state_stride + c;
          hn::Store(hn::Add(hn::Load(d, to), sum), d, to);
        };
        if constexpr (constant_B) add_constant(g.B, gB);
        if constexpr (constant_C) add_constant(g.C, gC);
      }
      const auto add_sums = [&](const Factor<T>& factor, const T* sums) HWY_ATTR {
        AddLaneSums(sums, steps, factor.data + n * factor.state_stride, factor.step_stride);
      };
      if constexpr (!constant_B) add_sums(g.B, sums_B);
      if constexpr (!constant_C) add_sums(g.C, sums_C);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace linescan
HWY_AFTER_NAMESPACE();

#endif  // LINESCAN_OPS_SCAN_CORE_H_
