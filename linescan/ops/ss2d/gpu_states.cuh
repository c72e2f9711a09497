// States that cross the borders of what one block or one launch sees.
#pragma once

#include "linescan/ops/ss2d/gpu_arguments.cuh"

namespace linescan {

// The state with which a route enters a tile, or each of its lines there (walking backwards: the
// gradient that comes back from behind it).
template <typename T>
struct PieceStates {
  const float* states;  // [pieces, states, channels] of the slot and route; null: zero everywhere
  int64_t first_piece, pieces_a_line;
  int state_count, channels, channel[2];
  bool each_line;  // every line starts anew, with its own state; else only the first

  // all [slots, routes, pieces, states, channels]; null: one tile, every state is zero.
  __device__ __forceinline__ PieceStates(const Ss2dGpuArguments<T>& args, const float* all,
                                         const BlockPlace& place, const TileRoute& route, int k,
                                         const int (&channel)[2])
      : states(all ? all +
                         (place.slot * args.routes + k) * args.pieces * args.states * args.channels
                   : nullptr),
        first_piece(route.first_piece),
        pieces_a_line(route.pieces_a_line),
        state_count(args.states),
        channels(args.channels),
        channel{channel[0], channel[1]},
        each_line(route.restart || (all && route.pieces_a_line > 1)) {}

  __device__ __forceinline__ float state(int line, int n, int i) const {
    if (!states) return 0.0f;
    const int64_t piece = first_piece + line * pieces_a_line;
    return states[(piece * state_count + n) * channels + channel[i]];
  }
};

// What several states are in a StateTable: half of what a backward pass needs otherwise (gpu_keeps_halves()).
template <typename T>
using KeptState = std::conditional_t<std::is_same_v<T, BFloat16>, BFloat16, float>;

// The states that enter the chunks, or with one state on planes of several tiles their segments: [blocks, routes,
// state_rows, states, kGpuChannels].
struct StateTable {
  float* data;
  int64_t routes, rows, states, block;

  template <class Arguments>
  __device__ __forceinline__ explicit StateTable(const Arguments& args, int64_t block = blockIdx.x)
      : data(args.starts),
        routes(args.routes),
        rows(args.state_rows),
        states(args.states),
        block(block) {}

  // Of channels 2g and 2g + 1 of the block.
  __device__ __forceinline__ float2* at(int k, int row, int n, int g) const {
    return reinterpret_cast<float2*>(data) + pair(k, row, n, g);
  }
  // Of several states of data of type T.
  template <typename T>
  __device__ __forceinline__ Two<KeptState<T>>* several_at(int k, int row, int n, int g) const {
    return reinterpret_cast<Two<KeptState<T>>*>(data) + pair(k, row, n, g);
  }
  // However many states there are.
  template <typename T>
  __device__ __forceinline__ float2 read(int k, int row, int n, int g) const {
    if (states == 1) return *at(k, row, n, g);
    const Two<KeptState<T>> both = *several_at<T>(k, row, n, g);
    return make_float2(both[0], both[1]);
  }
  template <typename T>
  __device__ __forceinline__ void write(int k, int row, int n, int g, float2 both) const {
    if (states == 1)
      *at(k, row, n, g) = both;
    else
      *several_at<T>(k, row, n, g) = two_of<KeptState<T>>(both.x, both.y);
  }

 private:
  __device__ __forceinline__ int64_t pair(int k, int row, int n, int g) const {
    return (((block * routes + k) * rows + row) * states + n) * (kGpuChannels / 2) + g;
  }
};

}  // namespace linescan
