// What the backward kernels are given, whichever of them runs.
#pragma once

#include "linescan/ops/ss2d/gpu_backward_sums.cuh"
#include "linescan/ops/ss2d/gpu_channel_sums.cuh"
#include "linescan/ops/ss2d/gpu_delta_gradient.cuh"
#include "linescan/ops/ss2d/gpu_launch.cuh"

namespace linescan {

template <typename T>
struct BackwardArguments : Ss2dGpuArguments<T> {
  GpuPlanes<const void> gout;
  DType gout_dtype;
  GpuPlanes<T> gx;
  T* gprojection;
  const float* entering;   // PieceStates; null where the StateTable has all segments, or one tile
  const float* returning;  // likewise, of the gradient
  float* starts;           // StateTable
  RecordSums<float> record_sums;
  RecordSums<T> packed_record_sums;  // of the packed kernel, in the same memory
  DeltaGradient<T> delta_gradient;   // or that, see there
  ParameterSums parameter_sums;

  template <typename G>
  __host__ __device__ GpuPlanes<const G> gout_as() const {
    return {static_cast<const G*>(gout.data), gout.batch, gout.channel, gout.pixel};
  }
};

// packed_backward.cu: whether it takes the problem, and its launch; it fills delta_gradient, or packed_record_sums if the
// plan does not store delta's gradient.
template <typename T>
bool packs_backward(const BackwardArguments<T>& args);
template <typename T>
void launch_packed_backward(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan,
                            int64_t images, GpuStream stream);

// packed_states_backward.cu: the same for several states, where the plan has room for them; it fills delta_gradient.
template <typename T>
bool packs_states_backward(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan);
template <typename T>
void launch_packed_states_backward(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan,
                                   int64_t images, GpuStream stream);

// packed_cells_backward.cu: as packed_backward.cu in cells; args.segments has been filled. takes_cells: see gpu_forward.cuh.
template <typename T>
bool takes_cells(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan);
template <typename T>
void launch_packed_cells(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan, int64_t images,
                         GpuStream stream);

// packed_lines_backward.cu: as packed_backward.cu on planes of several tiles, with gout of type G. `halves`: see packed_halves.
template <typename G, typename T>
void launch_packed_lines(const BackwardArguments<T>& args, int halves, const Ss2dGpuPlan& plan,
                         int64_t images, GpuStream stream);

}  // namespace linescan
