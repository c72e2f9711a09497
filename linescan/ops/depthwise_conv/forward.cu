// depthwise_conv, forward: see convolve.cuh.
//
// Numerics:  sums in float32; out is rounded once. SiLU by the special-function units.
// Reference: reference.cpp beside this file; bounds in tests/ops/depthwise_conv_gpu_test.cpp.

#include "linescan/ops/depthwise_conv/convolve.cuh"
#include "linescan/ops/depthwise_conv/depthwise_conv.h"
#include "linescan/ops/device_code/dispatch.cuh"

namespace linescan {

void forward(const DepthwiseConvProblem& p, const DepthwiseConvGpuPlan& plan, std::byte*,
             GpuStream stream) {
  dispatch_data(p.x.dtype, [&]<typename T>() {
    const ConvolveArgs<T> args = {strip_args(p.x.shape, plan.convolution),
                                  p.x.as<T>(),
                                  p.weight.as<float>(),
                                  p.bias.as<float>(),
                                  p.out.as<T>(),
                                  /*flip=*/false,
                                  p.silu};
    launch_convolve("depthwise_conv", args, plan.convolution, stream);
  });
}

}  // namespace linescan
