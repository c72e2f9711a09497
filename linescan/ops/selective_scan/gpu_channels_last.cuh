// Several states, channels side by side in memory: how a block gets at a tile of 16 steps. A team of
// `shares` warps has 32 neighbouring channels, a lane each; a block's teams have the same B and C.
#pragma once

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/selective_scan/gpu_factors.cuh"
#include "linescan/ops/selective_scan/gpu_tile.cuh"

namespace linescan {

// Where the steps of a tile lie along the length of all tensors: lane t % 16 knows it of step t.
class StepPlaces {
 public:
  __device__ __forceinline__ StepPlaces(const SelectiveScanGpuArguments& args,
                                        const GpuPlace<1>& place, int tile) {
    const int64_t t = int64_t{tile} * kGpuItems + place.lane % kGpuItems;
    if (t >= 0 && t < args.length)
      at_ = args.order ? static_cast<uint32_t>(args.order[place.group * args.length + t])
                       : static_cast<uint32_t>(t);
  }
  // Any lane may ask for any step, but all of them at once.
  __device__ __forceinline__ uint32_t operator()(int step) const {
    return __shfl_sync(kAllLanes, at_, step);
  }
  __device__ __forceinline__ StepPlaces held() const {
    StepPlaces same = *this;
    same.at_ = in_register(at_);
    return same;
  }

 private:
  uint32_t at_ = 0;
};

// Of the team's first channel, at the tensor's first step; null if there is no tensor.
__device__ __forceinline__ unsigned char* first_row(const SelectiveScanGpuArguments& args,
                                                    const GpuPlace<1>& place,
                                                    const GpuSequence& q) {
  if (q.data == nullptr) return nullptr;
  const int channel = place.channel - place.group * args.group_channels - place.row;
  return q.data + place.item * q.batch + place.group * q.group + channel * q.channel;
}

// A team's tiles of u, delta or the gradient of out in shared memory: two of [16 steps, 32 channels].
template <typename T>
class StepRows {
 public:
  __device__ __forceinline__ StepRows(const SelectiveScanGpuArguments& args,
                                      const GpuPlace<1>& place, const GpuSequence& q)
      : from_(first_row(args, place, q)),
        data_(shared_memory() + q.shared + place.team * q.stage),
        tile_bytes_(args.teams * q.stage) {}

  // The lane's number of step 0; those of the others follow kGpuWarp apart.
  __device__ __forceinline__ const T* tile(int index, int lane) const {
    return reinterpret_cast<const T*>(data_ + index % 2 * tile_bytes_) + lane;
  }
  // Starts to bring what exists of a tile; the warps of a team bring a part each.
  __device__ __forceinline__ void fetch(const SelectiveScanGpuArguments& args,
                                        const GpuPlace<1>& place, const GpuSequence& q,
                                        const StepPlaces& places, int index, int steps) const {
    if (from_ == nullptr) return;
    unsigned char* to = data_ + index % 2 * tile_bytes_;
    if (q.lines != GpuLines::kSteps || q.granule == 0) {
#pragma unroll 1
      for (int step = place.share; step < kGpuItems; step += args.shares) {
        const int64_t at = places(step);
        if (step < steps && place.exists())
          reinterpret_cast<T*>(to)[step * kGpuWarp + place.lane] =
              *reinterpret_cast<const T*>(from_ + at * q.step + place.lane * q.channel);
      }
      return;
    }
    const int first = place.share * kGpuWarp + place.lane;
    const int offset = (first & ((1 << q.line_shift) - 1)) * q.granule;  // in a step's line
    const bool some = offset < place.rows * static_cast<int>(sizeof(T));
    to += first * q.granule;
#pragma unroll 1
    for (int step = first >> q.line_shift; step < kGpuItems;
         step += args.shares * kGpuWarp >> q.line_shift) {
      const int64_t at = places(step);
      const unsigned char* const source = from_ + at * q.step + offset;
      if (some && step < steps) {
        if (q.granule == 16)
          copy_async<16>(to, source);
        else if (q.granule == 8)
          copy_async<8>(to, source);
        else
          copy_async<4>(to, source);
      }
      to += args.shares * kGpuWarp * q.granule;
    }
  }

 private:
  const unsigned char* from_;  // in memory, of the team's first channel
  unsigned char* data_;
  int tile_bytes_;
};

// The sixteen bits of a half type, or a float, in a register of its own: nothing is waited for when it
// is loaded.
template <typename T>
struct RawNumber {
  uint32_t bits = 0;

  __device__ __forceinline__ void load(const unsigned char* from) {
    if constexpr (sizeof(T) == 4)
      bits = *reinterpret_cast<const uint32_t*>(from);
    else
      bits = *reinterpret_cast<const uint16_t*>(from);
  }
  __device__ __forceinline__ float value() const {
    if constexpr (sizeof(T) == 4)
      return __uint_as_float(bits);
    else
      return to_float(T{static_cast<uint16_t>(bits)});
  }
};

// The elements [B and C, step, state] of a chunk of kChunkStates states and a tile of 16 steps, dealt out
// to the threads of a block: a thread's states are the same in all its elements, which are a block's
// threads apart.
struct FactorElements {
  static __device__ __forceinline__ int state() {
    return static_cast<int>(threadIdx.x) % kChunkStates;
  }
  // Of a thread's k-th element: 16 which + step, which = 0 for B, 1 for C.
  static __device__ __forceinline__ int slot(int k) {
    return (k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) / kChunkStates;
  }
};

// B and C of a chunk: on their way in registers, then as floats [state, B and C, step] in shared memory.
template <typename T, bool kBoth>
class FactorFeed {
 public:
  static constexpr int kFloats = kChunkStates * kChunkPitch;

  __device__ __forceinline__ FactorFeed(const SelectiveScanGpuArguments& args,
                                        const GpuPlace<1>& place) {
    const auto first = [&](const GpuFactor& f) {
      return f.data + place.item * f.batch + place.group * f.group;
    };
    B_ = first(args.factors[0]), C_ = first(args.factors[1]);
  }
  __device__ __forceinline__ void fetch(const SelectiveScanGpuArguments& args,
                                        const StepPlaces& places, int first) {
#pragma unroll
    for (int k = 0; k < kChunkAhead; ++k) ahead_[k] = load(args, k, places, first);
  }
  // With the same arguments.
  __device__ __forceinline__ void unpack(const SelectiveScanGpuArguments& args,
                                         const StepPlaces& places, int steps, int first,
                                         float* to) const {
    to += FactorElements::state() * kChunkPitch;
#pragma unroll
    for (int k = 0; k < kChunkAhead; ++k) store(args, k, steps, first, ahead_[k], to);
#pragma unroll 1
    for (int k = kChunkAhead; FactorElements::slot(k) < kSlots; ++k)  // of blocks with few threads
      store(args, k, steps, first, load(args, k, places, first), to);
  }

 private:
  static constexpr int kSlots = (kBoth ? 2 : 1) * kGpuItems;

  // Always something that exists, so that nothing has to be waited for; store() leaves out the rest.
  __device__ __forceinline__ RawNumber<T> load(const SelectiveScanGpuArguments& args, int k,
                                               const StepPlaces& places, int first) const {
    const int slot = min(FactorElements::slot(k), kSlots - 1);
    const int n = min(first + FactorElements::state(), args.states - 1);
    const int64_t at = places(slot % kGpuItems);
    const bool of_C = kBoth && slot >= kGpuItems;
    const GpuFactor& f = args.factors[of_C];
    RawNumber<T> x;
    x.load((of_C ? C_ : B_) + n * f.state + at * f.step);
    return x;
  }
  static __device__ __forceinline__ void store(const SelectiveScanGpuArguments& args, int k,
                                               int steps, int first, const RawNumber<T>& x,
                                               float* to) {
    const int slot = FactorElements::slot(k);
    const bool some = slot % kGpuItems < steps && first + FactorElements::state() < args.states;
    if (slot < kSlots) to[slot] = some ? x.value() : 0;
  }

  const unsigned char *B_, *C_;
  RawNumber<T> ahead_[kChunkAhead];
};

// Fours of steps are finished by the warps of a team, a power of two, in turn.
__device__ __forceinline__ bool finishes(const SelectiveScanGpuArguments& args,
                                         const GpuPlace<1>& place, int first_step) {
  return (first_step / 4 & (args.shares - 1)) == place.share;
}

// x[i .. i + 3] of all warps of the team, which have given them (give_items); exchange: of the team's
// first warp, or its second half.
__device__ __forceinline__ void add_four(const SelectiveScanGpuArguments& args,
                                         float (&x)[kGpuItems], int i, const float* exchange,
                                         int lane) {
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
  for (int share = 0; share < args.shares; ++share) {
    const float4 four = *reinterpret_cast<const float4*>(exchange + share * args.exchange +
                                                         lane * kGpuSegmentPitch + i);
    sum.x += four.x, sum.y += four.y, sum.z += four.z, sum.w += four.w;
  }
  x[i] = sum.x, x[i + 1] = sum.y, x[i + 2] = sum.z, x[i + 3] = sum.w;
}

}  // namespace linescan
