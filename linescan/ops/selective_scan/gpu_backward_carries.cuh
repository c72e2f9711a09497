// What a row of the general variant hands from tile to tile on the way back.
#pragma once

#include "linescan/ops/selective_scan/gpu_carries.cuh"

namespace linescan {

// What a row carries for a state: the gradient of the state at the tile's end, gA of the tiles behind; A.
struct BackwardCarry {
  float k, A_sum, A;
};

// Where: for a state [rows] of the first two, [rows] of A and, if B or C is constant, [rows] each of gB and gC of the
// tiles behind. What lanes read and write together is without gaps.
template <int kSegments, CarryPlace kPlace>
class BackwardCarries {
 public:
  __device__ __forceinline__ BackwardCarries(const SelectiveScanGpuArguments& args,
                                             const GpuPlace<kSegments>& place, int floats)
      : args_(args), place_(place), floats_(floats), to_A_(2 * rows() - row()) {}
  // Of state n.
  __device__ __forceinline__ float* operator()(int n) const {
    float* const first =
        shared() ? reinterpret_cast<float*>(shared_memory() + args_.shared.carries)
                 : args_.carries + (place_.item - args_.first_batch) * (args_.states * step());
    return first + n * step() + 2 * row();
  }
  __device__ __forceinline__ int64_t step() const {  // from state to state
    return int64_t{rows()} * floats_;
  }
  __device__ __forceinline__ BackwardCarry read(const float* at) const {
    const float2 pair = *reinterpret_cast<const float2*>(at);
    return {pair.x, pair.y, at[to_A_]};
  }
  __device__ __forceinline__ float& A(float* at) const { return at[to_A_]; }
  __device__ __forceinline__ float& sum(float* at, int which) const {
    return at[to_A_ + (1 + which) * rows()];
  }

 private:
  const SelectiveScanGpuArguments& args_;
  const GpuPlace<kSegments>& place_;
  int floats_, to_A_;

  __device__ __forceinline__ bool shared() const { return carries_are_shared<kPlace>(args_); }
  __device__ __forceinline__ int rows() const {
    return ((shared() ? args_.rows : args_.channels) + 1) & ~1;  // pairs are aligned
  }
  __device__ __forceinline__ int row() const {
    return shared() ? place_.team * GpuShape<kSegments>::kRows + place_.row : place_.channel;
  }
};

}  // namespace linescan
