// What the packed kernels share: half data, two neighbouring channels or numbers an access.
//
// As in gpu_chunk.cuh lane 4 g + q owns channels 2g and 2g + 1 on segment q of a chunk, and the columns
// of records are multiplied on the tensor cores; here a record stays in registers from its load to the
// products, `kHalves` words of eight numbers for a column, and addresses come from a segment's number.
// kWhole: the lines of all routes are whole segments, walked from end to end in one tile.
#pragma once

#include <type_traits>

#include "linescan/ops/ss2d/gpu_chunk.cuh"
#include "linescan/ops/ss2d/gpu_sums.cuh"

namespace linescan {

// Whether the data of a problem is what the packed kernels want, whatever its sizes are.
template <typename T>
bool packed_data(const Ss2dGpuArguments<T>& args) {
  const int64_t widest = std::max<int64_t>(args.x.pixel, args.routes * args.record);
  const bool near = static_cast<int64_t>(args.width) * widest < (int64_t{1} << 27);
  const bool words = args.rank % 2 == 0 && args.dt_weight != nullptr &&
                     reinterpret_cast<std::uintptr_t>(args.dt_weight) % 4 == 0;
  return sizeof(T) == 2 && args.packed && words && near;
}

// How many eights of numbers a record of one state has if the packed kernels can take the problem; else 0.
template <typename T>
int packed_halves(const Ss2dGpuArguments<T>& args) {
  const int halves = (args.record + 7) / 8;
  return args.states == 1 && packed_data(args) && halves <= kGpuMostHalves ? halves : 0;
}

// A block on one tile: one warp, or several with the sums of the tile, or, where there is one route, each with those of the
// chunk that it works on: nobody else adds to them.
enum class PackedBlock { kWarp, kTile, kChunks };

// Calls function.operator()<kBlock>() for the plan's.
template <int kHalves, class Function>
void dispatch_block(const Ss2dGpuPlan& plan, const Function& function) {
  if (plan.block == 32) return function.template operator()<PackedBlock::kWarp>();
  if constexpr (8 * kHalves <= kGpuChunkNumbers)
    if (plan.sums_chunks) return function.template operator()<PackedBlock::kChunks>();
  function.template operator()<PackedBlock::kTile>();
}

// Whether kernels for so many eights also take records of one less.
__host__ __device__ constexpr bool may_have_spare(int halves) {
  return halves > kGpuExactHalves + 1;
}

// Calls function.operator()<kHalves>(), of the fewest eights that there are kernels for.
template <int kMost = kGpuMostHalves, int kHalves = 1, class Function>
void dispatch_halves(int halves, const Function& function) {
  if constexpr (have_kernels(kHalves, kMost))
    if (halves <= kHalves) return function.template operator()<kHalves>();
  if constexpr (kHalves < kMost) dispatch_halves<kMost, kHalves + 1>(halves, function);
}

// Whether all lines of a problem are whole segments of one tile, and none starts anew.
template <typename T>
bool whole_lines(const Ss2dGpuArguments<T>& args) {
  bool whole = args.pieces == 0;
  for (int k = 0; k < args.routes; ++k) {
    const int length = args.codes[k] & kColumnMajor ? args.height : args.width;
    whole &= length % kGpuSegmentSteps == 0 && (args.codes[k] & kRestart) == 0;
  }
  return whole;
}

// Whether two neighbouring channels of a tensor are one aligned access.
template <typename T>
bool packed_pairs(const GpuPlanes<T>& planes, int64_t element_bytes, int64_t width) {
  return planes.channel == 1 && planes.batch % 2 == 0 && planes.pixel % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(planes.data) % (2 * element_bytes) == 0 &&
         width * planes.pixel * element_bytes < (int64_t{1} << 28);  // a segment of them in 32 bits
}

// The segment of a route that a lane is at.
struct SegmentCursor {
  int line = 0, part = 0;  // part: of the line, in segments

  SegmentCursor() = default;
  __device__ __forceinline__ SegmentCursor(const ChunkRoute& route, int index)
      : line(route.line_of(index)), part(index - line * route.segments_a_line) {}

  template <bool kWhole>
  __device__ __forceinline__ int last_step(const TileRoute& route) const {
    constexpr int kLast = kGpuSegmentSteps - 1;
    return kWhole ? kLast : min(kLast, route.length - part * kGpuSegmentSteps - 1);
  }
  // Steps that the segment has; none behind the last line.
  template <bool kWhole>
  __device__ __forceinline__ int valid(const TileRoute& route) const {
    return line < route.lines ? last_step<kWhole>(route) + 1 : 0;
  }
};

// A tensor of planes as a lane sees it on one route.
template <typename T>
struct PlaneWalk {
  T* first;         // its first channel at the route's first step
  int pixel_bytes;  // from pixel to pixel

  __device__ __forceinline__ PlaneWalk(T* plane, int64_t pixel, const TileRoute& route)
      : first(plane + route.pixel_origin * pixel),
        pixel_bytes(static_cast<int>(pixel * sizeof(T))) {}
  __device__ __forceinline__ int step(const TileRoute& route) const {
    return route.pixel_step * pixel_bytes;
  }
  // So many pixels behind the route's first step.
  __device__ __forceinline__ T* at(int pixels) const {
    return offset_bytes(first, pixels, pixel_bytes);
  }
  __device__ __forceinline__ T* at(const ChunkRoute& route, int line, int part) const {
    return at(route.pixels_to(line, part));
  }
  // Calls use(t, address of step t) for the steps of a segment that begins at `from`; steps behind
  // `last` are at the last one.
  template <int kSteps = kGpuSegmentSteps, class Use>
  __device__ __forceinline__ void each_step(const TileRoute& route, T* from, int last,
                                            const Use& use) const {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    auto* at = reinterpret_cast<Byte*>(from);
#pragma unroll
    for (int t = 0; t < kSteps; ++t) {
      use(t, reinterpret_cast<T*>(at));
      if (t < last) at += step(route);
    }
  }
};

// The first of a block's channels that a lane owns; lanes past the end repeat the last two.
template <typename T>
__device__ __forceinline__ int lane_channel(const Ss2dGpuArguments<T>& args,
                                            const BlockPlace& place) {
  return min(place.group * kGpuChannels + 2 * (static_cast<int>(threadIdx.x) % 32 / 4),
             args.channels - 2);
}

// The lane's two channels at each step of a segment; steps that the segment does not have repeat its
// last one. What is behind the last line is that of the last line.
template <bool kWhole, typename T>
__device__ __forceinline__ void load_steps(Two<T> (&values)[kGpuSegmentSteps],
                                           const PlaneWalk<const T>& walk, const ChunkRoute& route,
                                           const SegmentCursor& cursor) {
  walk.each_step(route, walk.at(route, min(cursor.line, route.lines - 1), cursor.part),
                 cursor.template last_step<kWhole>(route),
                 [&](int t, const T* at) { values[t] = read_two(at); });
}

// Which numbers of a record are a lane's, of the `halves` eights from `number` on, an even one: two of each.
struct RecordWords {
  int first;      // of the first eight
  int last_half;  // from there to those of the last: numbers past the end repeat the record's last two
  int spare;      // to those of the last but one, which may be past the end as well: may_have_spare

  __device__ __forceinline__ RecordWords(int record, int halves, int number = 0) {
    const int own = number + 2 * (static_cast<int>(threadIdx.x) % 4);
    const auto of = [&](int half) { return min(own + half * 8, record - 2); };
    first = halves == 1 ? of(0) : own;
    last_half = of(halves - 1) - first;
    spare = may_have_spare(halves) ? of(halves - 2) - first : 0;
  }
};

// The columns of records that a lane holds for the products of one chunk: of product j the record at
// step 2 j + (g & 1) of segment g / 2, and of every eight numbers 2q and 2q + 1.
template <typename T, int kHalves>
struct RecordColumns {
  uint32_t words[kGpuProducts][kHalves];

  // The words of product j, from the lane's own of the first eight numbers on.
  __device__ __forceinline__ void load(int j, const T* at, const RecordWords& own) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const bool last = half == kHalves - 1 && half > 0;
      const bool spare = half == kHalves - 2 && may_have_spare(kHalves);
      const T* const word = at + (last ? own.last_half : spare ? own.spare : 8 * half);
      words[j][half] = __ldg(reinterpret_cast<const uint32_t*>(word));
    }
  }
  // d = rows * columns of product j + c, over the numbers of part `part`.
  template <int kPart>
  __device__ __forceinline__ void multiply(float (&d)[4], const FragmentA<T>& rows, int j,
                                           const float (&c)[4]) const {
    if constexpr (2 * kPart + 1 < kHalves)
      linescan::multiply(d, rows, {{words[j][2 * kPart], words[j][2 * kPart + 1]}}, c);
    else
      multiply_half(d, rows, words[j][2 * kPart], c);
  }
};

// Where a lane reads them. kWhole: all segments are whole.
template <typename T, int kHalves, bool kWhole>
struct RecordWalk {
  PlaneWalk<const T> walk;
  RecordWords words;
  int odd;  // whether the lane's columns are odd steps, which kWhole has in `walk`

  // Of all numbers of a record from `number` on, an even one.
  __device__ __forceinline__ RecordWalk(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                        const TileRoute& route, int k, int number = 0)
      : walk(args.projection +
                 place.image * static_cast<int64_t>(args.height) * args.width * args.routes *
                     args.record +
                 static_cast<int64_t>(k) * args.record,
             static_cast<int64_t>(args.routes) * args.record, route),
        words(args.record, kHalves, number),
        odd(threadIdx.x / 4 & 1) {
    walk.first += words.first;
    if (kWhole) walk.first = offset_bytes(walk.first, odd, walk.step(route));
  }

  // `further`: numbers between those of the constructor and the ones wanted.
  __device__ __forceinline__ void load(RecordColumns<T, kHalves>& columns, const ChunkRoute& route,
                                       const SegmentCursor& cursor, int further = 0) const {
    const int last = cursor.template last_step<kWhole>(route);
    const T* first = walk.at(route, min(cursor.line, route.lines - 1), cursor.part) + further;
    // An odd column of the last product would be a step too far: there, the last step.
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j) {
      const bool beyond = 2 * j + 1 >= kGpuSegmentSteps;
      const int step = !kWhole ? min(2 * j + odd, last) : beyond ? 2 * j - odd : 2 * j;
      columns.load(j, offset_bytes(first, step, walk.step(route)), words);
    }
  }
};

// The rows of dt_weight of the block's channels on one route, and dt_bias, as operands of products.
template <typename T, int kHalves>
struct PackedWeights {
  static constexpr int kParts = (kHalves + 1) / 2;
  static constexpr int kWords = 4 * kParts + 2;  // of a lane
  FragmentA<T> parts[kParts];
  float bias[2];  // in units of ln 2

  PackedWeights() = default;
  __device__ __forceinline__ PackedWeights(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                           int k) {
    const int q = threadIdx.x % 4, channel = lane_channel(args, place);
    const int64_t row = static_cast<int64_t>(k) * args.channels + channel;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = part * 16 + (i >> 1) * 8 + 2 * q;
        const T* at = args.dt_weight + (row + (i & 1)) * args.rank + min(r, args.rank - 2);
        const unsigned word = __ldg(reinterpret_cast<const unsigned*>(at));
        parts[part].words[i] = r < args.rank ? word : 0u;
      }
    for (int i = 0; i < 2; ++i) bias[i] = kLog2e * args.dt_bias[row + i];
  }
  // As another warp left them: a lane's words 32 apart.
  __device__ __forceinline__ explicit PackedWeights(const uint32_t* words) {
#pragma unroll
    for (int i = 0; i < 4 * kParts; ++i) parts[i / 4].words[i % 4] = words[32 * i];
    for (int i = 0; i < 2; ++i) bias[i] = __uint_as_float(words[32 * (4 * kParts + i)]);
  }
  __device__ __forceinline__ void store(uint32_t* words) const {
#pragma unroll
    for (int i = 0; i < 4 * kParts; ++i) words[32 * i] = parts[i / 4].words[i % 4];
    for (int i = 0; i < 2; ++i) words[32 * (4 * kParts + i)] = __float_as_uint(bias[i]);
  }

  // What softplus makes delta of, in units of ln 2, for the lane's two channels at its segment's steps; the step behind
  // the last is padding.
  __device__ __forceinline__ void multiply(const RecordColumns<T, kHalves>& columns,
                                           float (&delta)[2 * kGpuProducts][2]) const {
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j) {
      constexpr float kZero[4] = {};
      float sum[4];
      columns.template multiply<0>(sum, parts[0], j, kZero);
      add_parts<1>(sum, columns, j);
      for (int i = 0; i < 4; ++i)
        delta[2 * j + (i & 1)][i >> 1] = fmaf(kLog2e, sum[i], bias[i >> 1]);
    }
  }
  template <int kPart>
  __device__ __forceinline__ void add_parts(float (&sum)[4],
                                            const RecordColumns<T, kHalves>& columns, int j) const {
    if constexpr (kPart < kParts) {
      columns.template multiply<kPart>(sum, parts[kPart], j, sum);
      add_parts<kPart + 1>(sum, columns, j);
    }
  }
};

// Picks B and C, the last two numbers of a record, out of its last eight: the rank is even, which leaves none
// of them to the eight before.
template <typename T, int kHalves>
struct PackedFactors {
  FragmentA<T> rows;  // two words of it

  __device__ __forceinline__ explicit PackedFactors(const Ss2dGpuArguments<T>& args) {
    const bool here = args.rank % 8 == 2 * (static_cast<int>(threadIdx.x) % 4);
    rows.words[0] = here ? pair_from_floats<T>(1, 0) : 0u;
    rows.words[1] = here ? pair_from_floats<T>(0, 1) : 0u;
  }
  __device__ __forceinline__ void multiply(const RecordColumns<T, kHalves>& columns,
                                           float (&B)[2 * kGpuProducts],
                                           float (&C)[2 * kGpuProducts]) const {
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j) {
      constexpr float kZero[4] = {};
      float both[4];
      multiply_half(both, rows, columns.words[j][kHalves - 1], kZero);
      B[2 * j] = both[0];
      B[2 * j + 1] = both[1];
      C[2 * j] = both[2];
      C[2 * j + 1] = both[3];
    }
  }
};

// How a warp hears from the one before it. Barriers: with a number for each warp, of which a kernel that uses any claims sixteen,
// and a multiprocessor has 64; loads and stores are free to move past a wait. Signals: a loop at which everything under way is
// waited for, and as many warps as there may be. None: one warp.
enum class ChainLink { kNone, kBarriers, kSignals };

// Hands two channels' states from chunk to chunk along the warps of a block: warp `from` has the chunk
// that comes before this warp's. A warp has one place, which it writes again when the chain has come round to it: what it gave
// before was then taken.
template <ChainLink kLink>
struct StateChain {
  float2 *own, *before;  // of the lane's g
  uint64_t *given, *awaited;
  int warp, from, turn = 0;

  // `memory`: gpu_chain_bytes().
  __device__ __forceinline__ StateChain(void* memory, int warp, int warps, bool backward)
      : warp(warp) {
    constexpr int kPlace = kGpuChannels / 2;
    from = backward ? (warp + 1 == warps ? 0 : warp + 1) : (warp == 0 ? warps : warp) - 1;
    auto* const signals = static_cast<uint64_t*>(memory);
    auto* const places = reinterpret_cast<float2*>(signals + warps) + threadIdx.x % 32 / 4;
    own = keep_shared(places + warp * kPlace);
    before = keep_shared(places + from * kPlace);
    if constexpr (kLink == ChainLink::kSignals) {
      given = keep_shared(signals + warp);
      awaited = keep_shared(signals + from);
      if (threadIdx.x % 32 == 0) begin_signal(given);
      __syncthreads();
    }
  }

  // What the warp before gave. `behind`: the factor that is applied to it.
  __device__ __forceinline__ float2 take(float behind) {
    if constexpr (kLink == ChainLink::kSignals)
      wait_signal(awaited, turn++);
    else
      barrier_wait_behind(behind, 1 + from, 64);
    return *before;
  }
  // `state` is that of lane `source` of each g.
  __device__ __forceinline__ void give(int q, int source, float2 state) const {
    store_shared_if(q == source, own, state);
    if constexpr (kLink == ChainLink::kSignals) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) give_signal(given);
    } else {
      barrier_arrive(1 + warp, 64);
    }
  }
};
template <>
struct StateChain<ChainLink::kNone> {
  float2 carried = {0, 0};

  __device__ __forceinline__ StateChain(void*, int, int, bool) {}
  __device__ __forceinline__ float2 take(float) const { return carried; }
  __device__ __forceinline__ void give(int, int source, float2 state) {
    carried.x = __shfl_sync(kAllLanes, state.x, source, kGpuSegments);
    carried.y = __shfl_sync(kAllLanes, state.y, source, kGpuSegments);
  }
};

// The sums of a lane's channels on a route, see gpu_sums.cuh; or (PackedBlock::kChunks) of the segment that it is at, whichever
// that is.
struct SumWalk {
  float* first;
  int step, line, part;  // in numbers

  __device__ __forceinline__ SumWalk(float* sums, const BlockPlace& place, const TileRoute& route,
                                     bool of_chunks = false) {
    if (of_chunks) {
      first = sums + 2 * threadIdx.x;
      step = 2 * static_cast<int>(blockDim.x);
      line = part = 0;
      return;
    }
    first = sums + sum_index(place, route.sum_origin, 2 * (static_cast<int>(threadIdx.x) % 32 / 4));
    step = route.sum_step * kSumChannels;
    line = route.sum_line * kSumChannels;
    part = kGpuSegmentSteps * step;
  }
  // Of a lane that has all of them to itself: `own` is the first place's, the places of a warp lie one after another.
  __device__ __forceinline__ SumWalk(float2* own, const TileRoute& route) {
    constexpr int kPlace = 2 * 32;
    first = reinterpret_cast<float*>(own) + route.sum_origin * kPlace;
    step = route.sum_step * kPlace;
    line = route.sum_line * kPlace;
    part = kGpuSegmentSteps * step;
  }
};

// What stands behind all of them.
__device__ __forceinline__ float* behind_sums(float* sums, const BlockPlace& place,
                                              bool of_chunks) {
  return sums + (of_chunks ? static_cast<int>(blockDim.x) / 32 * kGpuChunkSums
                           : place.height * place.pitch * kGpuChannels);
}

// Those at the steps of a segment. A step that does not exist reads the sum of one that does, which may be another
// warp's and is thrown away, and writes none: without a branch at every step, whose loads the next steps would wait
// for.
template <bool kWhole>
struct SegmentSums {
  float2* first;
  int step, valid;  // step: in pairs of numbers

  __device__ __forceinline__ SegmentSums(const SumWalk& walk, const TileRoute& route,
                                         const SegmentCursor& cursor, int valid)
      : first(reinterpret_cast<float2*>(walk.first + min(cursor.line, route.lines - 1) * walk.line +
                                        cursor.part * walk.part)),
        step(walk.step / 2),
        valid(valid) {}
  __device__ __forceinline__ SegmentSums(float2* first, int step, int valid)
      : first(first), step(step), valid(valid) {}
  __device__ __forceinline__ float2* at(int t) const {
    return first + (kWhole ? t : max(0, min(t, valid - 1))) * step;
  }
  __device__ __forceinline__ float2 read(int t) const { return *at(t); }
  __device__ __forceinline__ void write(int t, float2 sum) const {
    if (kWhole)
      store_shared_if(valid > 0, at(t), sum);
    else if (t < valid)
      *at(t) = sum;
  }
  __device__ __forceinline__ void write(const float2 (&all)[kGpuSegmentSteps]) const {
#pragma unroll
    for (int t = 0; t < kGpuSegmentSteps; ++t) write(t, all[t]);
  }
};

}  // namespace linescan
