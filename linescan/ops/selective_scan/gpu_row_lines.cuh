// selective_scan with one state: rows on their way between memory and shared memory. A warp has kGpuWarp / kLanes rows
// at a time, of each a tile of kLanes * kItems steps. The lanes of a row move its steps together, 16 neighbouring bytes
// each where addresses allow it; rows shorter than a tile that touch each other in memory are moved by the whole warp as
// the one run of memory that they are.
#pragma once

#include <algorithm>

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/device_code/numbers.cuh"
#include "linescan/ops/selective_scan/gpu_one_state.cuh"

namespace linescan {

// Words of one access to a lane's items.
template <typename T, int kItems>
inline constexpr int kLaneWords = std::min<int>(16, kItems * sizeof(T) & -(kItems * sizeof(T))) / 4;

// A turn: the warp's rows from the block's row `first` on, and a tile's steps of them.
template <class Place>
struct RowTurn {
  int tile, first, steps;
  int line;   // elements of a line whose rows exist
  bool wide;  // all lines are that long, and move 16 bytes at a time in every sequence

  __device__ __forceinline__ RowTurn(const SelectiveScanGpuArguments& args, const Place& place,
                                     int tile)
      : tile(tile) {
    begin_tile(args, place);
  }
  __device__ __forceinline__ void begin_tile(const SelectiveScanGpuArguments& args,
                                             const Place& place) {
    first = place.warp * Place::kRows;
    steps =
        static_cast<int>(min(args.length - int64_t{tile} * Place::kTile, int64_t{Place::kTile}));
    line = runs(args) ? Place::kRows * steps : steps;
    check(args, place);
  }
  // Whether the next turn is of the same tile. If not, begin_tile() goes on, with another tile.
  __device__ __forceinline__ bool next(const SelectiveScanGpuArguments& args, const Place& place) {
    first += Place::kStride;
    check(args, place);
    return first < place.rows + place.warp * Place::kRows;
  }
  static __device__ __forceinline__ bool runs(const SelectiveScanGpuArguments& args) {
    return Place::kRows == 2 && args.runs;
  }

 private:
  __device__ __forceinline__ void check(const SelectiveScanGpuArguments& args, const Place& place) {
    wide = args.wide && line % 8 == 0 && first + Place::kRows <= place.rows;
  }
};

// One sequence's rows, which lie in shared memory row_pitch bytes apart, steps side by side.
template <typename T, class Place>
class RowLines {
 public:
  using Turn = RowTurn<Place>;
  static constexpr int kElement = static_cast<int>(sizeof(T));
  // Shared memory for a warp's rows.
  static constexpr int kBytes = kGpuWarp * Place::kItems * kElement;

  // In front of the first turn.
  __device__ __forceinline__ RowLines(const SelectiveScanGpuArguments& args, const GpuSequence& q,
                                      const Place& place)
      : args_(args),
        q_(q),
        at_(q.data + place.item * q.batch +
            (place.channel + place.warp * Place::kRows + row(place)) * q.channel +
            lane(place) * 16) {}
  __device__ __forceinline__ bool exist() const { return q_.data != nullptr; }
  // On to the next turn; behind a tile's last one to the first of the next tile.
  __device__ __forceinline__ void next_rows() { at_ += Place::kStride * q_.channel; }
  __device__ __forceinline__ void next_tile(const Place& place) {
    at_ += Place::kTile * q_.step - turns(place) * (Place::kStride * q_.channel);
  }

  __device__ __forceinline__ void fetch(const Place& place, const Turn& turn,
                                        unsigned char* shared) const {
    shared += row(place) * q_.row_pitch;
    if (turn.wide) {
      shared += lane(place) * 16;
      for_packs(place, turn, [&](int offset) { copy_async<16>(shared + offset, at_ + offset); });
    } else {
      const unsigned char* const line = at_ - lane(place) * 16;
      for_line(
          place, turn,
          [&]<int kPack>(int offset) { copy_async<kPack>(shared + offset, line + offset); },
          [&](int n) {
            reinterpret_cast<T*>(shared)[n] = *reinterpret_cast<const T*>(line + n * q_.step);
          });
    }
  }
  __device__ __forceinline__ void store(const Place& place, const Turn& turn,
                                        const unsigned char* shared) const {
    shared += row(place) * q_.row_pitch;
    if (turn.wide) {
      shared += lane(place) * 16;
      for_packs(place, turn, [&](int offset) {
        *reinterpret_cast<float4*>(at_ + offset) =
            *reinterpret_cast<const float4*>(shared + offset);
      });
    } else {
      unsigned char* const line = at_ - lane(place) * 16;
      for_line(
          place, turn,
          [&]<int kPack>(int offset) {
            using Words = Pack<uint32_t, kPack / 4>;
            *reinterpret_cast<Words*>(line + offset) =
                *reinterpret_cast<const Words*>(shared + offset);
          },
          [&](int n) {
            *reinterpret_cast<T*>(line + n * q_.step) = reinterpret_cast<const T*>(shared)[n];
          });
    }
  }

  // The lane's own steps there.
  __device__ __forceinline__ GpuRawItems<T, Place::kItems> read(const Place& place,
                                                                const unsigned char* shared) const {
    return load_words<T, Place::kItems, kLaneWords<T, Place::kItems>>(shared + own(place));
  }
  __device__ __forceinline__ void write(const Place& place, unsigned char* shared, int steps,
                                        const float (&x)[Place::kItems]) const {
    shared += own(place);
    if (steps == Place::kItems) {
      store_words<kLaneWords<T, Place::kItems>>(shared, raw_items<T>(x));
    } else {  // another row may begin behind them
#pragma unroll
      for (int j = 0; j < Place::kItems; ++j)
        if (j < steps) reinterpret_cast<T*>(shared)[j] = from_float<T>(x[j]);
    }
  }

 private:
  __device__ __forceinline__ int own(const Place& place) const {
    return place.lane / Place::kLanes * q_.row_pitch + place.segment * Place::kItems * kElement;
  }
  static __device__ __forceinline__ int turns(const Place& place) {
    return (place.rows + Place::kStride - 1) / Place::kStride;
  }
  // The line that the lane helps to move, of the warp's, and which of its lanes it is.
  __device__ __forceinline__ int row(const Place& place) const {
    return Turn::runs(args_) ? 0 : place.lane / Place::kLanes;
  }
  __device__ __forceinline__ int lane(const Place& place) const {
    return Turn::runs(args_) ? place.lane : place.segment;
  }
  __device__ __forceinline__ int lanes() const {
    return Turn::runs(args_) ? kGpuWarp : Place::kLanes;
  }
  template <class Move>
  __device__ __forceinline__ void for_packs(const Place& place, const Turn& turn,
                                            const Move& move) const {
    const int room = turn.line * kElement - lane(place) * 16;
#pragma unroll
    for (int n = 0; n < (Place::kItems * kElement + 15) / 16; ++n) {
      const int offset = n * lanes() * 16;
      if (offset < room) move(offset);
    }
  }
  // Whatever the line is: packs<bytes>(offset) while there are some, then element(number).
  template <class Packs, class Element>
  __device__ __forceinline__ void for_line(const Place& place, const Turn& turn, const Packs& packs,
                                           const Element& element) const {
    const int left = place.rows - turn.first - row(place);
    const int count = left <= 0           ? 0
                      : Turn::runs(args_) ? min(left, Place::kRows) * turn.steps
                                          : turn.steps;
    const auto all_packs = [&]<int kPack>() {
#pragma unroll 1
      for (int offset = lane(place) * kPack; offset + kPack <= count * kElement;
           offset += lanes() * kPack)
        packs.template operator()<kPack>(offset);
    };
    if (q_.granule == 16) all_packs.template operator()<16>();
    if (q_.granule == 8) all_packs.template operator()<8>();
    if (q_.granule == 4) all_packs.template operator()<4>();
    const int done = q_.granule > 0 ? (count * kElement & -q_.granule) / kElement : 0;
#pragma unroll 1
    for (int n = done + lane(place); n < count; n += lanes()) element(n);
  }

  const SelectiveScanGpuArguments& args_;
  const GpuSequence& q_;
  unsigned char* at_;  // the lane's first 16 bytes of its line
};

}  // namespace linescan
