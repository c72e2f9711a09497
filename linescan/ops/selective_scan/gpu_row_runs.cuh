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

  // Calls piece<bytes>(offset, address) for the lane's pieces: of 16 bytes along a run, else of 4 along each row, as the sequence
  // allows, and what is left element by element. Offsets are bytes from the run's start in shared memory.
  template <int kElement, class Piece>
  __device__ __forceinline__ void for_pieces(const GpuSequence& q, const Piece& piece) const {
    const int row = length * kElement, bytes = rows * row;
    int done = 0;
    if (q.granule == 16 && (q.lines == GpuLines::kRun || q.channel == row)) {
      done = bytes / 16 * 16;
#pragma unroll 4
      for (int offset = lane * 16; offset < done; offset += kGpuWarp * 16)
        piece.template operator()<16>(offset, first + offset);
    } else if (q.granule >= 4 && row % 4 == 0) {
      done = bytes;
#pragma unroll 1
      for (int r = 0; r < rows; ++r)
#pragma unroll 4
        for (int offset = lane * 4; offset < row; offset += kGpuWarp * 4)
          piece.template operator()<4>(r * row + offset, first + r * q.channel + offset);
    }
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
