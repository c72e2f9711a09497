// What the kernels of selective_scan are given: tensors as addresses, strides in bytes, and the
// widest accesses that both allow. Plain data, made on the host.
#pragma once

#include <cstdint>

#include "linescan/ops/selective_scan/gpu_plan.h"
#include "linescan/ops/selective_scan/selective_scan.h"

namespace linescan {

// How a warp's tile of a sequence is copied: line by line, each contiguous in memory.
enum class GpuLines {
  kRows,   // a line is a row's steps
  kSteps,  // a line is a step's rows: channels-last
  kRun     // one line: whole rows, one behind the other
};

// [batch, channels, length] of any type and strides.
struct GpuSequence {
  unsigned char* data = nullptr;             // null: absent
  int64_t batch = 0, channel = 0, step = 0;  // strides in bytes
  int64_t group = 0;  // from a group's first channel to the next group's; 0: all have the same
  DType dtype = DType::kFloat32;
  int element = 4;  // bytes
  GpuLines lines = GpuLines::kRows;
  int granule = 0;     // bytes of one copy; 0: element by element
  int line_shift = 0;  // log2 of the granules (or elements) of a whole line
  // In shared memory element (row, t) is at row * row_pitch + t * step_pitch + t / kGpuItems * pad.
  int row_pitch = 0, step_pitch = 0, pad = 0;
  bool packed = false;   // four neighbouring steps are one aligned access there
  bool plain = false;    // whole tiles come in 16-byte copies, a warp's line in 32 at most
  bool vectors = false;  // outputs: four neighbouring steps are one aligned access in memory
  int unit = 1;          // neighbouring steps that are one aligned access at every multiple of them
  int64_t shared = 0;    // offset in the block's shared memory, and bytes of a warp's tile
  int stage = 0;
};

// B or C: [batch, groups, states, length], or [channels, states] if constant.
struct GpuFactor {
  const unsigned char* data = nullptr;
  int64_t batch = 0, group = 0, state = 0, step = 0;  // strides in bytes; constant: group = channel
  DType dtype = DType::kFloat32;
  int element = 4;
  bool constant = false;
  bool vectors = false;  // 16 aligned bytes of neighbouring steps at every tile's start
  int unit = 1;          // as above
};

// A gradient of B or C, or the partial sums that become one.
struct GpuFactorGradient {
  unsigned char* data = nullptr;                                // null: not wanted
  int64_t batch = 0, group = 0, state = 0, step = 0, part = 0;  // strides in bytes
  DType dtype = DType::kFloat32;
  bool vectors = false;  // four neighbouring steps are one aligned access
};

inline constexpr int kGpuInputs = 4;
struct SelectiveScanGpuArguments {
  GpuSequence inputs[kGpuInputs];   // u, delta, z, gradient of out
  GpuSequence out, gu, gdelta, gz;  // what is written
  GpuFactor factors[2];             // B, C
  GpuFactorGradient sums[2];        // varying B, C
  const int* order;                 // [groups, length] or null
  const float* A;                   // [channels, states]
  float* rates;                     // [states, channels]: the same, turned round; or null
  const float* D;                   // [channels] or null
  const float* delta_bias;          // [channels] or null
  const float* initial_state;       // [batch, channels, states] or null
  float* last_state;                // likewise; its gradient in the backward pass
  float* initial_gradient;          // likewise
  float* tile_states;               // [tiles - 1, state_items, states, channels] or null
  float* carries;           // [slice, states, channels, carry_floats]; null: in shared memory
  float* A_sums;            // [batch, channels, states] or null
  float* D_sums;            // [batch, channels] or null
  float* bias_sums;         // [batch, channels] or null
  float* constant_sums[2];  // [batch, channels, states] or null
  int64_t length;
  int batch, channels, groups, group_channels, states;
  int first_batch, slice;                // items of the batch that this launch works through
  int state_items;                       // from whose first one tile_states starts
  int blocks, tiles;                     // of a (batch, group); of a row
  int rows;                              // of a block
  int warps, shares, teams, state_tile;  // teams: warps / shares
  int places;                            // for tiles in shared memory
  int whole_rows;                        // that a warp brings at once
  int exchange;                          // floats of a warp's
  int state_steps;                       // from a state in tile_states to the next one
  bool softplus;
  bool runs,
      wide;  // one state, forward: whole rows move as runs of memory; all sequences by 16 bytes
  SelectiveScanShared shared;
};

// `gradients`: of the backward pass, or null. `states_only`: for its first kernel. first_batch is 0.
SelectiveScanGpuArguments gpu_arguments(const SelectiveScanProblem& problem,
                                        const SelectiveScanGradients* gradients,
                                        const SelectiveScanGpuPlan& plan, bool states_only,
                                        std::byte* workspace);

}  // namespace linescan
