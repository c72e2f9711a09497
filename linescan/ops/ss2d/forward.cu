// ss2d, forward: all routes over one tile of a plane, summed in shared memory.
//
//   delta = dt_weight dts + dt_bias          dt = softplus(delta)
//   h[t,n] = exp(dt[t] A[n]) h[t-1,n] + dt[t] B[t,n] x[t]
//   y      = sum over routes of (sum_n C[t,n] h[t,n] + D x[t]), each at its pixel
//
//   x, y [batch, channels, height, width]   projection [batch, pixels, routes, dts | B | C]
//
// Source:    Liu et al. 2024, arXiv:2401.10166; docs/decisions/0011-ss2d-on-gpus.md.
// Numerics:  state and sums in float; products of half types are exact.
// Reference: reference.cpp beside this file.

#include "linescan/ops/device_code/dispatch.cuh"
#include "linescan/ops/ss2d/gpu_forward.cuh"
#include "linescan/ops/ss2d/gpu_recurrence.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"
#include "linescan/ops/ss2d/gpu_sums.cuh"

namespace linescan {
namespace {

// Half data needs no more of delta than its own precision; float32 data wants all of it.
template <typename T>
__device__ __forceinline__ float step_size(float delta) {
  if constexpr (sizeof(T) == 4) return softplus(delta);
  return softplus_short(delta);
}

// kSingle: one state, which needs no sums over states in registers. kSteps: of a segment.
template <typename T, bool kSingle, int kSteps>
__global__ void __launch_bounds__(32 * kGpuMaxWarps) forward_kernel(ForwardArguments<T> args) {
  const BlockPlace place(args);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  auto* sums = reinterpret_cast<float*>(shared_memory());
  const int states = kSingle ? 1 : args.states;
  Relay relay(sums + place.height * place.pitch * kGpuChannels, carries_of_block(args), states);
  int channel[2];
  for (int i = 0; i < 2; ++i)
    channel[i] = min(place.group * kGpuChannels + 2 * g + i, args.channels - 1);

  // D x of all routes; the barrier of the first exchange makes it visible.
  start_sums(args.x, args.width, args.channels, place, sums,
             [&](int c) { return skip_of_routes(args, c); });
  for (int k = 0; k < args.routes; ++k) {
    const SegmentedRoute<kSteps> route(args, place, args.codes[k]);
    const LaneRoute<T, kSteps> lane(args, place, route, k);
    const RouteWeights<T> weights(place, k);
    const PieceStates<T> entrance(args, args.entering, place, route, k, channel);
    const auto decay_rate = [&](int n, int i) {
      const int64_t row = static_cast<int64_t>(k) * args.channels + channel[i];
      return -kLog2e * exp2_approx(kLog2e * __ldg(args.A_log + row * states + n));
    };
    float bias[2], rate[2];
    for (int i = 0; i < 2; ++i) {
      bias[i] = args.dt_bias[static_cast<int64_t>(k) * args.channels + channel[i]];
      if (kSingle) rate[i] = decay_rate(0, i);
    }
    if (warp == 0 && q == 0)
      for (int n = 0; n < states; ++n)
        relay.start(n, g, make_float2(entrance.state(0, n, 0), entrance.state(0, n, 1)));

    int chunks = route.chunks();
    keep(chunks);
    int chunk = warp, round = 0;
    for (int left = (chunks + warps - 1) / warps; left > 0; --left, ++round, chunk += warps) {
      ChunkInput<T, kSteps> input;
      lane.load(input, chunk);
      const Segment<kSteps> segment = input.segment;

      float dt[2 * kGpuProducts][2];
      weights.multiply(lane, chunk, bias, [&](int t, float d0, float d1) {
        dt[t][0] = step_size<T>(d0);
        dt[t][1] = step_size<T>(d1);
      });
      if (segment.valid < kSteps) {  // steps of size zero leave the state as it is
#pragma unroll
        for (int t = 0; t < kSteps; ++t)
          if (t >= segment.valid) dt[t][0] = dt[t][1] = 0;
      }
      // Behind the barrier of this round's exchange: the route before has left the sums.
      const int origin = segment.sum(route);
      const auto add = [&](int t, float y0, float y1) {
        add_to_sums(sums, place, origin + t * route.sum_step, g,
                    t < segment.valid && args.out.data != nullptr, y0, y1);
      };

      float y[kSingle ? 1 : kSteps][2] = {};
      for (int n = 0; n < states; ++n) {
        if (!kSingle)
          for (int i = 0; i < 2; ++i) rate[i] = decay_rate(n, i);
        float B[2 * kGpuProducts], C[2 * kGpuProducts];
        read_factors(lane, segment, n, B, C);
        float a[kSteps][2], b[kSteps][2];
#pragma unroll
        for (int t = 0; t < kSteps; ++t)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            a[t][i] = exp2_approx(dt[t][i] * rate[i]);
            b[t][i] = dt[t][i] * to_float(input.x[t][i]) * B[t];
          }
        // A line that starts anew knows its state and passes on nothing from before.
        const bool anew = entrance.each_line && segment.position == 0 && segment.valid > 0;
        Affine own[2] = {{1, 0}, {1, 0}}, before[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (anew) own[i] = {0, entrance.state(segment.line, n, i)};
          before[i] = own[i];
#pragma unroll
          for (int t = 0; t < kSteps; ++t)
            own[i] = {a[t][i] * own[i].factor, fmaf(a[t][i], own[i].offset, b[t][i])};
          const Affine earlier = scan_lanes<kGpuSegments, false>(own[i], q);
          if (!anew) before[i] = earlier;
        }
        // The chunk's own transfer is that of the last segment and all before.
        const float2 entered = relay.exchange(own, round, n, g, warp, q == kGpuSegments - 1);
        float h[2] = {before[0](entered.x), before[1](entered.y)};
        const int rows = args.keeps_segments() ? kGpuSegments : 1;
        if (args.starts && q < rows && chunk < chunks)
          StateTable(args).template write<T>(k, chunk * rows + q, n, g, make_float2(h[0], h[1]));
#pragma unroll
        for (int t = 0; t < kSteps; ++t) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            h[i] = fmaf(a[t][i], h[i], b[t][i]);
            if (!kSingle) y[t][i] = fmaf(C[t], h[i], y[t][i]);
          }
          if (kSingle) add(t, C[t] * h[0], C[t] * h[1]);
        }
      }
      if (!kSingle)
#pragma unroll
        for (int t = 0; t < kSteps; ++t) add(t, y[t][0], y[t][1]);
    }
    __syncthreads();  // before relay.start of the next route, and before the sums are read
  }
  if (args.out.data == nullptr) return;
  switch (args.out_dtype) {
    case DType::kBFloat16:
      return write_sums(args.template out_as<BFloat16>(), args.width, args.channels, place, sums);
    case DType::kFloat16:
      return write_sums(args.template out_as<Float16>(), args.width, args.channels, place, sums);
    default:
      return write_sums(args.template out_as<float>(), args.width, args.channels, place, sums);
  }
}

template <typename T>
void launch_forward(const ForwardArguments<T>& args, const Ss2dGpuPlan& plan, int64_t images,
                    GpuStream stream) {
  const auto run = [&](auto kernel) {
    launch("ss2d forward", kernel,
           {plan.blocks_an_image() * images, static_cast<int>(plan.general_block),
            plan.general_shared_bytes},
           stream, args);
  };
  if constexpr (sizeof(T) == 2)
    if (launch_packed_forward(args, plan, images, stream) ||
        launch_packed_states(args, plan, images, stream))
      return;
  const auto run_states = [&]<bool kSingle>() {
    args.pieces > 0 ? run(forward_kernel<T, kSingle, kGpuLineSteps>)
                    : run(forward_kernel<T, kSingle, kGpuSegmentSteps>);
  };
  args.states == 1 ? run_states.template operator()<true>()
                   : run_states.template operator()<false>();
}

}  // namespace

void forward(const Ss2dProblem& p, const Ss2dGpuPlan& plan, std::byte* workspace,
             GpuStream stream) {
  const int64_t batch = p.x.shape[0];
  if (batch * plan.blocks_an_image() == 0) return;
  dispatch_data(p.x.dtype, [&]<typename T>() {
    ForwardArguments<T> args;
    static_cast<Ss2dGpuArguments<T>&>(args) = gpu_arguments<T>(p, plan);
    args.out = gpu_planes<void>(p.out);
    args.out_dtype = p.out.dtype;
    auto* floats = reinterpret_cast<float*>(workspace);
    const Ss2dGpuWorkspace parts = gpu_workspace(size_of(p), plan);
    float* const segments = floats + plan.pieces_slice * parts.entering;
    if (!plan.shared_carries) args.carries = segments + plan.pieces_slice * parts.segments;
    if constexpr (sizeof(T) == 2)
      if (takes_cells(args, plan)) args.segments = reinterpret_cast<float2*>(segments);
    for_each_slice(args, batch, plan.slice, [&](int64_t images) {
      args.starts = kept_states(p, plan, args);
      args.entering = entering_states(args, images, floats, stream);
      launch_forward(args, plan, images, stream);
    });
  });
}

template <typename T>
void chunk_states(const Ss2dGpuArguments<T>& problem, const Ss2dGpuPlan& plan, int64_t images,
                  const float* entering, float* starts, GpuStream stream) {
  ForwardArguments<T> args;
  static_cast<Ss2dGpuArguments<T>&>(args) = problem;
  args.out = {};
  args.out_dtype = DType::kFloat32;
  args.entering = entering;
  args.starts = starts;
  launch_forward(args, plan, images, stream);
}

template void chunk_states(const Ss2dGpuArguments<float>&, const Ss2dGpuPlan&, int64_t,
                           const float*, float*, GpuStream);
template void chunk_states(const Ss2dGpuArguments<Float16>&, const Ss2dGpuPlan&, int64_t,
                           const float*, float*, GpuStream);
template void chunk_states(const Ss2dGpuArguments<BFloat16>&, const Ss2dGpuPlan&, int64_t,
                           const float*, float*, GpuStream);

}  // namespace linescan
