// What a row hands from tile to tile: some floats a state, in shared memory or, where they do not fit there, in the
// workspace. And the states that the backward pass keeps.
#pragma once

#include <algorithm>

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/selective_scan/gpu_tile.cuh"

namespace linescan {

// What a kernel knows when it is compiled of where its carries are. Addresses of either kind cost more instructions
// and time than those of one.
enum class CarryPlace { kEither, kShared, kWorkspace };

template <CarryPlace kPlace>
__device__ __forceinline__ bool carries_are_shared(const SelectiveScanGpuArguments& args) {
  return kPlace == CarryPlace::kEither ? args.carries == nullptr : kPlace == CarryPlace::kShared;
}

// `Floats` a state, neighbours in memory because they are used together.
template <typename Floats, CarryPlace kPlace>
class RowCarries {
 public:
  template <int kSegments>
  __device__ __forceinline__ RowCarries(const SelectiveScanGpuArguments& args,
                                        const GpuPlace<kSegments>& place) {
    if (carries_are_shared<kPlace>(args)) {
      step_ = args.rows;
      first_ = reinterpret_cast<Floats*>(shared_memory() + args.shared.carries) +
               place.team * GpuShape<kSegments>::kRows + place.row;
    } else {
      step_ = args.channels;
      first_ = reinterpret_cast<Floats*>(args.carries) +
               int64_t{place.item - args.first_batch} * args.states * args.channels + place.channel;
    }
  }
  __device__ __forceinline__ Floats* operator()(int n) const { return first_ + int64_t{n} * step_; }
  __device__ __forceinline__ int64_t step() const { return step_; }  // from state to state

 private:
  Floats* first_;
  int step_;
};

// h[n] at the start of tile 1, 2, ..
template <int kSegments>
__device__ __forceinline__ float* tile_state(const SelectiveScanGpuArguments& args,
                                             const GpuPlace<kSegments>& place, int tile, int n) {
  const int64_t item = int64_t{tile - 1} * args.state_items + place.item - args.first_batch;
  return args.tile_states + (item * args.states + n) * args.channels + place.channel;
}

// Starts to bring the rows' states at the start of a tile, for the warp's states of a chunk, to
// to[n, row of the block].
template <int kSegments>
__device__ __forceinline__ void fetch_states(const SelectiveScanGpuArguments& args,
                                             const GpuPlace<kSegments>& place, int tile, int first,
                                             int count, float* to) {
  if (!place.exists() || place.segment != 0) return;
  const int rows = args.rows;
  to += place.share * rows + place.team * GpuShape<kSegments>::kRows + place.row;
  if (tile > 0) {
    const float* from = tile_state(args, place, tile, first + place.share);
    const int64_t step = int64_t{args.shares} * args.channels;
#pragma unroll 4
    for (int n = place.share; n < count; n += args.shares, to += args.shares * rows, from += step)
      copy_async<4>(to, from);
  } else {
    const float* from = args.initial_state ? args.initial_state + place.states_at(args) + first : 0;
#pragma unroll 1
    for (int n = place.share; n < count; n += args.shares, to += args.shares * rows)
      *to = from ? from[n] : 0;
  }
}

// The first kernel of the backward pass, of the plan's variant: fills args.tile_states (forward.cu).
void launch_tile_states(const SelectiveScanGpuArguments& args, const SelectiveScanGpuPlan& plan,
                        GpuStream stream);

// The variants for one state. Forward without args.out: as launch_tile_states. `out`: the type of out or
// of its gradient.
void launch_one_state_forward(const SelectiveScanGpuArguments& args,
                              const SelectiveScanGpuPlan& plan, DType out, GpuStream stream);
void launch_one_state_backward(const SelectiveScanGpuArguments& args,
                               const SelectiveScanGpuPlan& plan, DType out, GpuStream stream);

// Their forms for many short rows.
void launch_short_rows_forward(const SelectiveScanGpuArguments& args,
                               const SelectiveScanGpuPlan& plan, DType out, GpuStream stream);
void launch_short_rows_backward(const SelectiveScanGpuArguments& args,
                                const SelectiveScanGpuPlan& plan, DType out, GpuStream stream);

// And for rows that a warp has as a whole.
void launch_whole_rows_backward(const SelectiveScanGpuArguments& args,
                                const SelectiveScanGpuPlan& plan, DType out, GpuStream stream);

// The backward variant for several states.
void launch_many_states_backward(const SelectiveScanGpuArguments& args,
                                 const SelectiveScanGpuPlan& plan, DType out, GpuStream stream);

// The variant whose lanes divide the states: forward, and the first kernel of other variants' backward pass.
void launch_state_lanes_forward(const SelectiveScanGpuArguments& args,
                                const SelectiveScanGpuPlan& plan, DType out, GpuStream stream);
void launch_state_lanes_ahead(const SelectiveScanGpuArguments& args,
                              const SelectiveScanGpuPlan& plan, GpuStream stream);

// The variant whose warps walk, or prepare and finish.
void launch_walkers_forward(const SelectiveScanGpuArguments& args, const SelectiveScanGpuPlan& plan,
                            DType out, GpuStream stream);
void launch_walkers_backward(const SelectiveScanGpuArguments& args,
                             const SelectiveScanGpuPlan& plan, DType out, GpuStream stream);

// The variant for several states and channels side by side: forward, the backward pass's first kernel,
// and the backward pass.
void launch_channels_last_forward(const SelectiveScanGpuArguments& args,
                                  const SelectiveScanGpuPlan& plan, DType out, GpuStream stream);
void launch_channels_last_ahead(const SelectiveScanGpuArguments& args,
                                const SelectiveScanGpuPlan& plan, GpuStream stream);
void launch_channels_last_backward(const SelectiveScanGpuArguments& args,
                                   const SelectiveScanGpuPlan& plan, DType out, GpuStream stream);

inline LaunchShape launch_shape(const SelectiveScanGpuArguments& args,
                                const SelectiveScanGpuPlan& plan) {
  return {int64_t{std::min(args.slice, args.batch - args.first_batch)} * args.groups * args.blocks,
          static_cast<int>(plan.block), args.shared.bytes};
}

}  // namespace linescan
