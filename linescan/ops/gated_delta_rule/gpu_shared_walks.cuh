// How the blocks of a scan share its walks evenly where these would not come in whole waves: 192 equal walks are two waves of
// 132 blocks, but work for less than one and a half.
//
// Blocks of a team, one for each part of a head's columns, stay together: what they read is the same. The chunks of all heads, one
// behind the other, are dealt out in stretches of equal length, one a team; a stretch is no shorter than a head's walk. A team goes
// through the walks of its stretch from the last to the first. So it begins with a walk whose rest belongs to the next team, which
// comes to it at its end, when the states are there; and nobody waits for what waits itself. Blocks draw their numbers when they
// start: all with smaller ones have started.
#pragma once

#include <cstdint>

#include "linescan/ops/device_code/between_blocks.cuh"

namespace linescan {

struct DeltaSharedWalks {
  int64_t chunks = 0;  // of the longest walk; 0: blocks take whole walks in turn
  int parts = 1;       // of a head: blocks of a team, of which there are as many as the grid has
  // Zeros, which whoever draws and waits sets again: how many numbers are drawn; whether a block's states are there, [blocks, chains].
  unsigned* signals = nullptr;
  float4* states = nullptr;  // [blocks, numbers of a block], as its threads have them
};

// What a block goes through of a walk: turns, which count chunks in the walk's order. A walk may have fewer chunks than the longest.
struct DeltaLeg {
  int64_t from, to;

  __device__ __forceinline__ bool begins() const { return from == 0; }
  __device__ __forceinline__ bool ends(int64_t chunks) const { return to >= chunks; }
  // Not where a block before has come to the end.
  __device__ __forceinline__ bool exists(int64_t chunks) const { return begins() || from < chunks; }
};

// What a block has to do, leg after leg:  for (DeltaLegs legs(..); legs.next();) .. legs.item, legs.leg
class DeltaLegs {
 public:
  int64_t item;  // of [heads, parts]
  DeltaLeg leg;

  // Of block number `block`, of so many items.
  __device__ __forceinline__ DeltaLegs(const DeltaSharedWalks& shared, int64_t items,
                                       unsigned block)
      : shared_(shared), block_(block), next_(block), end_(items) {
    if (shared.chunks == 0) return;
    const int64_t all = items / shared.parts * shared.chunks;
    const unsigned team = block / shared.parts, teams = gridDim.x / shared.parts;
    end_ = all * team / teams;
    next_ = all * (team + 1) / teams;
  }
  __device__ __forceinline__ bool next() {
    if (shared_.chunks == 0) {
      item = next_;
      leg = {0, INT64_MAX};
      next_ += gridDim.x;
      return item < end_;
    }
    if (next_ <= end_) return false;
    const int64_t head = (next_ - 1) / shared_.chunks, first = head * shared_.chunks;
    item = head * shared_.parts + block_ % shared_.parts;
    leg = {max(end_, first) - first, next_ - first};
    next_ = max(end_, first);
    return true;
  }

 private:
  const DeltaSharedWalks& shared_;
  unsigned block_;
  int64_t next_, end_;  // shared: the stretch is [end, next), from its end to its start
};

}  // namespace linescan
