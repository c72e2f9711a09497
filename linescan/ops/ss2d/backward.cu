// ss2d, backward: the gradients of all routes over one tile of a plane.
//
//   gh[t,n] = C[t,n] gy[t] + c[t+1,n]      c[t,n] = a[t,n] gh[t,n]        a = exp(dt A), from the end
//   gx     += D gy + sum_n gh dt B         gB = sum over channels of gh dt x      gC of gy h
//   gdelta  = sigmoid(delta) sum_n (gh A a h[t-1] + gh B x)               gA += gh dt a h[t-1]
//   gdts    = dt_weight^T gdelta           gdt_weight += gdelta dts^T     gdt_bias += gdelta
//
// h is computed again inside every chunk or segment, from the state that enters it (StateTable).
//
// Source:    linescan/ops/ss2d/README.md; docs/decisions/0011-ss2d-on-gpus.md.
// Numerics:  state and sums in float; sums over channels as gpu_channel_sums.cuh says. No atomics.
// Reference: reference.cpp beside this file.

#include <type_traits>

#include "linescan/ops/device_code/dispatch.cuh"
#include "linescan/ops/ss2d/gpu_backward.cuh"
#include "linescan/ops/ss2d/gpu_recurrence.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"
#include "linescan/ops/ss2d/gpu_sums.cuh"

namespace linescan {
namespace {

// D gy, whatever type gy has.
template <typename T, class Scale>
__device__ __forceinline__ void start_sums_with_gout(const BackwardArguments<T>& args,
                                                     const BlockPlace& place, float* sums,
                                                     const Scale& scale) {
  const auto start = [&](const auto& gout) {
    start_sums(gout, args.width, args.channels, place, sums, scale);
  };
  switch (args.gout_dtype) {
    case DType::kBFloat16:
      return start(args.template gout_as<BFloat16>());
    case DType::kFloat16:
      return start(args.template gout_as<Float16>());
    default:
      return start(args.template gout_as<float>());
  }
}

// kSteps: of a segment.
template <typename T, int kSteps>
__global__ void __launch_bounds__(32 * kGpuBackwardWarps)
    backward_kernel(BackwardArguments<T> args) {
  const BlockPlace place(args);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  auto* sums = reinterpret_cast<float*>(shared_memory());
  const int states = args.states;
  Relay relay(sums + place.height * place.pitch * kGpuChannels, carries_of_block(args), states);
  int channel[2];
  bool exists[2];
  for (int i = 0; i < 2; ++i) {
    const int c = place.group * kGpuChannels + 2 * g + i;
    exists[i] = c < args.channels;
    channel[i] = min(c, args.channels - 1);
  }
  const int64_t gout_first = place.image * args.gout.batch + channel[0] * args.gout.channel;
  const int64_t gout_second = place.image * args.gout.batch + channel[1] * args.gout.channel;
  // D gy of all routes; the barrier of the first exchange makes it visible.
  start_sums_with_gout(args, place, sums, [&](int c) { return skip_of_routes(args, c); });

  for (int k = 0; k < args.routes; ++k) {
    const SegmentedRoute<kSteps> route(args, place, args.codes[k]);
    const LaneRoute<T, kSteps> lane(args, place, route, k);
    const RouteWeights<T> weights(place, k);
    const PieceStates<T> entrance(args, args.entering, place, route, k, channel);
    const bool segments_known = args.keeps_segments();
    const PieceStates<T> ending(args, args.returning, place, route, k, channel);
    const auto decay_rate = [&](int n, int i) {  // A
      const int64_t row = static_cast<int64_t>(k) * args.channels + channel[i];
      return -exp2_approx(kLog2e * __ldg(args.A_log + row * states + n));
    };
    float bias[2];
    for (int i = 0; i < 2; ++i)
      bias[i] = args.dt_bias[static_cast<int64_t>(k) * args.channels + channel[i]];
    const int last_line = route.lines - 1;
    if (warp == 0 && q == 0)
      for (int n = 0; n < states; ++n)
        relay.start(n, g,
                    make_float2(ending.state(last_line, n, 0), ending.state(last_line, n, 1)));
    const ParameterSums::Place sum_place = args.parameter_sums.place(args, place, k, warp, channel);
    sum_place.clear(exists);
    const RecordSums<float>::Route record_sums = args.record_sums.route(args, place, route, k);
    float g_bias[2] = {}, g_D[2] = {};

    int chunks = route.chunks();
    keep(chunks);
    const int rounds = (chunks + warps - 1) / warps;
    int chunk = (rounds - 1) * warps + warp;
    for (int round = 0; round < rounds; ++round, chunk -= warps) {
      ChunkInput<T, kSteps> input;
      lane.load(input, chunk);
      const Segment<kSteps> segment = input.segment;
      float gy[kSteps][2];
#pragma unroll
      for (int t = 0; t < kSteps; ++t) {
        const bool inside = t < segment.valid;
        const int64_t at =
            (segment.first_pixel(route) + segment.clamp(t) * route.pixel_step) * args.gout.pixel;
        const auto read = [&](int64_t first) {
          return inside ? read_as_float(args.gout.data, args.gout_dtype, first + at) : 0.0f;
        };
        gy[t][0] = read(gout_first);
        gy[t][1] = read(gout_second);
      }
      float dt[2 * kGpuProducts][2], slope[2 * kGpuProducts][2];
      weights.multiply(lane, chunk, bias, [&](int t, float d0, float d1) {
        constexpr bool kShort = sizeof(T) == 2;
        dt[t][0] = softplus_and_slope<kShort>(d0, slope[t][0]);
        dt[t][1] = softplus_and_slope<kShort>(d1, slope[t][1]);
      });
#pragma unroll
      for (int t = 0; t < 2 * kGpuProducts; ++t)
        if (t >= segment.valid) dt[t][0] = dt[t][1] = 0;

      const int origin = segment.sum(route);
      const auto add = [&](int t, const float(&to_x)[2]) {
        add_to_sums(sums, place, origin + t * route.sum_step, g, t < segment.valid, to_x[0],
                    to_x[1]);
      };
      // The gradient of delta from what its size has gathered; adds to the parameters' sums.
      const auto finish_delta = [&](int t, float(&g_dt)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          g_dt[i] = t < segment.valid ? g_dt[i] * slope[t][i] : 0.0f;
          g_bias[i] += g_dt[i];
          if (k == 0) g_D[i] = fmaf(gy[t][i], to_float(input.x[t][i]), g_D[i]);
        }
      };
      StepValues g_delta = {};
      float gx[kSteps][2] = {};
      for (int n = 0; n < states; ++n) {
        float A[2];
        for (int i = 0; i < 2; ++i) A[i] = decay_rate(n, i);
        float B[2 * kGpuProducts], C[2 * kGpuProducts];
        read_factors(lane, segment, n, B, C);
        float a[kSteps][2], b[kSteps][2];
        float h[kSteps + 1][2];  // h[t] enters step t

        // Forward again: the states of the segment.
        const bool anew =
            segments_known || (entrance.each_line && segment.position == 0 && segment.valid > 0);
        const int last = min(chunk, chunks - 1);
        const int row = segments_known ? last * kGpuSegments + q : last;
        float2 start = make_float2(0, 0);
        if (!segments_known || segment.valid > 0)
          start = StateTable(args).template read<T>(k, row, n, g);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float entered = i ? start.y : start.x;
          const float new_state = segments_known ? entered
                                  : anew         ? entrance.state(segment.line, n, i)
                                                 : 0.0f;
          Affine own = {anew ? 0.0f : 1.0f, new_state};
#pragma unroll
          for (int t = 0; t < kSteps; ++t) {
            a[t][i] = exp2_approx(dt[t][i] * (kLog2e * A[i]));
            b[t][i] = dt[t][i] * to_float(input.x[t][i]) * B[t];
            own = {a[t][i] * own.factor, fmaf(a[t][i], own.offset, b[t][i])};
          }
          float leaves;
          const float enters = pass_lanes<kGpuSegments, false>(own, q, entered, leaves);
          h[0][i] = anew ? new_state : enters;
#pragma unroll
          for (int t = 0; t < kSteps; ++t) h[t + 1][i] = fmaf(a[t][i], h[t][i], b[t][i]);
        }

        // Back: a line that ends the sequence knows what comes back from behind it.
        const bool ends = ending.each_line && segment.valid > 0 &&
                          segment.position + segment.valid == route.length;
        Affine own[2] = {{1, 0}, {1, 0}}, behind[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (ends) own[i] = {0, ending.state(segment.line, n, i)};
          behind[i] = own[i];
#pragma unroll
          for (int t = kSteps - 1; t >= 0; --t)
            own[i] = {a[t][i] * own[i].factor, a[t][i] * fmaf(C[t], gy[t][i], own[i].offset)};
          const Affine later = scan_lanes<kGpuSegments, true>(own[i], q);
          if (!ends) behind[i] = later;
        }
        const float2 returned = relay.exchange(own, round, n, g, warps - 1 - warp, q == 0);
        float c[2] = {behind[0](returned.x), behind[1](returned.y)};
        float sum_A[2] = {};
        // One step back: what it gives to gx and to the gradients of dt, B and C.
        const auto step_back = [&](int t, float(&to_x)[2], float(&to_dt)[2], float(&to_B)[2],
                                   float(&to_C)[2]) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float x = to_float(input.x[t][i]);
            const float gh = fmaf(C[t], gy[t][i], c[i]);
            c[i] = a[t][i] * gh;
            const float through = c[i] * h[t][i];
            const float from_B = gh * B[t];
            sum_A[i] = fmaf(dt[t][i], through, sum_A[i]);
            to_x[i] = fmaf(from_B, dt[t][i], to_x[i]);
            to_dt[i] = fmaf(A[i], through, fmaf(from_B, x, to_dt[i]));
            to_B[i] = gh * dt[t][i] * x;
            to_C[i] = gy[t][i] * h[t + 1][i];
          }
        };
        StepValues to_B = {}, to_C = {};
#pragma unroll
        for (int t = kSteps - 1; t >= 0; --t) step_back(t, gx[t], g_delta[t], to_B[t], to_C[t]);
        sum_place.add_A(n, exists, sum_A);
        store_factors(record_sums, segment, args.rank + n, args.rank + states + n, exists, to_B,
                      to_C);
      }

#pragma unroll
      for (int t = 0; t < kSteps; ++t) {
        finish_delta(t, g_delta[t]);
        add(t, gx[t]);
      }
      for (int part = 0; part * kDepth < args.rank; ++part) {
        const FragmentA<float> columns = weight_columns<float>(args, place, k, part);
#pragma unroll
        for (int j = 0; j < kGpuProducts; ++j) {
          float record[4] = {};
          add_channel_product(record, columns, &g_delta[2 * j]);
          store_records<float>(record_sums, segment.line, segment.position, segment.valid, part, j,
                               args.rank, record);
        }
        for (int half = 0; half < 2; ++half) {
          float weight_sum[4] = {};
          multiply_by_records(weight_sum, g_delta, lane, segment, 2 * part + half);
          sum_place.add_weights(2 * part + half, exists, weight_sum);
        }
      }
    }
    sum_place.finish(exists, g_bias, g_D);
    __syncthreads();  // before relay.start of the next route, and before the sums are read
  }
  write_sums(args.gx, args.width, args.channels, place, sums);
}

template <typename T>
bool packs(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan) {
  if constexpr (sizeof(T) == 2)
    return (packs_backward(args) &&
            (args.pieces > 0 ||
             static_cast<int64_t>(size_of(args.gout_dtype)) <= plan.gradient_bytes)) ||
           packs_states_backward(args, plan);
  return false;
}

template <typename T>
void launch_backward(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan, int64_t images,
                     float* weight_sums, GpuStream stream) {
  if constexpr (sizeof(T) == 2) {
    if (packs(args, plan)) {
      const bool several = args.states > 1;
      several ? launch_packed_states_backward(args, plan, images, stream)
              : launch_packed_backward(args, plan, images, stream);
      if (plan.stores_delta) {
        const auto multiply =
            plan.at_once ? multiply_delta_gradient_at_once<T> : multiply_delta_gradient<T>;
        multiply(args, args.delta_gradient, {plan.product_side, plan.product_columns},
                 plan.delta_parts, args.gprojection, weight_sums, stream);
      }
      if (several)
        sum_factors(args, args.delta_gradient, args.gprojection, stream);
      else if (!plan.stores_delta)
        sum_records(args, args.packed_record_sums, args.gprojection, stream);
      return;
    }
  }
  const auto kernel =
      args.pieces > 0 ? backward_kernel<T, kGpuLineSteps> : backward_kernel<T, kGpuSegmentSteps>;
  launch("ss2d backward", kernel,
         {plan.blocks_an_image() * images, static_cast<int>(plan.general_block),
          plan.general_shared_bytes},
         stream, args);
  sum_records(args, args.record_sums, args.gprojection, stream);
}

// slices: null if all projections are there.
void run_backward(const Ss2dProblem& p, const Ss2dGradients& g, const Ss2dGpuPlan& plan,
                  const Ss2dProjectionSlices* slices, std::byte* workspace, GpuStream stream) {
  const Ss2dSize size = size_of(p);
  const BackwardWorkspace parts(size, plan, workspace);
  dispatch_data(p.x.dtype, [&]<typename T>() {
    BackwardArguments<T> args;
    static_cast<Ss2dGpuArguments<T>&>(args) = gpu_arguments<T>(p, plan);
    args.gout = gpu_planes<const void>(g.out);
    args.gout_dtype = g.out.dtype;
    args.gx = gpu_planes<T>(g.x);
    args.gprojection = g.projection.as<T>();
    args.starts = parts.starts;
    if (!plan.shared_carries) args.carries = parts.carries;
    const bool packed = packs(args, plan);
    const bool stored = packed && plan.stores_delta;
    float2* segments = nullptr;
    if constexpr (sizeof(T) == 2)
      if (packed && takes_cells(args, plan)) segments = reinterpret_cast<float2*>(parts.segments);
    const bool on_lines = packed && plan.cells && !segments;
    args.parameter_sums = {packed ? parts.parameters : parts.weights,
                           (packed && !on_lines ? plan.block : plan.general_block) / 32,
                           stored ? 0 : args.rank, false};
    const int64_t pieces = plan.piece_floats(size);
    const int64_t image_segments = gpu_workspace(size, plan).segments / 2;
    const int64_t slice = packed ? plan.slice : gpu_workspace(size, plan).general_slice(plan.slice);
    // Images that leave sums at once; without pixels or channels there are no blocks.
    const bool none = plan.blocks_an_image() == 0;
    const int64_t slots = none ? 0 : std::min({slice, plan.pieces_slice, size.batch});
    const auto scan = [&](int64_t end, const float* entering, const float* returning) {
      const int64_t first = args.first_image;
      for_each_slice(args, end, slice, [&](int64_t images) {
        const auto of_slice = [&](const float* all) {
          return all ? all + (args.first_image - first) * pieces : nullptr;
        };
        args.record_sums = {parts.records, images};
        args.packed_record_sums = {reinterpret_cast<T*>(parts.records), images};
        args.delta_gradient = {args, parts.records, images, args.states > 1 && !plan.stores_delta};
        args.parameter_sums.add = args.first_image > 0;
        if (slices) {  // where image 0 would be
          const int64_t before =
              args.first_image * args.height * args.width * args.routes * args.record;
          args.projection = p.projection.as<const T>() - before;
          args.gprojection = g.projection.as<T>() - before;
          slices->begin(args.first_image, images);
        }
        if (segments) args.segments = segments + (args.first_image - first) * image_segments;
        args.entering = of_slice(entering);
        args.returning = of_slice(returning);
        if (plan.kept)
          args.starts = kept_states(p, plan, args);
        else
          chunk_states(args, plan, images, args.entering, args.starts, stream);
        launch_backward(args, plan, images, parts.weights, stream);
        if (slices) slices->end(args.first_image, images);
      });
    };
    // What crosses the borders of tiles is found for many images at once: its kernels are small.
    for (int64_t first = 0; first < size.batch && !none; first += plan.pieces_slice) {
      args.first_image = first;
      const int64_t images = std::min(plan.pieces_slice, size.batch - first);
      args.segments = segments;
      const float* entering =
          plan.kept ? nullptr : entering_states(args, images, parts.entering, stream);
      const float* returning =
          returning_states(args, args.gout, args.gout_dtype, images, parts.returning, stream);
      scan(first + images, entering, returning);
    }
    const int64_t count = slots * plan.tile_rows * plan.tile_columns * args.parameter_sums.warps;
    sum_parameters(args, args.parameter_sums, count, stored ? parts.weights : nullptr,
                   slots > 0 ? plan.delta_parts : 0, g, stream);
    args.first_image = 0;
    args.record_sums = {parts.records, size.batch};
    if (none) sum_records(args, args.record_sums, args.gprojection, stream);  // of no channels
  });
}

}  // namespace

void backward(const Ss2dProblem& problem, const Ss2dGradients& gradients, const Ss2dGpuPlan& plan,
              std::byte* workspace, GpuStream stream) {
  run_backward(problem, gradients, plan, nullptr, workspace, stream);
}
void backward(const Ss2dProblem& problem, const Ss2dGradients& gradients, const Ss2dGpuPlan& plan,
              const Ss2dProjectionSlices& slices, std::byte* workspace, GpuStream stream) {
  run_backward(problem, gradients, plan, &slices, workspace, stream);
}

}  // namespace linescan
