// One state's steps of a tile, there and back, in the backward pass of the variants whose lanes have a row.
#pragma once

#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/selective_scan/gpu_addend_sums.cuh"
#include "linescan/ops/selective_scan/gpu_tile.cuh"

namespace linescan {

// What a lane knows of a tile's steps and adds up over the states.
struct RowSteps {
  float dt[kGpuItems], du[kGpuItems];  // du: dt u
  // sum_n gh B and sum_n A k h[t-1], as in backward.cu
  float through_B[kGpuItems] = {}, through_a[kGpuItems] = {};

  // From `start`, the state in front of the tile, with k, the gradient of the state behind it, which becomes
  // that of the state in front. B, then C: of the tile's steps, [2, kGpuItems]; gy: the lane's gradient
  // of out. Leaves the sum for A in A_sum and returns the lane's sum for B or C (AddendSums).
  template <typename T>
  __device__ __forceinline__ float walk(float A, float start, float& k, float& A_sum,
                                        const float* factors, const float* gy, int lane) {
    const float rate = A * kLog2e;
    float a[kGpuItems], h[kGpuItems], state = start;
    for_fours([&](int i) {
      const float4 four = *reinterpret_cast<const float4*>(factors + i);
      const float B[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[i + j] = exp2_approx(dt[i + j] * rate);
        h[i + j] = state = fmaf(a[i + j], state, du[i + j] * B[j]);
      }
    });
    A_sum = 0;
    AddendSums<T> addends(lane);
    // From here on a[] becomes the row's addends for B, h[] those for C.
    for_fours_backwards([&](int i) {
      const float4 four_B = *reinterpret_cast<const float4*>(factors + i);
      const float4 four_C = *reinterpret_cast<const float4*>(factors + kGpuItems + i);
      const float4 four_gy = *reinterpret_cast<const float4*>(gy + i);
      const float B[4] = {four_B.x, four_B.y, four_B.z, four_B.w};
      const float C[4] = {four_C.x, four_C.y, four_C.z, four_C.w};
      const float own_gy[4] = {four_gy.x, four_gy.y, four_gy.z, four_gy.w};
#pragma unroll
      for (int j = 3; j >= 0; --j) {
        const int t = i + j;
        const float gh = fmaf(C[j], own_gy[j], k);
        k = a[t] * gh;
        const float turn = k * (t > 0 ? h[t > 0 ? t - 1 : 0] : start);
        through_B[t] = fmaf(gh, B[j], through_B[t]);
        through_a[t] = fmaf(A, turn, through_a[t]);
        A_sum = fmaf(dt[t], turn, A_sum);
        a[t] = gh * du[t];
        h[t] *= own_gy[j];
      }
      addends.add(i / 4, a + i, h + i);
    });
    return addends.total();
  }
};

}  // namespace linescan
