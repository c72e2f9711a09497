// From a problem and its plan to the kernels' arguments.
#pragma once

#include <algorithm>
#include <cstddef>

#include "linescan/ops/ss2d/gpu_arguments.cuh"
#include "linescan/ops/ss2d/ss2d.h"

namespace linescan {

template <typename T>
GpuPlanes<T> gpu_planes(const TensorView& planes) {
  return {static_cast<T*>(planes.data), planes.strides[0], planes.strides[1], pixel_stride(planes)};
}

template <typename T>
Ss2dGpuArguments<T> gpu_arguments(const Ss2dProblem& p, const Ss2dGpuPlan& plan) {
  const Ss2dSize size = size_of(p);
  Ss2dGpuArguments<T> args;
  args.x = gpu_planes<const T>(p.x);
  args.projection = p.projection.as<const T>();
  const bool float_weight = p.dt_weight.dtype == DType::kFloat32;
  args.dt_weight = float_weight ? nullptr : p.dt_weight.as<const T>();
  args.float_weight = float_weight ? p.dt_weight.as<const float>() : nullptr;
  args.dt_bias = p.dt_bias.as<const float>();
  args.A_log = p.A_log.as<const float>();
  args.D = p.D.as<const float>();
  args.height = static_cast<int>(size.height);
  args.width = static_cast<int>(size.width);
  args.channels = static_cast<int>(size.channels);
  args.channel_groups = static_cast<int>(plan.channel_groups);
  args.states = static_cast<int>(size.states);
  args.rank = static_cast<int>(size.rank);
  args.record = static_cast<int>(size.record());
  args.routes = static_cast<int>(size.routes);
  args.tile_height = static_cast<int>(plan.tile_height);
  args.tile_width = static_cast<int>(plan.tile_width);
  args.tile_rows = static_cast<int>(plan.tile_rows);
  args.tile_columns = static_cast<int>(plan.tile_columns);
  args.sum_pitch = static_cast<int>(gpu_sum_pitch(plan.tile_height, plan.tile_width));
  args.pieces = plan.pieces;
  args.state_rows = plan.state_rows(size);
  args.carries = nullptr;
  args.first_image = 0;
  args.packed = has_aligned_pairs(p);
  for (int64_t k = 0; k < size.routes; ++k) args.codes[k] = static_cast<unsigned char>(p.routes[k]);
  return args;
}

// Calls run(images) for slices of images [args.first_image, end), with args.first_image set: a launch's workspace
// is that of a slice.
template <class Arguments, class Run>
void for_each_slice(Arguments& args, int64_t end, int64_t slice, const Run& run) {
  for (; args.first_image < end; args.first_image += slice)
    run(std::min(slice, end - args.first_image));
}

// The StateTable that a problem keeps, of its images from args.first_image on; null: none.
template <typename T>
float* kept_states(const Ss2dProblem& p, const Ss2dGpuPlan& plan, const Ss2dGpuArguments<T>& args) {
  return plan.kept ? p.states.as<float>() + args.first_image * plan.table_floats(size_of(p))
                   : nullptr;
}

// tile_states.cu, for `images` images from args.first_image on: the states with which routes enter
// the pieces of their lines, [images, routes, pieces, states, channels]; null where one tile is the
// whole plane. Where args.segments is not null a line is one piece, and its segments are filled. `workspace`: kGpuPieceFloats floats for each.
template <typename T>
const float* entering_states(const Ss2dGpuArguments<T>& args, int64_t images, float* workspace,
                             GpuStream stream);
// Likewise the gradients that come back from behind the pieces.
template <typename T>
const float* returning_states(const Ss2dGpuArguments<T>& args, const GpuPlanes<const void>& gout,
                              DType gout_dtype, int64_t images, float* workspace, GpuStream stream);

// packed_tile_states.cu: the effects of the pieces, [slots, routes, pieces, channels] of (factor,
// offset), on the state and on the gradient that comes back. False: not a problem for the packed
// kernels, nothing is done.
template <typename T>
bool packed_transfers(const Ss2dGpuArguments<T>& args, int64_t images, float2* transfers,
                      GpuStream stream);
template <typename T>
bool packed_returning_transfers(const Ss2dGpuArguments<T>& args, const GpuPlanes<const void>& gout,
                                DType gout_dtype, int64_t images, float2* transfers,
                                GpuStream stream);

// packed_segments.cu: fills args.segments, walking forward or back along gout of type T; the transfers are those of whole lines.
template <typename T>
void packed_segments(const Ss2dGpuArguments<T>& args, int64_t images, float2* transfers,
                     GpuStream stream);
template <typename T>
void packed_returning_segments(const Ss2dGpuArguments<T>& args, const GpuPlanes<const void>& gout,
                               int64_t images, float2* transfers, GpuStream stream);

// forward.cu: fills a StateTable and computes nothing else.
template <typename T>
void chunk_states(const Ss2dGpuArguments<T>& args, const Ss2dGpuPlan& plan, int64_t images,
                  const float* entering, float* starts, GpuStream stream);

}  // namespace linescan
