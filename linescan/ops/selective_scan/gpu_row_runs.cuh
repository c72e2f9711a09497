// Whole rows of a sequence on their way between memory and shared memory, where they lie one behind the other. A warp
// moves them: rows that touch each other in memory as the one run that they are.
#pragma once

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/device_code/numbers.cuh"
#include "linescan/ops/selective_scan/gpu_arguments.h"

namespace linescan {

// `first`: the first row in memory.
struct RowRun {
  unsigned char* first;
  int rows, length, lane;

  // Calls piece<bytes>(offset, address) for the lane's pieces: of 16, 8 or 4 bytes, as the sequence allows, what is left element
  // by element. Offsets are bytes from the run's start in shared memory.
  template <int kElement, class Piece>
  __device__ __forceinline__ void for_pieces(const GpuSequence& q, const Piece& piece) const {
    const int row = length * kElement;
    const bool touch = q.lines == GpuLines::kRun || q.channel == row;
    const int line = touch ? rows * row : row, lines = touch ? 1 : rows;  // each contiguous
    int done = 0;                                                         // bytes
    const auto of = [&]<int kBytes>() {
      if (q.granule < kBytes || (!touch && row % kBytes != 0)) return false;
      const int units = line / kBytes;
#pragma unroll 4
      for (int unit = lane; unit < lines * units; unit += kGpuWarp) {
        const int i = touch ? 0 : unit / units, offset = (unit - i * units) * kBytes;
        piece.template operator()<kBytes>(i * row + offset, first + i * q.channel + offset);
      }
      done = lines * units * kBytes;
      return true;
    };
    if (!of.template operator()<16>() && !of.template operator()<8>()) of.template operator()<4>();
#pragma unroll 1
    for (int at = done / kElement + lane; at < rows * length; at += kGpuWarp) {
      const int r = at / length;
      piece.template operator()<kElement>(at * kElement,
                                          first + r * q.channel + (at - r * length) * q.step);
    }
  }

  // They start to come to shared memory.
  template <typename T>
  __device__ __forceinline__ void fetch(const GpuSequence& q, T* to) const {
    auto* const bytes = reinterpret_cast<unsigned char*>(to);
    for_pieces<sizeof(T)>(q, [&]<int kBytes>(int offset, const unsigned char* from) {
      if constexpr (kBytes >= 4)
        copy_async<kBytes>(bytes + offset, from);
      else
        *reinterpret_cast<T*>(bytes + offset) = *reinterpret_cast<const T*>(from);
    });
  }
  template <typename T>
  __device__ __forceinline__ void store(const GpuSequence& q, const T* from) const {
    if (q.data == nullptr) return;
    const auto* const bytes = reinterpret_cast<const unsigned char*>(from);
    for_pieces<sizeof(T)>(q, [&]<int kBytes>(int offset, unsigned char* to) {
      using Words = Pack<T, kBytes / sizeof(T)>;
      *reinterpret_cast<Words*>(to) = *reinterpret_cast<const Words*>(bytes + offset);
    });
  }
};

}  // namespace linescan
