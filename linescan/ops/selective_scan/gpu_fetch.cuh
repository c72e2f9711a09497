// A warp's tile of a sequence on its way in: from global to shared memory while the warp computes, and
// from there to registers.
#pragma once

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/selective_scan/gpu_tile.cuh"

namespace linescan {

// Where a lane starts to copy whole tiles of whole rows: found once, moved from tile to tile.
struct GpuCursor {
  const unsigned char* from = nullptr;  // null: the sequence is absent or not plain
  int to = 0;                           // offset in the warp's tile in shared memory

  GpuCursor() = default;
  template <int kSegments>
  __device__ __forceinline__ GpuCursor(const GpuSequence& q, const GpuPlace<kSegments>& place,
                                       int tile) {
    if (q.data == nullptr || !q.plain || !place.full) return;
    const bool by_step = q.lines == GpuLines::kSteps;
    const int line = place.lane >> q.line_shift;
    const int offset = (place.lane & ((1 << q.line_shift) - 1)) * 16;
    from = place.address(q, int64_t{tile} * GpuShape<kSegments>::kTile) + offset +
           line * (by_step ? q.step : q.channel);
    to = offset + line * (by_step ? q.step_pitch : q.row_pitch);
  }
};

// A whole tile of whole rows in 16-byte copies: every lane moves as many, at equal distances.
__device__ __forceinline__ void copy_whole(const GpuSequence& q, const GpuCursor& cursor,
                                           unsigned char* to, int lane) {
  const int lines = kGpuWarp >> q.line_shift, line = lane >> q.line_shift;
  const bool by_step = q.lines == GpuLines::kSteps;
  const int64_t stride = lines * (by_step ? q.step : q.channel);
  const int pitch = lines * (by_step ? q.step_pitch : q.row_pitch);
  const unsigned char* from = cursor.from;
  to += cursor.to;
  const int units = kGpuItems * q.element / 16;
#pragma unroll
  for (int unit = 0; unit < kGpuItems * 4 / 16; ++unit) {
    if (unit == units) break;
    copy_async<16>(q.pad == 0 ? to : to + (line + unit * lines) / kGpuItems * q.pad, from);
    from += stride;
    to += pitch;
  }
}

template <int kGranule>
__device__ __forceinline__ void copy_lines(const GpuSequence& q, unsigned char* to,
                                           const unsigned char* from, int rows, int steps,
                                           int lane) {
  const bool by_step = q.lines == GpuLines::kSteps;
  const int64_t stride = by_step ? q.step : q.channel;
  const int pitch = by_step ? q.step_pitch : q.row_pitch;
  const int bytes = (by_step ? rows : steps) * q.element, lines = by_step ? steps : rows;
  const int mask = (1 << q.line_shift) - 1;
#pragma unroll 2
  for (int unit = lane; unit < lines << q.line_shift; unit += kGpuWarp) {
    const int line = unit >> q.line_shift, offset = (unit & mask) * kGranule;
    unsigned char* at = to + line * pitch + line / kGpuItems * q.pad + offset;
    if (offset + kGranule <= bytes)
      copy_async<kGranule>(at, from + line * stride + offset);
    else if (offset < bytes)
      copy_async<kGranule>(at, from + line * stride + offset, bytes - offset);
  }
}

template <int kGranule>
__device__ __forceinline__ void copy_run(unsigned char* to, const unsigned char* from, int bytes,
                                         int lane) {
  const int whole = bytes / kGranule * kGranule;
#pragma unroll 2
  for (int offset = lane * kGranule; offset < whole; offset += kGpuWarp * kGranule)
    copy_async<kGranule>(to + offset, from + offset);
  if (lane == 0 && whole < bytes) copy_async<kGranule>(to + whole, from + whole, bytes - whole);
}

template <typename Word>
__device__ __forceinline__ void copy_elements(const GpuSequence& q, unsigned char* to,
                                              const unsigned char* from, int rows, int steps,
                                              int lane) {
  const bool by_step = q.lines == GpuLines::kSteps;
  const int units = (by_step ? steps : rows) << q.line_shift;
#pragma unroll 1
  for (int unit = lane; unit < units; unit += kGpuWarp) {
    const int line = unit >> q.line_shift, inside = unit - (line << q.line_shift);
    const int row = by_step ? inside : line, t = by_step ? line : inside;
    if (row < rows && t < steps)
      *reinterpret_cast<Word*>(to + row * q.row_pitch + t * q.step_pitch + t / kGpuItems * q.pad) =
          *reinterpret_cast<const Word*>(from + row * q.channel + t * q.step);
  }
}

// Whatever is not a whole tile in 16-byte copies.
__device__ __forceinline__ void copy_any(const GpuSequence& q, unsigned char* to,
                                         const unsigned char* from, int rows, int steps, int lane) {
  const auto copy = [&]<int kGranule>() {
    if (q.lines == GpuLines::kRun)
      copy_run<kGranule>(to, from, rows * steps * q.element, lane);
    else
      copy_lines<kGranule>(q, to, from, rows, steps, lane);
  };
  if (q.granule == 16)
    copy.template operator()<16>();
  else if (q.granule == 8)
    copy.template operator()<8>();
  else if (q.granule == 4)
    copy.template operator()<4>();
  else if (q.element == 2)
    copy_elements<uint16_t>(q, to, from, rows, steps, lane);
  else
    copy_elements<uint32_t>(q, to, from, rows, steps, lane);
}

// Where a team's tile of a sequence lies in shared memory: two of them take turns.
template <int kSegments>
__device__ __forceinline__ unsigned char* stage(const SelectiveScanGpuArguments& args,
                                                const GpuSequence& q,
                                                const GpuPlace<kSegments>& place, int tile) {
  return shared_memory() + q.shared +
         (tile % 2 == 0 ? place.team : args.teams + place.team) * q.stage;
}

// Starts to bring the team's rows of a tile of all sequences, each by one of its warps; complete after
// wait_copies and a barrier of the team. Then moves the cursors by kDirection tiles.
template <int kDirection, int kSegments>
__device__ __forceinline__ void fetch(const SelectiveScanGpuArguments& args,
                                      const GpuPlace<kSegments>& place,
                                      GpuCursor (&cursors)[kGpuInputs], int index) {
  const GpuTile<kSegments> tile(args, index);
  unsigned others = 0;  // kept out of line: one copy of much code
#pragma unroll
  for (int i = 0; i < kGpuInputs; ++i) {
    const GpuSequence& q = args.inputs[i];
    if (q.data == nullptr || place.share != min(i, args.shares - 1)) continue;
    if (cursors[i].from != nullptr && tile.whole())
      copy_whole(q, cursors[i], stage(args, q, place, index), place.lane);
    else
      others |= 1u << i;
    if (cursors[i].from != nullptr)
      cursors[i].from += kDirection * GpuShape<kSegments>::kTile * q.step;
  }
  if (others != 0)
#pragma unroll 1
    for (int i = 0; i < kGpuInputs; ++i) {
      const GpuSequence& q = args.inputs[i];
      if (others >> i & 1)
        copy_any(q, stage(args, q, place, index), place.address(q, tile.start), place.rows,
                 tile.steps, place.lane);
    }
}

template <typename T>
__device__ __forceinline__ void read_as(const GpuSequence& q, const unsigned char* row, int t,
                                        float (&x)[kGpuItems]) {
  if (q.packed) {
    for_fours([&](int i) {
      const auto four = *reinterpret_cast<const Pack<T, 4>*>(row + (t + i) * sizeof(T));
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i + j] = to_float(four.values[j]);
    });
  } else {
    for_fours([&](int i) {
#pragma unroll
      for (int j = i; j < i + 4; ++j)
        x[j] = to_float(*reinterpret_cast<const T*>(row + (t + j) * q.step_pitch +
                                                    (t + j) / kGpuItems * q.pad));
    });
  }
}

// The lane's items of a tile that fetch() has brought; what lies behind the tile's end is undefined.
template <int kSegments>
__device__ __forceinline__ void read(const SelectiveScanGpuArguments& args, const GpuSequence& q,
                                     const GpuPlace<kSegments>& place, int index,
                                     float (&x)[kGpuItems]) {
  const unsigned char* row = stage(args, q, place, index) + place.row * q.row_pitch;
  const int t = place.segment * kGpuItems;
  if (q.dtype == DType::kBFloat16)
    read_as<BFloat16>(q, row, t, x);
  else if (q.dtype == DType::kFloat16)
    read_as<Float16>(q, row, t, x);
  else
    read_as<float>(q, row, t, x);
}

}  // namespace linescan
