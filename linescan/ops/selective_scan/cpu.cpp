// Selective scan on the CPU, forward and backward.
//
//   A task scans one block of up to 64 channels of one batch item through all its length, in tiles
//   of time. A tile is first brought into scratch as accumulators [steps, 64], whatever the
//   tensor's type and strides; there vectors run across channels (ops/scan_core.h).
//   Backward: a first walk keeps the states at every tile's start, a second one goes from the last
//   tile to the first and recomputes the states inside each. Exponentials: N an element forward,
//   2 N backward (N if the length fits into one tile).
//
// Numerics:  state and sums in float32 (float64 for float64 data). Every sum has a fixed order that
//            depends on the sizes alone: not on threads.
// Reference: reference.cpp; the bound in sample.h.
// Chosen by: the only CPU variant.

#include <cstring>

#include "linescan/device/simd_targets.h"
#include "linescan/ops/selective_scan/selective_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linescan/ops/selective_scan/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h: compiled once a target.
#include <hwy/highway.h>

#include "linescan/ops/scan_core.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {
namespace {  // the operators share names; without this the linker would merge their templates

// One block of channels of one batch item: where it lies in the tensors of the problem.
struct Block {
  int64_t b, group, channel, channels, width;
};

template <typename T>
HWY_INLINE Block BlockAt(const SelectiveScanSize& size, int64_t b, int64_t group, int64_t block) {
  const int64_t lanes = LanesOf<T>();
  const int64_t group_channels = size.channels / size.groups;
  const int64_t first = block * kChannelBlock;
  const int64_t channels = HWY_MIN(kChannelBlock, group_channels - first);
  return {b, group, group * group_channels + first, channels, round_up(channels, lanes)};
}

HWY_INLINE Window SequenceWindow(const TensorView& tensor, const Block& block, int64_t t) {
  const Shape& s = tensor.strides;
  return WindowAt(tensor, block.b * s[0] + block.channel * s[1] + t * s[2], s[2], s[1]);
}

// [batch, channels, states] and [channels, states] parameters as [states, channels of the block].
HWY_INLINE Window StateWindow(const TensorView& tensor, const Block& block) {
  const Shape& s = tensor.strides;
  if (tensor.shape.rank() == 2) return WindowAt(tensor, block.channel * s[0], s[1], s[0]);
  return WindowAt(tensor, block.b * s[0] + block.channel * s[1], s[2], s[1]);
}

HWY_INLINE Window ChannelWindow(const TensorView& tensor, const Block& block) {
  return WindowAt(tensor, block.channel * tensor.strides[0], 0, tensor.strides[0]);
}

// The inputs of a block, brought into scratch tile by tile.
template <typename T>
struct Inputs {
  const SelectiveScanProblem& p;
  const SelectiveScanSize& size;
  Block block{};
  T *dt, *u, *z;             // [time_tile, block]
  T *A, *fixed_B, *fixed_C;  // [states, block]
  T *B, *C;                  // [states, time_tile]
  T *D, *bias;               // [block]
  int64_t time_tile;

  Inputs(const SelectiveScanProblem& p, const SelectiveScanSize& size,
         const SelectiveScanPlan& plan, Arena& arena)
      : p(p), size(size), time_tile(plan.time_tile) {
    const int64_t tile = time_tile * kChannelBlock, per_state = size.states * kChannelBlock;
    dt = arena.take<T>(tile);
    u = arena.take<T>(tile);
    z = arena.take<T>(tile);
    A = arena.take<T>(per_state);
    fixed_B = arena.take<T>(per_state);
    fixed_C = arena.take<T>(per_state);
    B = arena.take<T>(size.states * time_tile);
    C = arena.take<T>(size.states * time_tile);
    D = arena.take<T>(kChannelBlock);
    bias = arena.take<T>(kChannelBlock);
  }

  void LoadParameters(const Block& which) {
    block = which;
    const auto by_state = [&](const TensorView& tensor, T* to) HWY_ATTR {
      LoadTile(StateWindow(tensor, block), size.states, block.channels, block.width, to,
               kChannelBlock);
    };
    const auto by_channel = [&](const TensorView& tensor, T* to) HWY_ATTR {
      Fill(to, block.width, T(0));
      if (tensor) LoadTile(ChannelWindow(tensor, block), 1, block.channels, block.width, to, 0);
    };
    by_state(p.A, A);
    if (size.constant_B) by_state(p.B, fixed_B);
    if (size.constant_C) by_state(p.C, fixed_C);
    by_channel(p.D, D);
    by_channel(p.delta_bias, bias);
  }

  // Steps first .. first + steps - 1. dt becomes the step size; `slope`, if wanted, d dt / d delta.
  ScanTile<T> LoadSteps(int64_t first, int64_t steps, T* slope = nullptr) {
    const int64_t next = first + steps, ahead = HWY_MIN(time_tile, size.length - next);
    const auto load = [&](const TensorView& tensor, T* to) HWY_ATTR {
      LoadTile(SequenceWindow(tensor, block, first), steps, block.channels, block.width, to,
               kChannelBlock);
      if (ahead > 0) PrefetchWindow(SequenceWindow(tensor, block, next), ahead, block.channels);
    };
    load(p.delta, dt);
    load(p.u, u);
    if (p.z) load(p.z, z);
    const hn::ScalableTag<T> d;
    const int64_t lanes = LanesOf<T>();
    if (p.delta_bias || p.delta_softplus) {
      for (int64_t t = 0; t < steps; ++t)
        for (int64_t c = 0; c < block.width; c += lanes) {
          T* at = dt + t * kChannelBlock + c;
          const auto x = hn::Add(hn::Load(d, at), hn::Load(d, bias + c));
          hn::Store(p.delta_softplus ? Softplus(d, x) : x, d, at);
          if (slope && p.delta_softplus)
            hn::Store(SoftplusSlope(d, x), d, slope + t * kChannelBlock + c);
        }
    }
    return {steps,
            size.states,
            block.width,
            dt,
            u,
            A,
            LoadFactorTile(p.B, size.constant_B, fixed_B, B, first, steps),
            LoadFactorTile(p.C, size.constant_C, fixed_C, C, first, steps)};
  }

 private:
  Factor<const T> LoadFactorTile(const TensorView& tensor, bool constant, const T* fixed, T* to,
                                 int64_t first, int64_t steps) {
    if (constant) return {fixed, kChannelBlock, 0, true};
    const Shape& s = tensor.strides;
    // As [states, steps]: a tile whose "channels" are the steps, so that length-contiguous factors
    // load in whole vectors.
    const int64_t lanes = LanesOf<T>();
    const Window window =
        WindowAt(tensor, block.b * s[0] + block.group * s[1] + first * s[3], s[2], s[3]);
    LoadTile(window, size.states, steps, HWY_MIN(round_up(steps, lanes), time_tile), to, time_tile);
    return {to, time_tile, 1, false};
  }
};

template <typename T>
HWY_INLINE void LoadInitialState(const SelectiveScanProblem& p, const Inputs<T>& in, T* h) {
  if (p.initial_state)
    LoadTile(StateWindow(p.initial_state, in.block), in.size.states, in.block.channels,
             in.block.width, h, kChannelBlock);
  else
    Fill(h, in.size.states * kChannelBlock, T(0));
}

template <typename T>
void ForwardTask(const SelectiveScanProblem& p, const SelectiveScanSize& size,
                 const SelectiveScanPlan& plan, std::byte* scratch, int64_t task) {
  Arena arena(scratch, plan.scratch_bytes);
  Inputs<T> in(p, size, plan, arena);
  T* y = arena.take<T>(plan.time_tile * kChannelBlock);
  T* h = arena.take<T>(size.states * kChannelBlock);
  const int64_t row = task / plan.blocks;
  in.LoadParameters(BlockAt<T>(size, row / size.groups, row % size.groups, task % plan.blocks));
  LoadInitialState(p, in, h);

  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  for (int64_t first = 0; first < size.length; first += plan.time_tile) {
    const int64_t steps = HWY_MIN(plan.time_tile, size.length - first);
    const ScanTile<T> tile = in.LoadSteps(first, steps);
    PrefetchWindow(SequenceWindow(p.out, in.block, first), steps, in.block.channels);
    StartOutput(tile, in.D, y);
    ScanForward<true>(tile, h, y);
    if (p.z)
      for (int64_t t = 0; t < steps; ++t)
        for (int64_t c = 0; c < tile.width; c += lanes) {
          const int64_t at = t * kChannelBlock + c;
          const auto z = hn::Load(d, in.z + at);
          hn::Store(hn::Mul(hn::Load(d, y + at), hn::Mul(z, Sigmoid(d, z))), d, y + at);
        }
    StoreTile(y, kChannelBlock, steps, in.block.channels, SequenceWindow(p.out, in.block, first));
  }
  StoreTile(h, kChannelBlock, size.states, in.block.channels, StateWindow(p.last_state, in.block));
}

// Sums that several tasks contribute to, each to parts of its own, added up by Finish.
template <typename T>
struct PartialSums {
  T *B, *C;                  // [batch, groups, partitions, states, length]
  T *A, *fixed_B, *fixed_C;  // [batch_chunks, channels, states]
  T *D, *bias;               // [batch_chunks, channels]

  PartialSums(const SelectiveScanSize& size, const SelectiveScanPlan& plan, std::byte* workspace) {
    const int64_t slots = plan.slots * plan.scratch_bytes;
    Arena arena(workspace + slots, plan.workspace_bytes - slots);
    const int64_t factors = size.batch * size.groups * plan.partitions * size.states * size.length;
    const int64_t channels = plan.batch_chunks * size.channels;
    B = arena.take<T>(factors);
    C = arena.take<T>(factors);
    A = arena.take<T>(channels * size.states);
    fixed_B = arena.take<T>(channels * size.states);
    fixed_C = arena.take<T>(channels * size.states);
    D = arena.take<T>(channels);
    bias = arena.take<T>(channels);
  }
};

template <typename T>
void BackwardTask(const SelectiveScanProblem& p, const SelectiveScanGradients& g,
                  const SelectiveScanSize& size, const SelectiveScanPlan& plan,
                  const PartialSums<T>& partial, std::byte* scratch, int64_t task) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  Arena arena(scratch, plan.scratch_bytes);
  Inputs<T> in(p, size, plan, arena);
  const int64_t tile_size = plan.time_tile * kChannelBlock, per_state = size.states * kChannelBlock;
  const StepGradients<T> step(plan.time_tile, arena);
  T* y = arena.take<T>(tile_size);
  T* gz = arena.take<T>(tile_size);
  T* h = arena.take<T>(per_state);
  T* carry = arena.take<T>(per_state);
  T* sum_A = arena.take<T>(per_state);
  T* sum_B = arena.take<T>(per_state);
  T* sum_C = arena.take<T>(per_state);
  T* sum_D = arena.take<T>(kChannelBlock);
  T* sum_bias = arena.take<T>(kChannelBlock);
  const int64_t tiles = ceil_div(size.length, plan.time_tile);
  T* starts = arena.take<T>(tiles * per_state);

  const int64_t partition = task % plan.partitions, group = task / plan.partitions % size.groups;
  const int64_t chunk = task / (plan.partitions * size.groups);
  const Range items = part_of(size.batch, plan.batch_chunks, chunk);
  const Range blocks = part_of(plan.blocks, plan.partitions, partition);
  const int64_t factor_size = size.states * size.length;
  const auto factor_at = [&](T* array, int64_t b) {
    return array + ((b * size.groups + group) * plan.partitions + partition) * factor_size;
  };
  for (int64_t b = items.begin; b < items.end; ++b)
    for (T* array : {factor_at(partial.B, b), factor_at(partial.C, b)})
      for (int64_t i = 0; i < factor_size; ++i) array[i] = 0;

  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    for (T* array : {sum_A, sum_B, sum_C}) Fill(array, per_state, T(0));
    Fill(sum_D, kChannelBlock, T(0));
    Fill(sum_bias, kChannelBlock, T(0));
    for (int64_t b = items.begin; b < items.end; ++b) {
      in.LoadParameters(BlockAt<T>(size, b, group, block));
      const int64_t width = in.block.width;

      LoadInitialState(p, in, h);
      for (int64_t i = 0; i < tiles; ++i) {
        std::memcpy(starts + i * per_state, h, per_state * sizeof(T));
        if (i + 1 == tiles) break;
        ScanForward<false>(in.LoadSteps(i * plan.time_tile, plan.time_tile), h,
                           static_cast<T*>(nullptr));
      }

      Fill(carry, per_state, T(0));
      if (g.last_state)
        LoadTile(StateWindow(g.last_state, in.block), size.states, in.block.channels, width, carry,
                 kChannelBlock);
      for (int64_t i = tiles - 1; i >= 0; --i) {
        const int64_t first = i * plan.time_tile;
        const int64_t steps = HWY_MIN(plan.time_tile, size.length - first);
        const ScanTile<T> tile = in.LoadSteps(first, steps, step.slope);
        Fill(step.gy, steps * kChannelBlock, T(0));
        if (g.out)
          LoadTile(SequenceWindow(g.out, in.block, first), steps, in.block.channels, width, step.gy,
                   kChannelBlock);
        if (p.z) {  // gz keeps the part without y; gy becomes the gradient before the gate
          StartOutput(tile, in.D, y);
          for (int64_t t = 0; t < steps; ++t)
            for (int64_t c = 0; c < width; c += lanes) {
              const int64_t at = t * kChannelBlock + c;
              const auto z = hn::Load(d, in.z + at), gout = hn::Load(d, step.gy + at);
              const auto s = Sigmoid(d, z);
              const auto silu_slope = hn::MulAdd(hn::Mul(z, s), hn::Sub(hn::Set(d, T(1)), s), s);
              hn::Store(hn::Mul(gout, silu_slope), d, gz + at);
              hn::Store(hn::Mul(gout, hn::Mul(z, s)), d, step.gy + at);
            }
        }
        const auto factor_sum = [&](bool constant, T* fixed, T* array) -> Factor<T> {
          if (constant) return {fixed, kChannelBlock, 0, true};
          return {factor_at(array, b) + first, size.length, 1, false};
        };
        ScanBackward(tile, step,
                     {.start = starts + i * per_state,
                      .carry = carry,
                      .y = p.z ? y : nullptr,
                      .A = sum_A,
                      .B = factor_sum(size.constant_B, sum_B, partial.B),
                      .C = factor_sum(size.constant_C, sum_C, partial.C)});
        step.Finish(tile, in.D, p.delta_softplus, sum_D, sum_bias);
        if (p.z)
          for (int64_t t = 0; t < steps; ++t)
            for (int64_t c = 0; c < width; c += lanes) {
              const int64_t at = t * kChannelBlock + c;
              hn::Store(hn::Mul(hn::Load(d, gz + at), hn::Load(d, y + at)), d, gz + at);
            }
        const auto store = [&](const T* from, const TensorView& to) HWY_ATTR {
          if (to)
            StoreTile(from, kChannelBlock, steps, in.block.channels,
                      SequenceWindow(to, in.block, first));
        };
        store(step.input, g.u);
        store(step.exponent, g.delta);
        if (p.z) store(gz, g.z);
      }
      if (g.initial_state)
        StoreTile(carry, kChannelBlock, size.states, in.block.channels,
                  StateWindow(g.initial_state, in.block));
    }
    const Block here = BlockAt<T>(size, 0, group, block);
    const int64_t channel = chunk * size.channels + here.channel;
    for (int64_t c = 0; c < here.channels; ++c) {
      partial.D[channel + c] = sum_D[c];
      partial.bias[channel + c] = sum_bias[c];
      for (int64_t n = 0; n < size.states; ++n) {
        const int64_t to = (channel + c) * size.states + n, from = n * kChannelBlock + c;
        partial.A[to] = sum_A[from];
        partial.fixed_B[to] = sum_B[from];
        partial.fixed_C[to] = sum_C[from];
      }
    }
  }
}

// Adds up the parts and stores the sums: rows (batch, group) of B and C, then the parameters.
template <typename T>
void FinishRow(const SelectiveScanGradients& g, const SelectiveScanSize& size,
               const SelectiveScanPlan& plan, const PartialSums<T>& partial, int64_t row) {
  const int64_t factor_size = size.states * size.length;
  const int64_t b = row / size.groups, group = row % size.groups;
  const auto store = [&](const TensorView& tensor, bool constant, const T* sums) {
    if (!tensor || constant) return;
    const Shape& s = tensor.strides;
    for (int64_t n = 0; n < size.states; ++n)
      StoreSum(sums + row * plan.partitions * factor_size + n * size.length, plan.partitions,
               factor_size, size.length,
               WindowAt(tensor, b * s[0] + group * s[1] + n * s[2], 0, s[3]));
  };
  store(g.B, size.constant_B, partial.B);
  store(g.C, size.constant_C, partial.C);
}

template <typename T>
void FinishParameters(const SelectiveScanGradients& g, const SelectiveScanSize& size,
                      const SelectiveScanPlan& plan, const PartialSums<T>& partial) {
  const auto store = [&](const TensorView& tensor, const T* sums, int64_t count) {
    if (tensor) StoreSum(sums, plan.batch_chunks, count, count, WindowAt(tensor, 0, 0, 1));
  };
  const int64_t per_state = size.channels * size.states;
  store(g.A, partial.A, per_state);
  if (size.constant_B) store(g.B, partial.fixed_B, per_state);
  if (size.constant_C) store(g.C, partial.fixed_C, per_state);
  store(g.D, partial.D, size.channels);
  store(g.delta_bias, partial.bias, size.channels);
}

template <typename T>
void ForwardSlot(const SelectiveScanProblem& p, const SelectiveScanSize& size,
                 const SelectiveScanPlan& plan, std::byte* workspace, int64_t slot) {
  const Range tasks = part_of(plan.tasks, plan.slots, slot);
  for (int64_t task = tasks.begin; task < tasks.end; ++task)
    ForwardTask<T>(p, size, plan, workspace + slot * plan.scratch_bytes, task);
}

template <typename T>
void BackwardSlot(const SelectiveScanProblem& p, const SelectiveScanGradients& g,
                  const SelectiveScanSize& size, const SelectiveScanPlan& plan,
                  std::byte* workspace, int64_t slot) {
  const PartialSums<T> partial(size, plan, workspace);
  const Range tasks = part_of(plan.tasks, plan.slots, slot);
  for (int64_t task = tasks.begin; task < tasks.end; ++task)
    BackwardTask<T>(p, g, size, plan, partial, workspace + slot * plan.scratch_bytes, task);
}

template <typename T>
void FinishAll(const SelectiveScanGradients& g, const SelectiveScanSize& size,
               const SelectiveScanPlan& plan, std::byte* workspace, int64_t begin, int64_t end) {
  const PartialSums<T> partial(size, plan, workspace);
  for (int64_t row = begin; row < end; ++row)
    if (row < size.batch * size.groups)
      FinishRow(g, size, plan, partial, row);
    else
      FinishParameters(g, size, plan, partial);
}

// What the dispatch table holds: the accumulator's type becomes compile-time here.
void Forward(const SelectiveScanProblem& p, const SelectiveScanSize& size,
             const SelectiveScanPlan& plan, std::byte* workspace, int64_t slot) {
  accumulator_of(size.dtype) == DType::kFloat64
      ? ForwardSlot<double>(p, size, plan, workspace, slot)
      : ForwardSlot<float>(p, size, plan, workspace, slot);
}

void Backward(const SelectiveScanProblem& p, const SelectiveScanGradients& g,
              const SelectiveScanSize& size, const SelectiveScanPlan& plan, std::byte* workspace,
              int64_t slot) {
  accumulator_of(size.dtype) == DType::kFloat64
      ? BackwardSlot<double>(p, g, size, plan, workspace, slot)
      : BackwardSlot<float>(p, g, size, plan, workspace, slot);
}

void Finish(const SelectiveScanGradients& g, const SelectiveScanSize& size,
            const SelectiveScanPlan& plan, std::byte* workspace, int64_t begin, int64_t end) {
  accumulator_of(size.dtype) == DType::kFloat64
      ? FinishAll<double>(g, size, plan, workspace, begin, end)
      : FinishAll<float>(g, size, plan, workspace, begin, end);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace linescan
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "linescan/device/simd_target.h"
#include "linescan/ops/parallel.h"

namespace linescan {
namespace {

HWY_EXPORT(Forward);
HWY_EXPORT(Backward);
HWY_EXPORT(Finish);

}  // namespace

void forward(const SelectiveScanProblem& p, const SelectiveScanPlan& plan, std::byte* workspace,
             const ParallelFor& parallel_for) {
  ensure_simd_target();
  const SelectiveScanSize size = size_of(p);
  if (plan.tasks == 0) return;
  parallel_each(parallel_for, plan.slots, [&](int64_t slot) {
    HWY_DYNAMIC_DISPATCH(Forward)(p, size, plan, workspace, slot);
  });
}

void backward(const SelectiveScanProblem& p, const SelectiveScanGradients& g,
              const SelectiveScanPlan& plan, std::byte* workspace,
              const ParallelFor& parallel_for) {
  ensure_simd_target();
  const SelectiveScanSize size = size_of(p);
  parallel_each(parallel_for, plan.slots, [&](int64_t slot) {
    HWY_DYNAMIC_DISPATCH(Backward)(p, g, size, plan, workspace, slot);
  });
  // The last index stands for the parameters.
  parallel_for(size.batch * size.groups + 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(Finish)(g, size, plan, workspace, begin, end);
  });
}

}  // namespace linescan
#endif  // HWY_ONCE
