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

  // Calls piece<bytes>(offset, address) for the lane's pieces: 16 bytes where the sequence allows to move as many at once,
  // what is left element by element. Offsets are bytes from the run's start in shared memory.
  template <int kElement, class Piece>
  __device__ __forceinline__ void for_pieces(const GpuSequence& q, const Piece& piece) const {
    const int row = length * kElement, bytes = rows * row;
    int done = 0;
    if (q.granule == 16 && (q.lines == GpuLines::kRun || q.channel == row)) {
      done = bytes / 16 * 16;
#pragma unroll 4
      for (int offset = lane * 16; offset < done; offset += kGpuWarp * 16)
        piece.template operator()<16>(offset, first + offset);
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
      if constexpr (kBytes == 16)
        copy_async<16>(bytes + offset, from);
      else
        *reinterpret_cast<T*>(bytes + offset) = *reinterpret_cast<const T*>(from);
    });
  }
  template <typename T>
  __device__ __forceinline__ void store(const GpuSequence& q, const T* from) const {
    if (q.data == nullptr) return;
    const auto* const bytes = reinterpret_cast<const unsigned char*>(from);
    for_pieces<sizeof(T)>(q, [&]<int kBytes>(int offset, unsigned char* to) {
      if constexpr (kBytes == 16)
        *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(bytes + offset);
      else
        *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(bytes + offset);
    });
  }
};

}  // namespace linescan
