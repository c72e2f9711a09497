// selective_scan with one state, backward: what a lane does with its neighbouring steps of a row, whose other steps the
// lanes beside it have.
//
//   Equations as in backward.cu.
#pragma once

#include "linescan/ops/selective_scan/gpu_one_state.cuh"

namespace linescan {

// A row's sums over the lane's steps.
struct LaneSums {
  float A = 0, D = 0, bias = 0;
};

// dt and slope: softplus of delta and its derivative, both zero at steps that are none. x and gy: u and the gradient of out. start:
// the state in front of the row's first lane. Leaves the gradients of u in dt, of delta in slope, adds to those of B and C and to
// the sums, and returns the gradient of the state in front of the first lane. Then whoever has own.carry in memory may replace it.
template <int kLanes, int kItems, class Steps, class OutSteps>
__device__ __forceinline__ float walk_back(const OneStateRow& own, float start, int segment,
                                           const Steps& x, const OutSteps& gy,
                                           const float (&B)[kItems], const float (&C)[kItems],
                                           float (&dt)[kItems], float (&slope)[kItems],
                                           float (&gB)[kItems], float (&gC)[kItems],
                                           LaneSums& sums) {
  const float rate = own.A * kLog2e;
  float a[kItems], h[kItems], sum_dt = 0;
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    sum_dt += dt[j];
    a[j] = exp2_approx(dt[j] * rate);
  }
  Affine ahead{exp2_approx(rate * sum_dt), 0}, back{ahead.factor, 0};
#pragma unroll
  for (int j = 0; j < kItems; ++j) ahead.offset = fmaf(a[j], ahead.offset, dt[j] * x[j] * B[j]);
#pragma unroll
  for (int j = kItems - 1; j >= 0; --j) back.offset = a[j] * fmaf(C[j], gy[j], back.offset);
  float leaves;
  const float before = pass_lanes<kLanes, false>(ahead, segment, start, leaves);
  float k = pass_lanes<kLanes, true>(back, segment, own.carry, leaves);

  float state = before;
#pragma unroll
  for (int j = 0; j < kItems; ++j) h[j] = state = fmaf(a[j], state, dt[j] * x[j] * B[j]);
#pragma unroll
  for (int j = kItems - 1; j >= 0; --j) {
    const float gh = fmaf(C[j], gy[j], k);
    k = a[j] * gh;
    const float turn = k * (j > 0 ? h[j > 0 ? j - 1 : 0] : before);
    const float through_B = gh * B[j];
    sums.A = fmaf(dt[j], turn, sums.A);
    sums.D = fmaf(gy[j], x[j], sums.D);
    gB[j] = fmaf(gh, dt[j] * x[j], gB[j]);
    gC[j] = fmaf(gy[j], h[j], gC[j]);
    slope[j] *= fmaf(x[j], through_B, own.A * turn);
    sums.bias += slope[j];
    dt[j] = fmaf(own.D, gy[j], dt[j] * through_B);
  }
  return leaves;
}

// What kLanes lanes have of a row's sums, added up: number segment / (kLanes / 4) of A, D, bias and nothing, in all lanes that
// have this number.
template <int kLanes>
__device__ __forceinline__ float add_lanes(const LaneSums& sums, int segment) {
  float x[4] = {sums.A, sums.D, sums.bias, 0};
  fold_halves<4>(x, segment, kLanes / 2);
  fold_halves<2>(x, segment, kLanes / 4);
#pragma unroll
  for (int mask = kLanes / 8; mask > 0; mask /= 2) x[0] += __shfl_xor_sync(kAllLanes, x[0], mask);
  return x[0];
}

}  // namespace linescan
