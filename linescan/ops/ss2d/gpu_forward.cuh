// What the forward kernels are given, whichever of them runs.
#pragma once

#include "linescan/ops/ss2d/gpu_launch.cuh"

namespace linescan {

template <typename T>
struct ForwardArguments : Ss2dGpuArguments<T> {
  GpuPlanes<void> out;  // no data: not wanted
  DType out_dtype;
  const float* entering;  // [slots, routes, pieces, states, channels]; null: one tile
  float* starts;          // StateTable; null: not wanted

  template <typename Out>
  __host__ __device__ GpuPlanes<Out> out_as() const {
    return {static_cast<Out*>(out.data), out.batch, out.channel, out.pixel};
  }
};

// packed_forward.cu. False: not a problem for the packed kernels, nothing is done.
template <typename T>
bool launch_packed_forward(const ForwardArguments<T>& args, const Ss2dGpuPlan& plan, int64_t images,
                           GpuStream stream);

// packed_states_forward.cu: several states, where the plan has room for them. False as above.
template <typename T>
bool launch_packed_states(const ForwardArguments<T>& args, const Ss2dGpuPlan& plan, int64_t images,
                          GpuStream stream);

// packed_lines_forward.cu: such a problem on planes of several tiles. `halves`: see packed_halves.
template <typename T>
void launch_packed_lines(const ForwardArguments<T>& args, int halves, const Ss2dGpuPlan& plan,
                         int64_t images, GpuStream stream);

// packed_cells_forward.cu: such a problem in cells, where the plan says so, and whether it can be read and written like that;
// args.segments has been filled.
template <typename T>
bool takes_cells(const ForwardArguments<T>& args, const Ss2dGpuPlan& plan);
template <typename T>
void launch_packed_cells(const ForwardArguments<T>& args, const Ss2dGpuPlan& plan, int64_t images,
                         GpuStream stream);

// packed_images_forward.cu: such a problem on small planes, where the plan says so.
template <typename T>
void launch_packed_images(const ForwardArguments<T>& args, int halves, const Ss2dGpuPlan& plan,
                          int64_t images, GpuStream stream);

}  // namespace linescan
