// What a block's warps begin a route with, for the packed kernels on planes of several tiles: found by one of them for all, in
// shared memory.
//
// A warp has four or eight lines of a tile on a route, and looked for all of this itself before; what it needs before a route's first step
// was a fifth of the forward kernel's instructions (decision 0060).
#pragma once

#include "linescan/ops/ss2d/gpu_lines.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"

namespace linescan {

// A route of the block's tile, and where it begins: its first step, of the block's first channel.
template <typename T, typename Other>
struct LineRoute : TileRoute {
  const T* x;
  const T* records;
  Other* other;         // the results, or their gradient
  const float* states;  // those that enter the first line; null: zero everywhere
  float2* starts;       // those that enter its segments, StateTable; null: not wanted
  int states_line;      // bytes from line to line of `states`

  // `other`: its numbers at pixel 0 of the image, `other_pixel` numbers from there to the next one. `states`: see PieceStates.
  template <class Arguments>
  __device__ __forceinline__ LineRoute(const Arguments& args, const BlockPlace& place, int k,
                                       Other* other, int64_t other_pixel, const float* all_states)
      : TileRoute(args, place, args.codes[k]),
        x(first_of_block(place, args.x) + pixel_origin * args.x.pixel),
        records(first_record(args, place, *this, k)),
        other(other + pixel_origin * other_pixel),
        starts(args.starts ? StateTable(args).at(k, 0, 0, 0) : nullptr),
        states_line(static_cast<int>(pieces_a_line) * args.channels *
                    static_cast<int>(sizeof(float))) {
    const int64_t piece = (place.slot * args.routes + k) * args.pieces + first_piece;
    states = all_states ? all_states + piece * args.channels + place.group * kGpuChannels : nullptr;
  }

  // Of a line, for the lane's channels; zero if it is not `wanted`.
  __device__ __forceinline__ float2 entering(int number, int own_channel,
                                             bool wanted = true) const {
    if (!states || !wanted) return make_float2(0, 0);
    return __ldg(
        reinterpret_cast<const float2*>(offset_bytes(states + own_channel, number, states_line)));
  }
};

// What is found of kGpuLineRoutes routes at a time.
template <typename T, typename Other, int kHalves>
class LineRoutes {
 public:
  using Route = LineRoute<T, Other>;
  using Weights = PackedWeights<T, kHalves>;

  // `memory`: gpu_line_route_bytes() of shared memory.
  __device__ __forceinline__ explicit LineRoutes(void* memory)
      : routes_(static_cast<Route*>(memory)),
        words_(reinterpret_cast<uint32_t*>(static_cast<unsigned char*>(memory) +
                                           kGpuLineRoutes * kGpuLineRouteBytes) +
               threadIdx.x % 32) {}

  // Whether prepare() comes before route k, by all warps. find(k) makes the LineRoute.
  __device__ __forceinline__ static bool prepares(int k) { return k % kGpuLineRoutes == 0; }
  template <class Find>
  __device__ __forceinline__ void prepare(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                          int k, const Find& find) {
    if (k > 0) __syncthreads();  // others may still read what was found before
    const int warps = blockDim.x / 32, end = min(k + kGpuLineRoutes, args.routes);
    for (k += threadIdx.x / 32; k < end; k += warps) {
      const Route route = find(k);
      if (threadIdx.x % 32 == 0) *slot(k) = route;
      uint32_t* const words = lane_words(k);
      Weights(args, place, k).store(words);
      const int64_t row = static_cast<int64_t>(k) * args.channels + lane_channel(args, place);
      for (int i = 0; i < 2; ++i)
        words[32 * (Weights::kWords + i)] =
            __float_as_uint(-exp2_approx(kLog2e * args.A_log[row + i]));
    }
    __syncthreads();
  }
  __device__ __forceinline__ const Route& route(int k) const { return *slot(k); }
  __device__ __forceinline__ Weights weights(int k) const { return Weights(lane_words(k)); }
  // -exp(A_log) of the lane's channel i.
  __device__ __forceinline__ float rate(int k, int i) const {
    return __uint_as_float(lane_words(k)[32 * (Weights::kWords + i)]);
  }

 private:
  Route* routes_;
  uint32_t* words_;  // the lane's, 32 apart

  static constexpr int kLaneWords = Weights::kWords + 2;
  static_assert(sizeof(Route) <= kGpuLineRouteBytes);
  static_assert(kGpuLineRoutes * (kGpuLineRouteBytes + 128 * kLaneWords) ==
                gpu_line_route_bytes(8 * kHalves));

  __device__ __forceinline__ Route* slot(int k) const {
    return reinterpret_cast<Route*>(reinterpret_cast<unsigned char*>(routes_) +
                                    k % kGpuLineRoutes * kGpuLineRouteBytes);
  }
  __device__ __forceinline__ uint32_t* lane_words(int k) const {
    return words_ + k % kGpuLineRoutes * (32 * kLaneWords);
  }
};

}  // namespace linescan
