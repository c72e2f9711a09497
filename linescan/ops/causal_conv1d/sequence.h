// Which tokens are a sequence: what kernels on the CPU and on GPUs and the reference agree on.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define LINESCAN_HOST_DEVICE __host__ __device__
#else
#define LINESCAN_HOST_DEVICE
#endif

namespace linescan {

// Widths that kernels are made for.
inline constexpr int kMinConvWidth = 2, kMaxConvWidth = 4;

// Tokens begin .. end - 1 of a batch item; number -1: tokens of no sequence, for which no bounds hold.
struct ConvSequence {
  int64_t number, begin, end;
};

// Packed sequences, or one for every batch item where offsets are null.
struct ConvSequences {
  const int64_t* offsets;
  int64_t count, length;

  // Sequence `number` with bounds inside of [0, length], whatever the offsets say.
  LINESCAN_HOST_DEVICE ConvSequence get(int64_t number) const {
    if (!offsets) return {number, 0, length};
    const int64_t begin = clamp(offsets[number], 0, length);
    return {number, begin, clamp(offsets[number + 1], begin, length)};
  }

  // That of token t of a batch item. Offsets that fall may give one that does not contain t; then it
  // is none. `end` of none is where the next sequence may begin.
  LINESCAN_HOST_DEVICE ConvSequence of_token(int64_t item, int64_t t) const {
    if (!offsets) return {item, 0, length};
    int64_t low = 0, high = count + 1;  // the first offset above t is number low in the end
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (offsets[middle] <= t)
        low = middle + 1;
      else
        high = middle;
    }
    if (low > 0 && low <= count) {
      const ConvSequence found = get(low - 1);
      if (found.begin <= t && t < found.end) return found;
    }
    const int64_t next = low <= count ? clamp(offsets[low], t + 1, length) : length;
    return {-1, t, next};
  }

 private:
  LINESCAN_HOST_DEVICE static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
  }
};

}  // namespace linescan
