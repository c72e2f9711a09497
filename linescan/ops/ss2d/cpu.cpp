// ss2d on the CPU, forward and backward.
//
//   A task owns one block of up to 64 channels of one batch item and walks its plane once a route;
//   the routes' results meet in one float32 plane in scratch, so nothing is permuted or copied. x
//   and the records (dts, B, C) are read where they lie, in the route's order; delta = dt_weight dts
//   is formed tile by tile and never stored, in the backward pass neither. Only planes whose
//   channels are not adjacent are first turned round in scratch, once for all routes.
//
// Numerics:  delta, state and sums in float32 (float64 for float64 data); routes are added in their
//            order. Every sum has a fixed order that depends on the sizes alone: not on threads.
// Reference: reference.cpp; the bound in sample.h.
// Chosen by: the only CPU variant.

#include <cstring>

#include "linescan/device/simd_targets.h"
#include "linescan/ops/ss2d/route.h"
#include "linescan/ops/ss2d/ss2d.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linescan/ops/ss2d/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h: compiled once a target.
#include <hwy/highway.h>

#include "linescan/ops/scan_core.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {
namespace {  // the operators share names; without this the linker would merge their templates

// One block of channels: the first one, how many, and their number rounded up to whole vectors.
struct ChannelBlock {
  int64_t first, channels, width;
};

template <typename T>
HWY_INLINE ChannelBlock BlockAt(const Ss2dSize& size, int64_t block) {
  const int64_t lanes = LanesOf<T>();
  const int64_t first = block * kChannelBlock;
  const int64_t channels = HWY_MIN(kChannelBlock, size.channels - first);
  return {first, channels, round_up(channels, lanes)};
}

// A block of channels of one image, read or written in the order of any route.
struct Plane {
  Window all;  // "steps" are pixels

  // `count` pixels from `pixel` on, `step` apart.
  Window Piece(int64_t pixel, int64_t step) const {
    return {static_cast<char*>(all.data) +
                pixel * all.step_stride * static_cast<int64_t>(size_of(all.dtype)),
            all.dtype, all.step_stride * step, all.channel_stride};
  }
};

HWY_INLINE Plane PlaneOf(const TensorView& tensor, int64_t b, const ChannelBlock& block) {
  const Shape& s = tensor.strides;
  return {WindowAt(tensor, b * s[0] + block.first * s[1], s[3], s[1])};
}

// The plane itself, or its copy in scratch [pixels, kChannelBlock].
template <typename T>
HWY_INLINE Plane Staged(const Plane& plane, int64_t pixels, const ChannelBlock& block, T* copy) {
  if (copy == nullptr) return plane;
  LoadTile(plane.all, pixels, block.channels, block.width, copy, kChannelBlock);
  const DType dtype = sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32;
  return {{copy, dtype, kChannelBlock, 1}};
}

template <typename T>
HWY_INLINE void LoadPieces(const Plane& plane, const Route& route, int64_t sequence, int64_t first,
                           int64_t steps, const ChannelBlock& block, T* tile) {
  route.for_pieces(sequence, first, steps,
                   [&](int64_t pixel, int64_t step, int64_t count, int64_t offset) HWY_ATTR {
                     LoadTile(plane.Piece(pixel, step), count, block.channels, block.width,
                              tile + offset * kChannelBlock, kChannelBlock);
                   });
}

// plane[pixels of the tile] += tile.
template <typename T>
HWY_INLINE void AddPieces(const T* HWY_RESTRICT tile, const Route& route, int64_t sequence,
                          int64_t first, int64_t steps, int64_t width, T* HWY_RESTRICT plane) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  route.for_pieces(sequence, first, steps,
                   [&](int64_t pixel, int64_t step, int64_t count, int64_t offset) HWY_ATTR {
                     for (int64_t i = 0; i < count; ++i) {
                       const T* from = tile + (offset + i) * kChannelBlock;
                       T* to = plane + (pixel + i * step) * kChannelBlock;
                       for (int64_t c = 0; c < width; c += lanes)
                         hn::Store(hn::Add(hn::Load(d, to + c), hn::Load(d, from + c)), d, to + c);
                     }
                   });
}

// The inputs of one block and route, brought into scratch tile by tile.
template <typename T>
struct Inputs {
  const Ss2dProblem& p;
  const Ss2dSize& size;
  int64_t record_stride;
  ChannelBlock block{};
  int64_t k = 0;
  T *dt, *x;       // [time_tile, block]
  T* records;      // [time_tile, record_stride] dts, B, C
  T* A;            // [states, block] -exp(A_log)
  T* dt_weight;    // [rank, block]
  T *D, *dt_bias;  // [block]

  Inputs(const Ss2dProblem& p, const Ss2dSize& size, const Ss2dPlan& plan, Arena& arena)
      : p(p), size(size), record_stride(round_up(size.record(), kRecordAlignment)) {
    dt = arena.take<T>(plan.time_tile * kChannelBlock);
    x = arena.take<T>(plan.time_tile * kChannelBlock);
    records = arena.take<T>(plan.time_tile * record_stride);
    A = arena.take<T>(size.states * kChannelBlock);
    dt_weight = arena.take<T>(size.rank * kChannelBlock);
    D = arena.take<T>(kChannelBlock);
    dt_bias = arena.take<T>(kChannelBlock);
  }

  void LoadParameters(const ChannelBlock& which, int64_t route) {
    block = which;
    k = route;
    const int64_t row = k * size.channels + block.first;
    const auto load = [&](const TensorView& tensor, int64_t count, T* to) HWY_ATTR {
      // A row of `count` numbers a channel becomes [count, channels].
      LoadTile(WindowAt(tensor, row * count, 1, count), count, block.channels, block.width, to,
               kChannelBlock);
    };
    load(p.A_log, size.states, A);
    load(p.dt_weight, size.rank, dt_weight);
    load(p.D, 1, D);
    load(p.dt_bias, 1, dt_bias);
    const hn::ScalableTag<T> d;
    for (int64_t n = 0; n < size.states; ++n)
      for (int64_t c = 0; c < block.width; c += LanesOf<T>()) {
        T* at = A + n * kChannelBlock + c;
        hn::Store(hn::Neg(Exponential(d, hn::Load(d, at))), d, at);
      }
  }

  // Steps first .. first + steps - 1 of a sequence of the route. `slope`, if wanted, becomes
  // d dt / d delta.
  ScanTile<T> LoadSteps(const Plane& plane, int64_t b, const Route& route, int64_t sequence,
                        int64_t first, int64_t steps, T* slope = nullptr) {
    LoadPieces(plane, route, sequence, first, steps, block, x);
    const int64_t pixel_stride = size.routes * size.record();
    const int64_t base = b * size.pixels() * pixel_stride + k * size.record();
    route.for_pieces(
        sequence, first, steps,
        [&](int64_t pixel, int64_t step, int64_t count, int64_t offset) HWY_ATTR {
          LoadTile(WindowAt(p.projection, base + pixel * pixel_stride, step * pixel_stride, 1),
                   count, size.record(), record_stride, records + offset * record_stride,
                   record_stride);
        });
    FormDelta(steps, slope);
    const T* B = records + size.rank;
    return {steps,
            size.states,
            block.width,
            dt,
            x,
            A,
            {B, 1, record_stride, false},
            {B + size.states, 1, record_stride, false}};
  }

 private:
  // dt = softplus(dt_weight dts + bias), four steps at a time so that a weight is loaded once.
  HWY_NOINLINE void FormDelta(int64_t steps, T* HWY_RESTRICT slope) {
    const hn::ScalableTag<T> d;
    const int64_t lanes = LanesOf<T>();
    const auto finish = [&](auto sum, int64_t t, int64_t c) HWY_ATTR {
      hn::Store(Softplus(d, sum), d, dt + t * kChannelBlock + c);
      if (slope) hn::Store(SoftplusSlope(d, sum), d, slope + t * kChannelBlock + c);
    };
    for (int64_t c = 0; c < block.width; c += lanes) {
      const auto bias = hn::Load(d, dt_bias + c);
      int64_t t = 0;
      for (; t + 4 <= steps; t += 4) {
        const T* row = records + t * record_stride;
        auto s0 = bias, s1 = bias, s2 = bias, s3 = bias;
        for (int64_t r = 0; r < size.rank; ++r) {
          const auto weight = hn::Load(d, dt_weight + r * kChannelBlock + c);
          s0 = hn::MulAdd(hn::Set(d, row[r]), weight, s0);
          s1 = hn::MulAdd(hn::Set(d, row[record_stride + r]), weight, s1);
          s2 = hn::MulAdd(hn::Set(d, row[2 * record_stride + r]), weight, s2);
          s3 = hn::MulAdd(hn::Set(d, row[3 * record_stride + r]), weight, s3);
        }
        finish(s0, t, c);
        finish(s1, t + 1, c);
        finish(s2, t + 2, c);
        finish(s3, t + 3, c);
      }
      for (; t < steps; ++t) {
        auto sum = bias;
        for (int64_t r = 0; r < size.rank; ++r)
          sum = hn::MulAdd(hn::Set(d, records[t * record_stride + r]),
                           hn::Load(d, dt_weight + r * kChannelBlock + c), sum);
        finish(sum, t, c);
      }
    }
  }
};

template <typename T>
void ForwardTask(const Ss2dProblem& p, const Ss2dSize& size, const Ss2dPlan& plan,
                 std::byte* scratch, int64_t task) {
  Arena arena(scratch, plan.scratch_bytes);
  Inputs<T> in(p, size, plan, arena);
  T* h = arena.take<T>(size.states * kChannelBlock);
  T* y = arena.take<T>(plan.time_tile * kChannelBlock);
  const int64_t pixels = size.pixels();
  T* sum = arena.take<T>(pixels * kChannelBlock);
  T* copy = plan.stage_planes ? arena.take<T>(pixels * kChannelBlock) : nullptr;
  const int64_t b = task / plan.blocks;
  const ChannelBlock block = BlockAt<T>(size, task % plan.blocks);
  const Plane plane = Staged(PlaneOf(p.x, b, block), pixels, block, copy);
  Fill(sum, pixels * kChannelBlock, T(0));
  for (int64_t k = 0; k < size.routes; ++k) {
    const Route route(p.routes[k], size.height, size.width);
    in.LoadParameters(block, k);
    for (int64_t sequence = 0; sequence < route.sequences(); ++sequence) {
      Fill(h, size.states * kChannelBlock, T(0));
      for (int64_t first = 0; first < route.sequence_length(); first += plan.time_tile) {
        const int64_t steps = HWY_MIN(plan.time_tile, route.sequence_length() - first);
        const ScanTile<T> tile = in.LoadSteps(plane, b, route, sequence, first, steps);
        StartOutput(tile, in.D, y);
        ScanForward<true>(tile, h, y);
        AddPieces(y, route, sequence, first, steps, block.width, sum);
      }
    }
  }
  StoreTile(sum, kChannelBlock, pixels, block.channels, PlaneOf(p.out, b, block).all);
}

// Sums that several tasks contribute to, each to parts of its own, added up by Finish.
template <typename T>
struct PartialSums {
  T* projection;                   // [partitions, batch, pixels, routes, record]
  T *dt_weight, *dt_bias, *A, *D;  // [batch_chunks, routes, channels, rank | 1 | states | 1]

  PartialSums(const Ss2dSize& size, const Ss2dPlan& plan, std::byte* workspace) {
    const int64_t slots = plan.slots * plan.scratch_bytes;
    Arena arena(workspace + slots, plan.workspace_bytes - slots);
    projection =
        arena.take<T>(plan.partitions * size.batch * size.pixels() * size.routes * size.record());
    const int64_t rows = plan.batch_chunks * size.routes * size.channels;
    dt_weight = arena.take<T>(rows * size.rank);
    dt_bias = arena.take<T>(rows);
    A = arena.take<T>(rows * size.states);
    D = arena.take<T>(rows);
  }
};

// From the gradient of delta: += those of dts (into the tile of record gradients) and of dt_weight.
template <typename T>
HWY_NOINLINE void FinishDelta(const Inputs<T>& in, int64_t steps, const T* HWY_RESTRICT gdelta,
                              T* HWY_RESTRICT grecords, T* HWY_RESTRICT sum_weight) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>(), stride = in.record_stride;
  const int64_t rank = in.size.rank, width = in.block.width;
  for (int64_t r = 0; r < rank; ++r)
    for (int64_t c = 0; c < width; c += lanes) {
      T* at = sum_weight + r * kChannelBlock + c;
      auto even = hn::Load(d, at), odd = hn::Zero(d);  // two chains hide the latency
      int64_t t = 0;
      for (; t + 2 <= steps; t += 2) {
        even = hn::MulAdd(hn::Set(d, in.records[t * stride + r]),
                          hn::Load(d, gdelta + t * kChannelBlock + c), even);
        odd = hn::MulAdd(hn::Set(d, in.records[(t + 1) * stride + r]),
                         hn::Load(d, gdelta + (t + 1) * kChannelBlock + c), odd);
      }
      if (t < steps)
        even = hn::MulAdd(hn::Set(d, in.records[t * stride + r]),
                          hn::Load(d, gdelta + t * kChannelBlock + c), even);
      hn::Store(hn::Add(even, odd), d, at);
    }
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t r = 0; r < rank; ++r) {
      auto sum = hn::Zero(d);
      for (int64_t c = 0; c < width; c += lanes)
        sum = hn::MulAdd(hn::Load(d, gdelta + t * kChannelBlock + c),
                         hn::Load(d, in.dt_weight + r * kChannelBlock + c), sum);
      grecords[t * stride + r] += hn::GetLane(hn::SumOfLanes(d, sum));
    }
}

template <typename T>
void BackwardTask(const Ss2dProblem& p, const Ss2dGradients& g, const Ss2dSize& size,
                  const Ss2dPlan& plan, const PartialSums<T>& partial, std::byte* scratch,
                  int64_t task) {
  Arena arena(scratch, plan.scratch_bytes);
  Inputs<T> in(p, size, plan, arena);
  const StepGradients<T> step(plan.time_tile, arena);
  const int64_t per_state = size.states * kChannelBlock, pixels = size.pixels();
  T* grecords = arena.take<T>(plan.time_tile * in.record_stride);
  T* h = arena.take<T>(per_state);
  T* carry = arena.take<T>(per_state);
  T* sum_A = arena.take<T>(per_state);
  T* sum_weight = arena.take<T>(size.rank * kChannelBlock);
  T* sum_D = arena.take<T>(kChannelBlock);
  T* sum_bias = arena.take<T>(kChannelBlock);
  T* starts = arena.take<T>(ceil_div(pixels, plan.time_tile) * per_state);
  T* gx = arena.take<T>(pixels * kChannelBlock);
  T* copy_x = plan.stage_planes ? arena.take<T>(pixels * kChannelBlock) : nullptr;
  T* copy_gout = plan.stage_planes ? arena.take<T>(pixels * kChannelBlock) : nullptr;

  const int64_t partition = task % plan.partitions, chunk = task / plan.partitions;
  const Range items = part_of(size.batch, plan.batch_chunks, chunk);
  const Range blocks = part_of(plan.blocks, plan.partitions, partition);
  const int64_t pixel_stride = size.routes * size.record();
  T* projection = partial.projection + partition * size.batch * pixels * pixel_stride;
  for (int64_t i = items.begin * pixels * pixel_stride; i < items.end * pixels * pixel_stride; ++i)
    projection[i] = 0;

  for (int64_t index = blocks.begin; index < blocks.end; ++index) {
    const ChannelBlock block = BlockAt<T>(size, index);
    const auto row_of = [&](int64_t k) {
      return (chunk * size.routes + k) * size.channels + block.first;
    };
    for (int64_t k = 0; k < size.routes; ++k)
      for (const auto& [sums, count] : {std::pair{partial.A, size.states},
                                        {partial.dt_weight, size.rank},
                                        {partial.D, int64_t{1}},
                                        {partial.dt_bias, int64_t{1}}})
        std::memset(sums + row_of(k) * count, 0, block.channels * count * sizeof(T));
    for (int64_t b = items.begin; b < items.end; ++b) {
      const Plane x = Staged(PlaneOf(p.x, b, block), pixels, block, copy_x);
      const Plane gout = Staged(PlaneOf(g.out, b, block), pixels, block, copy_gout);
      Fill(gx, pixels * kChannelBlock, T(0));
      for (int64_t k = 0; k < size.routes; ++k) {
        const Route route(p.routes[k], size.height, size.width);
        in.LoadParameters(block, k);
        Fill(sum_A, per_state, T(0));
        Fill(sum_weight, size.rank * kChannelBlock, T(0));
        Fill(sum_D, kChannelBlock, T(0));
        Fill(sum_bias, kChannelBlock, T(0));
        const int64_t length = route.sequence_length();
        const int64_t tiles = ceil_div(length, plan.time_tile);
        for (int64_t sequence = 0; sequence < route.sequences(); ++sequence) {
          // First walk: the states at the start of every tile.
          Fill(h, per_state, T(0));
          for (int64_t i = 0; i < tiles; ++i) {
            std::memcpy(starts + i * per_state, h, per_state * sizeof(T));
            if (i + 1 < tiles)
              ScanForward<false>(
                  in.LoadSteps(x, b, route, sequence, i * plan.time_tile, plan.time_tile), h,
                  static_cast<T*>(nullptr));
          }
          // Second walk: from the last tile to the first.
          Fill(carry, per_state, T(0));
          for (int64_t i = tiles - 1; i >= 0; --i) {
            const int64_t first = i * plan.time_tile;
            const int64_t steps = HWY_MIN(plan.time_tile, length - first);
            const ScanTile<T> tile = in.LoadSteps(x, b, route, sequence, first, steps, step.slope);
            LoadPieces(gout, route, sequence, first, steps, block, step.gy);
            Fill(grecords, steps * in.record_stride, T(0));
            T* gB = grecords + size.rank;
            ScanBackward(tile, step,
                         {.start = starts + i * per_state,
                          .carry = carry,
                          .y = nullptr,
                          .A = sum_A,
                          .B = {gB, 1, in.record_stride, false},
                          .C = {gB + size.states, 1, in.record_stride, false}});
            step.Finish(tile, in.D, true, sum_D, sum_bias);
            FinishDelta(in, steps, step.exponent, grecords, sum_weight);
            AddPieces(step.input, route, sequence, first, steps, block.width, gx);
            route.for_pieces(sequence, first, steps,
                             [&](int64_t pixel, int64_t stride, int64_t count, int64_t offset) {
                               for (int64_t j = 0; j < count; ++j) {
                                 T* to = projection +
                                         (b * pixels + pixel + j * stride) * pixel_stride +
                                         k * size.record();
                                 const T* from = grecords + (offset + j) * in.record_stride;
                                 for (int64_t i = 0; i < size.record(); ++i) to[i] += from[i];
                               }
                             });
          }
        }
        // The parameters' sums over this chunk of the batch.
        const auto keep = [&](const T* sums, int64_t count, T* to) {
          for (int64_t c = 0; c < block.channels; ++c)
            for (int64_t i = 0; i < count; ++i)
              to[(row_of(k) + c) * count + i] += sums[i * kChannelBlock + c];
        };
        for (int64_t n = 0; n < size.states; ++n)  // gA_log = gA * A
          for (int64_t c = 0; c < block.channels; ++c)
            sum_A[n * kChannelBlock + c] *= in.A[n * kChannelBlock + c];
        keep(sum_A, size.states, partial.A);
        keep(sum_weight, size.rank, partial.dt_weight);
        keep(sum_D, 1, partial.D);
        keep(sum_bias, 1, partial.dt_bias);
      }
      if (g.x) StoreTile(gx, kChannelBlock, pixels, block.channels, PlaneOf(g.x, b, block).all);
    }
  }
}

// Adds up the parts and stores the sums: one image of the projection, or all parameters.
template <typename T>
void FinishAll(const Ss2dGradients& g, const Ss2dSize& size, const Ss2dPlan& plan,
               std::byte* workspace, int64_t begin, int64_t end) {
  const PartialSums<T> partial(size, plan, workspace);
  const int64_t image = size.pixels() * size.routes * size.record();
  for (int64_t b = begin; b < end; ++b) {
    if (b < size.batch) {
      if (g.projection)
        StoreSum(partial.projection + b * image, plan.partitions, size.batch * image, image,
                 WindowAt(g.projection, b * image, 0, 1));
      continue;
    }
    const int64_t rows = size.routes * size.channels;
    const auto store = [&](const TensorView& tensor, const T* sums, int64_t count) {
      if (tensor) StoreSum(sums, plan.batch_chunks, count, count, WindowAt(tensor, 0, 0, 1));
    };
    store(g.dt_weight, partial.dt_weight, rows * size.rank);
    store(g.dt_bias, partial.dt_bias, rows);
    store(g.A_log, partial.A, rows * size.states);
    store(g.D, partial.D, rows);
  }
}

template <typename T>
void ForwardSlot(const Ss2dProblem& p, const Ss2dSize& size, const Ss2dPlan& plan,
                 std::byte* workspace, int64_t slot) {
  const Range tasks = part_of(plan.tasks, plan.slots, slot);
  for (int64_t task = tasks.begin; task < tasks.end; ++task)
    ForwardTask<T>(p, size, plan, workspace + slot * plan.scratch_bytes, task);
}

template <typename T>
void BackwardSlot(const Ss2dProblem& p, const Ss2dGradients& g, const Ss2dSize& size,
                  const Ss2dPlan& plan, std::byte* workspace, int64_t slot) {
  const PartialSums<T> partial(size, plan, workspace);
  const Range tasks = part_of(plan.tasks, plan.slots, slot);
  for (int64_t task = tasks.begin; task < tasks.end; ++task)
    BackwardTask<T>(p, g, size, plan, partial, workspace + slot * plan.scratch_bytes, task);
}

// What the dispatch table holds: the accumulator's type becomes compile-time here.
void Forward(const Ss2dProblem& p, const Ss2dSize& size, const Ss2dPlan& plan, std::byte* workspace,
             int64_t slot) {
  size.dtype == DType::kFloat64 ? ForwardSlot<double>(p, size, plan, workspace, slot)
                                : ForwardSlot<float>(p, size, plan, workspace, slot);
}

void Backward(const Ss2dProblem& p, const Ss2dGradients& g, const Ss2dSize& size,
              const Ss2dPlan& plan, std::byte* workspace, int64_t slot) {
  size.dtype == DType::kFloat64 ? BackwardSlot<double>(p, g, size, plan, workspace, slot)
                                : BackwardSlot<float>(p, g, size, plan, workspace, slot);
}

void Finish(const Ss2dGradients& g, const Ss2dSize& size, const Ss2dPlan& plan,
            std::byte* workspace, int64_t begin, int64_t end) {
  size.dtype == DType::kFloat64 ? FinishAll<double>(g, size, plan, workspace, begin, end)
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

void forward(const Ss2dProblem& p, const Ss2dPlan& plan, std::byte* workspace,
             const ParallelFor& parallel_for) {
  ensure_simd_target();
  const Ss2dSize size = size_of(p);
  if (plan.tasks == 0) return;
  parallel_each(parallel_for, plan.slots, [&](int64_t slot) {
    HWY_DYNAMIC_DISPATCH(Forward)(p, size, plan, workspace, slot);
  });
}

void backward(const Ss2dProblem& p, const Ss2dGradients& g, const Ss2dPlan& plan,
              std::byte* workspace, const ParallelFor& parallel_for) {
  ensure_simd_target();
  const Ss2dSize size = size_of(p);
  parallel_each(parallel_for, plan.slots, [&](int64_t slot) {
    HWY_DYNAMIC_DISPATCH(Backward)(p, g, size, plan, workspace, slot);
  });
  // The last index stands for the parameters.
  parallel_for(size.batch + 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(Finish)(g, size, plan, workspace, begin, end);
  });
}

}  // namespace linescan
#endif  // HWY_ONCE
