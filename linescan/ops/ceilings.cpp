// Measures the copy bandwidth with memcpy over arrays of 128 MiB a thread and the rate of the
// kernels' exponential over an array that stays in the L1 cache. The best of several runs counts:
// a ceiling is what the machine can do, not what it does when disturbed.

#include "linescan/ops/ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "linescan/device/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linescan/ops/ceilings.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h: compiled once a target.
#include <hwy/highway.h>

#include "linescan/ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {
namespace {

// values[i] = exp(values[i] - 1), `rounds` times; values stay in (0, 1), so no round is trivial.
void ExponentialRounds(float* values, int64_t count, int64_t rounds) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = LanesOf<float>();
  for (int64_t round = 0; round < rounds; ++round)
    for (int64_t i = 0; i < count; i += lanes)
      hn::StoreU(Exponential(d, hn::Sub(hn::LoadU(d, values + i), hn::Set(d, 1.0f))), d,
                 values + i);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace linescan
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "linescan/device/simd_target.h"

namespace linescan {
namespace {

HWY_EXPORT(ExponentialRounds);

constexpr int kRuns = 7;

template <class Work>
double best_seconds(const Work& work) {
  double best = 1e30;
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
  return best;
}

}  // namespace

Ceilings measure_ceilings(const ParallelFor& parallel_for, int64_t threads) {
  ensure_simd_target();
  Ceilings ceilings;

  constexpr int64_t kCopy = int64_t{128} << 20;
  const auto from = std::make_unique<char[]>(kCopy * threads);
  const auto to = std::make_unique<char[]>(kCopy * threads);
  const double copy = best_seconds([&] {
    parallel_for(threads, [&](int64_t begin, int64_t end) {
      std::memcpy(to.get() + begin * kCopy, from.get() + begin * kCopy, (end - begin) * kCopy);
    });
  });
  ceilings.copy_bytes_per_second = 2.0 * static_cast<double>(kCopy * threads) / copy;

  constexpr int64_t kValues = 2048, kRounds = 20000;
  const auto values = std::make_unique<float[]>(kValues * threads);
  std::fill_n(values.get(), kValues * threads, 0.5f);
  const double exponentials = best_seconds([&] {
    parallel_each(parallel_for, threads, [&](int64_t i) {
      HWY_DYNAMIC_DISPATCH(ExponentialRounds)(values.get() + i * kValues, kValues, kRounds);
    });
  });
  ceilings.exponentials_per_second =
      static_cast<double>(kValues * kRounds * threads) / exponentials;
  return ceilings;
}

}  // namespace linescan
#endif  // HWY_ONCE
