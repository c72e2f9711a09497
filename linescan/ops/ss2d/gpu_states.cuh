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
  __device__ __forceinline__ float2* at(int k, int row_of_route, int n, int g) const {
    const int64_t row = ((block * routes + k) * rows + row_of_route) * states + n;
    return reinterpret_cast<float2*>(data + row * kGpuChannels) + g;
  }
};

}  // namespace linescan
