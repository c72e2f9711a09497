// Where a warp of the packed kernels has the block's channels of a plane tensor brought for its next chunk while it works on
// this one: rows of sixteen numbers in shared memory, one for each step.
//
// So every number passes through the first-level cache once, mostly sixteen bytes at a time, and needs no register on its way. Read
// from memory into the lanes that use them, words of four bytes kept that cache busy for two thirds of the time (0057).
#pragma once

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/ss2d/gpu_packed.cuh"

namespace linescan {

// Whether planes can be read by sixteen bytes; else they are by four.
template <typename T>
bool by_sixteen(const GpuPlanes<T>& planes, int64_t element_bytes, int channels) {
  const auto whole = [&](int64_t numbers) { return numbers * element_bytes % 16 == 0; };
  return whole(channels) && whole(planes.pixel) && whole(planes.batch) &&
         reinterpret_cast<std::uintptr_t>(planes.data) % 16 == 0;
}

// Of chunks. Lane 4 g + q brings pieces of the segment of which it reads channels 2 g and 2 g + 1, its number q. kWhole: all
// segments are whole.
template <typename T, bool kWhole>
class PlaneStage {
 public:
  static constexpr int kBytes = static_cast<int>(gpu_stage_bytes(sizeof(T)));

  // `memory`: the warp's kBytes, 16-byte aligned.
  __device__ __forceinline__ PlaneStage(unsigned char* memory, int channels,
                                        const BlockPlace& place, bool by_sixteen)
      : by_sixteen_(by_sixteen), channels_(channels - place.group * kGpuChannels) {
    unsigned char* const segment = memory + threadIdx.x % 4 * (kGpuSegmentSteps * kRow);
    own_ = keep_shared(segment + 2 * g() * static_cast<int>(sizeof(T)));
    to_ = keep_shared(segment + 16 * g());
    // Where there is no channel nothing is brought: what becomes of it is thrown away, but has to be a number.
    if (channels_ < kGpuChannels) {
      for (int at = threadIdx.x % 32 * 16; at < kBytes; at += 16 * 32)
        *reinterpret_cast<uint4*>(memory + at) = uint4{};
      __syncwarp();
    }
  }

  // Before the first fetch() of a route.
  __device__ __forceinline__ void start_route(const GpuPlanes<const T>& planes,
                                              const BlockPlace& place, const TileRoute& route) {
    from_ = planes.data + place.image * planes.batch + route.pixel_origin * planes.pixel +
            place.group * kGpuChannels + (by_sixteen_ ? g() % kPieces * kPiece : 0);
    pixel_bytes_ = in_register(static_cast<int>(planes.pixel * sizeof(T)));
  }

  // Asks for the chunk in which the lane's segment is at `cursor`, if it is `wanted`, behind the read() of the one before:
  // commit_copies() is the caller's. Steps that a segment does not have repeat its last one, what is behind the last line is that of
  // the last line.
  __device__ __forceinline__ void fetch(const ChunkRoute& route, const SegmentCursor& cursor,
                                        bool wanted) const {
    const int last = cursor.template last_step<kWhole>(route);
    const int first = route.pixels_to(min(cursor.line, route.lines - 1), cursor.part);
    const auto at = [&](int step) {
      return offset_bytes(from_, first + min(step, last) * route.pixel_step, pixel_bytes_);
    };
    if (by_sixteen_) {
      const int own = g() / kPieces;
      const bool there = wanted & (g() % kPieces * kPiece < channels_);
      const T* from[kTurns];  // first, so that the copies stand together
#pragma unroll
      for (int i = 0; i < kTurns; ++i) from[i] = at(own + i * kSteps);
#pragma unroll
      for (int i = 0; i < kTurns; ++i)
        copy_async_if(there & (own + i * kSteps < kGpuSegmentSteps), to_ + 128 * i, from[i]);
    } else if (wanted) {
      constexpr int kWord = 4 / sizeof(T);
#pragma unroll 1
      for (int step = 0; step < kGpuSegmentSteps; ++step) {
        const T* const from = at(step);
#pragma unroll 1
        for (int i = g() * kWord; i < min(channels_, kGpuChannels); i += 8 * kWord)
          copy_async<4>(to_ - 16 * g() + step * kRow + i * static_cast<int>(sizeof(T)), from + i);
      }
    }
  }

  // What fetch() has brought, behind wait_copies() and a __syncwarp(); another one stands before the next fetch().
  __device__ __forceinline__ void read(Two<T> (&values)[kGpuSegmentSteps]) const {
#pragma unroll
    for (int t = 0; t < kGpuSegmentSteps; ++t)
      values[t] = *reinterpret_cast<const Two<T>*>(own_ + t * kRow);
  }

 private:
  static constexpr int kRow = kBytes / kGpuChunk;  // bytes of a step
  static constexpr int kPieces = kRow / 16;        // of a step, sixteen bytes each
  static constexpr int kPiece = 16 / sizeof(T);    // numbers of one
  static constexpr int kSteps = 8 / kPieces;  // that the eight lanes of a segment bring at once
  static constexpr int kTurns = (kGpuSegmentSteps + kSteps - 1) / kSteps;

  __device__ __forceinline__ static int g() { return static_cast<int>(threadIdx.x) % 32 / 4; }

  bool by_sixteen_;
  int channels_;              // from the block's first one on
  unsigned char *own_, *to_;  // what the lane reads, and where it brings something first
  const T* from_;             // that at the route's first step
  int pixel_bytes_;
};

}  // namespace linescan
