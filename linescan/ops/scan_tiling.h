// How the CPU scans cut their work, and the sizes that their plans share. Nothing here depends on
// the instruction set or on the number of threads, so neither do the sums that follow from it.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "linescan/base/math.h"

namespace linescan {

// Channels scanned side by side: four AVX-512 registers, eight AVX2 ones. Enough independent
// recurrences to hide the latency of one, few enough that a tile of them stays in the L1 cache.
inline constexpr int64_t kChannelBlock = 64;

// Steps of one forward tile: three arrays of 32 x 64 floats are 24 KiB.
inline constexpr int64_t kForwardTile = 32;

// Records of dts, B, C are padded to whole AVX-512 registers in scratch.
inline constexpr int64_t kRecordAlignment = 16;

inline constexpr int64_t kScratchAlignment = 64;
inline constexpr int64_t kScratchSlack = 4096;  // alignment losses of the arrays in a scratch

// Steps of one backward tile. The states at every tile's start are kept ([tiles, states, block]),
// so memory falls with the tile's length while the tile's own arrays grow: balanced, and at least
// as long as a forward tile.
inline int64_t backward_tile(int64_t length, int64_t states) {
  const auto balanced = static_cast<uint64_t>(
      std::sqrt(static_cast<double>(length) * static_cast<double>(states) / 8));
  return std::clamp<int64_t>(static_cast<int64_t>(std::bit_ceil(balanced)), kForwardTile, 1024);
}

// The backward pass sums over the batch (parameters) and over channels (B, C). Both are cut into a
// fixed number of parts with sums of their own, added up in order at the end.
struct TaskSplit {
  int64_t batch_chunks, partitions;
};
inline TaskSplit split_backward(int64_t batch, int64_t groups, int64_t blocks) {
  constexpr int64_t kEnoughTasks = 32;
  const int64_t chunks = std::max<int64_t>(1, std::min(batch, kEnoughTasks));
  const int64_t wanted = ceil_div(kEnoughTasks, std::max<int64_t>(1, chunks * groups));
  return {chunks, std::max<int64_t>(1, std::min(blocks, wanted))};
}

// Part `part` of `parts` of [0, count).
struct Range {
  int64_t begin, end;
};
inline Range part_of(int64_t count, int64_t parts, int64_t part) {
  return {count * part / parts, count * (part + 1) / parts};
}

// Hands out aligned arrays from memory that the caller owns.
class Arena {
 public:
  Arena(std::byte* memory, int64_t bytes) : next_(memory), end_(memory + bytes) {}

  template <typename T>
  T* take(int64_t count) {
    const auto address = reinterpret_cast<std::uintptr_t>(next_);
    next_ += (kScratchAlignment - address % kScratchAlignment) % kScratchAlignment;
    T* array = reinterpret_cast<T*>(next_);
    next_ += count * static_cast<int64_t>(sizeof(T));
    assert(next_ <= end_ && "the plan's scratch is smaller than what the kernel takes");
    return array;
  }

 private:
  std::byte* next_;
  [[maybe_unused]] std::byte* end_;
};

}  // namespace linescan
