// What the kernels of depthwise_conv share: which channels and pixels a thread owns, and its way of
// reading them.
#pragma once

#include "linescan/base/shape.h"
#include "linescan/ops/depthwise_conv/gpu_plan.h"
#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/device_code/numbers.cuh"

namespace linescan {

// Sizes and the plan's cut, as kernels take them.
struct StripArgs {
  int height, width, channels;
  int bands, segments, segment;
  int packs_a_block, strips_a_block, chunks, groups;
  int64_t strips;
};

inline StripArgs strip_args(const Shape& x, const ConvStrips& cut) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  return {number(x[1]),
          number(x[2]),
          number(x[3]),
          number(cut.bands),
          number(cut.segments),
          number(cut.segment),
          number(cut.packs_a_block),
          number(cut.strips_a_block),
          number(cut.chunks),
          number(cut.groups),
          cut.strips};
}

// The channels of a thread: [channel, channel + kVector), the same for all of its strips.
template <int kVector>
__device__ __forceinline__ int channel_of(const StripArgs& args) {
  const int pack = blockIdx.x % args.chunks * args.packs_a_block + threadIdx.x % args.packs_a_block;
  return pack * kVector;
}
// Whether the thread has work at all: blocks and packs need not fit.
__device__ __forceinline__ bool takes_part(const StripArgs& args, int channel) {
  return threadIdx.x / args.packs_a_block < args.strips_a_block && channel < args.channels;
}
__device__ __forceinline__ int64_t first_strip(const StripArgs& args) {
  return int64_t{blockIdx.x / args.chunks} * args.strips_a_block + threadIdx.x / args.packs_a_block;
}

// Neighbouring strips are bands below each other: what two of them read arrives once.
struct Strip {
  int64_t image;
  int row, begin, end;  // first row of the band; columns

  __device__ __forceinline__ Strip(const StripArgs& args, int64_t number, int rows) {
    row = static_cast<int>(number % args.bands) * rows;
    number /= args.bands;
    begin = static_cast<int>(number % args.segments) * args.segment;
    end = min(begin + args.segment, args.width);
    image = number / args.segments;
  }
};

// Columns of kRows numbers (each kVector channels), kConvAhead of them on their way into shared memory
// while the thread computes. A thread reads what it has ordered itself: there are no barriers.
template <typename T, int kVector, int kRows>
class Columns {
 public:
  using Numbers = Pack<T, kVector>;

  // `memory`: kConvAhead * kRows * blockDim.x packs, shared by the block.
  __device__ __forceinline__ explicit Columns(unsigned char* memory)
      : slots_(reinterpret_cast<Numbers*>(memory) + threadIdx.x) {}

  // Orders a column of `image`, which points to its first pixel at the thread's channels, from `row`
  // on; zeros outside of the image. `place`: any number, counted up from column to column.
  __device__ __forceinline__ void start(const T* __restrict__ image, const StripArgs& args, int row,
                                        int column, int place) {
    const bool inside = column >= 0 && column < args.width;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool valid = inside && row + i >= 0 && row + i < args.height;
      const T* from =
          valid ? image + (int64_t{row + i} * args.width + column) * args.channels : image;
      Numbers* to = slot(place, i);
      if constexpr (sizeof(Numbers) >= 4)
        copy_async<sizeof(Numbers)>(to, from, valid ? sizeof(Numbers) : 0);
      else
        *to = valid ? *reinterpret_cast<const Numbers*>(from) : Numbers{};  // 0 in every type
    }
  }

  __device__ __forceinline__ Numbers get(int place, int row) const { return *slot(place, row); }

 private:
  __device__ __forceinline__ Numbers* slot(int place, int row) const {
    return slots_ + (place % kConvAhead * kRows + row) * blockDim.x;
  }

  Numbers* slots_;
};

// The thread's weights, [tap][channel of the thread].
template <int kVector>
__device__ __forceinline__ void load_weights(const float* __restrict__ weight, int channel,
                                             bool flip, float (&to)[9][kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i)
#pragma unroll
    for (int tap = 0; tap < 9; ++tap) to[flip ? 8 - tap : tap][i] = weight[(channel + i) * 9 + tap];
}

// Calls function.operator()<kVector>() for the two vector lengths of the plan.
template <class Function>
void dispatch_channels(int64_t vector, const Function& function) {
  if (vector == 4) return function.template operator()<4>();
  return function.template operator()<1>();
}

}  // namespace linescan
