// causal_conv1d on the CPU, forward and backward.
//
//   sum[t, c] = bias[c] + sum_j weight[c, j] x[t - (width - 1) + j, c]       out = SiLU(sum), or sum
//
//   A task takes one block of up to 64 channels through a range of time tiles. A tile is brought into
//   scratch as accumulators [tokens, 64], whatever the tensor's type and strides, with the width - 1
//   tokens before it; there vectors run across channels. Backward it also needs the activations'
//   gradients of the width - 1 tokens behind it, and computes them a second time.
//   States are a pass of their own behind all tiles, so that they may be advanced in place.
//
// Numerics:  sums in float32 (float64 for float64 data), in an order that depends on the sizes alone.
// Reference: reference.cpp; the bound in sample.h.
// Chosen by: the only CPU variant.

#include "linescan/device/simd_targets.h"
#include "linescan/ops/causal_conv1d/causal_conv1d.h"
#include "linescan/ops/causal_conv1d/sequence.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linescan/ops/causal_conv1d/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h: compiled once a target.
#include <hwy/highway.h>

#include "linescan/ops/scan_tiling.h"
#include "linescan/ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {
namespace {  // the operators share names; without this the linker would merge their templates

// The channels of a task.
struct Block {
  int64_t channel, channels, width;  // width: channels rounded up to whole vectors
};

template <typename T>
HWY_INLINE Block BlockAt(const CausalConv1dSize& size, int64_t number) {
  const int64_t lanes = LanesOf<T>();
  const int64_t first = number * kChannelBlock;
  const int64_t channels = HWY_MIN(kChannelBlock, size.channels - first);
  return {first, channels, round_up(channels, lanes)};
}

// Tokens t, t + 1, ... of a batch item.
HWY_INLINE Window TokenWindow(const TensorView& tensor, const Block& block, int64_t item,
                              int64_t t) {
  const Shape& s = tensor.strides;
  return WindowAt(tensor, item * s[0] + t * s[1] + block.channel * s[2], s[1], s[2]);
}
// Places place, place + 1, ... of a sequence's state.
HWY_INLINE Window StateWindow(const TensorView& tensor, const Block& block, int64_t sequence,
                              int64_t place) {
  const Shape& s = tensor.strides;
  return WindowAt(tensor, sequence * s[0] + block.channel * s[1] + place * s[2], s[2], s[1]);
}

template <typename T>
HWY_INLINE void LoadRows(const Window& window, int64_t rows, const Block& block, T* to) {
  LoadTile(window, rows, block.channels, block.width, to, kChannelBlock);
}

// to[i] = what stands at time first + i of the sequence, which may begin before it.
template <typename T>
HWY_INLINE void LoadInputs(const CausalConv1dProblem& p, const Block& block, const ConvSequence& s,
                           int64_t first, int64_t rows, T* to) {
  const int64_t before = HWY_MIN(rows, HWY_MAX(int64_t{0}, s.begin - first));
  if (before > 0) {
    const int64_t history = p.weight.shape[1] - 1;
    if (p.initial_state)
      LoadRows(StateWindow(p.initial_state, block, s.number, history + first - s.begin), before,
               block, to);
    else
      Fill(to, before * kChannelBlock, T(0));
  }
  if (rows > before)
    LoadRows(TokenWindow(p.x, block, p.offsets ? 0 : s.number, first + before), rows - before,
             block, to + before * kChannelBlock);
}

// Calls function(width) with a compile-time width.
template <class Function>
HWY_INLINE void WithWidth(int64_t width, const Function& function) {
  if (width == 2) return function(std::integral_constant<int, 2>());
  if (width == 3) return function(std::integral_constant<int, 3>());
  return function(std::integral_constant<int, 4>());
}

// Weights [width, block] and bias [block] of a block.
template <typename T>
struct Parameters {
  T *weight, *bias;

  Parameters(int64_t width, Arena& arena)
      : weight(arena.take<T>(width * kChannelBlock)), bias(arena.take<T>(kChannelBlock)) {}

  void Load(const CausalConv1dProblem& p, const Block& block) const {
    const int64_t width = p.weight.shape[1];
    LoadRows(WindowAt(p.weight, block.channel * width, 1, width), width, block, weight);
    if (p.bias)
      LoadRows(WindowAt(p.bias, block.channel, 0, 1), 1, block, bias);
    else
      Fill(bias, kChannelBlock, T(0));
  }
};

// The sum of token t, whose first tap is row t of x.
template <int kWidth, class D, class V, typename T>
HWY_INLINE V SumAt(D d, const V (&weight)[kWidth], V bias, const T* HWY_RESTRICT x) {
  V sum = bias;
  for (int tap = 0; tap < kWidth; ++tap)
    sum = hn::MulAdd(weight[tap], hn::Load(d, x + tap * kChannelBlock), sum);
  return sum;
}

// out[t] = SiLU(sum[t]), or sum[t]; x has width - 1 rows more, in front.
template <typename T>
HWY_NOINLINE void Convolve(const T* HWY_RESTRICT x, const Parameters<T>& parameters, int64_t taps,
                           int64_t steps, int64_t width, bool silu, T* HWY_RESTRICT out) {
  WithWidth(taps, [&](auto constant) HWY_ATTR {
    constexpr int kWidth = decltype(constant)::value;
    const hn::ScalableTag<T> d;
    for (int64_t c = 0; c < width; c += LanesOf<T>()) {
      Vec<T> weight[kWidth];
      for (int tap = 0; tap < kWidth; ++tap)
        weight[tap] = hn::Load(d, parameters.weight + tap * kChannelBlock + c);
      const auto bias = hn::Load(d, parameters.bias + c);
      for (int64_t t = 0; t < steps; ++t) {
        const auto sum = SumAt(d, weight, bias, x + t * kChannelBlock + c);
        hn::Store(silu ? hn::Mul(sum, Sigmoid(d, sum)) : sum, d, out + t * kChannelBlock + c);
      }
    }
  });
}

// gradient[t] <- the gradient of sum[t], from that of out[t].
template <typename T>
HWY_NOINLINE void ThroughSilu(const T* HWY_RESTRICT x, const Parameters<T>& parameters,
                              int64_t taps, int64_t steps, int64_t width,
                              T* HWY_RESTRICT gradient) {
  WithWidth(taps, [&](auto constant) HWY_ATTR {
    constexpr int kWidth = decltype(constant)::value;
    const hn::ScalableTag<T> d;
    const auto one = hn::Set(d, T(1));
    for (int64_t c = 0; c < width; c += LanesOf<T>()) {
      Vec<T> weight[kWidth];
      for (int tap = 0; tap < kWidth; ++tap)
        weight[tap] = hn::Load(d, parameters.weight + tap * kChannelBlock + c);
      const auto bias = hn::Load(d, parameters.bias + c);
      for (int64_t t = 0; t < steps; ++t) {
        const int64_t at = t * kChannelBlock + c;
        const auto sum = SumAt(d, weight, bias, x + at), s = Sigmoid(d, sum);
        const auto slope = hn::MulAdd(hn::Mul(sum, s), hn::Sub(one, s), s);
        hn::Store(hn::Mul(hn::Load(d, gradient + at), slope), d, gradient + at);
      }
    }
  });
}

// to[t] = sum_j weight[width - 1 - j] gradient[t + j]; sums += what the tokens give weight and bias.
template <typename T>
HWY_NOINLINE void Gather(const T* HWY_RESTRICT x, const T* HWY_RESTRICT gradient,
                         const Parameters<T>& parameters, int64_t taps, int64_t steps,
                         int64_t width, T* HWY_RESTRICT to, const Parameters<T>& sums) {
  WithWidth(taps, [&](auto constant) HWY_ATTR {
    constexpr int kWidth = decltype(constant)::value;
    const hn::ScalableTag<T> d;
    for (int64_t c = 0; c < width; c += LanesOf<T>()) {
      Vec<T> turned[kWidth], sum[kWidth], bias = hn::Zero(d);
      for (int tap = 0; tap < kWidth; ++tap) {
        turned[tap] = hn::Load(d, parameters.weight + (kWidth - 1 - tap) * kChannelBlock + c);
        sum[tap] = hn::Zero(d);
      }
      for (int64_t t = 0; t < steps; ++t) {
        const int64_t at = t * kChannelBlock + c;
        hn::Store(SumAt(d, turned, hn::Zero(d), gradient + at), d, to + at);
        const auto own = hn::Load(d, gradient + at);
        bias = hn::Add(bias, own);
        for (int tap = 0; tap < kWidth; ++tap)
          sum[tap] = hn::MulAdd(own, hn::Load(d, x + at + tap * kChannelBlock), sum[tap]);
      }
      const auto add = [&](T* array, Vec<T> term) HWY_ATTR {
        hn::Store(hn::Add(hn::Load(d, array + c), term), d, array + c);
      };
      for (int tap = 0; tap < kWidth; ++tap) add(sums.weight + tap * kChannelBlock, sum[tap]);
      add(sums.bias, bias);
    }
  });
}

// to[0 .. rows) += from[0 .. rows)
template <typename T>
HWY_INLINE void AddRows(const T* HWY_RESTRICT from, int64_t rows, T* HWY_RESTRICT to) {
  const hn::ScalableTag<T> d;
  for (int64_t i = 0; i < rows * kChannelBlock; i += LanesOf<T>())
    hn::Store(hn::Add(hn::Load(d, to + i), hn::Load(d, from + i)), d, to + i);
}

// Calls visit(item, sequence, first token, tokens) for the runs of one sequence, or of none, in a tile.
template <class Visit>
HWY_INLINE void EachRun(const CausalConv1dProblem& p, const CausalConv1dSize& size,
                        const CausalConv1dPlan& plan, int64_t tile, const Visit& visit) {
  const ConvSequences sequences{p.offsets, size.sequences, size.length};
  const int64_t item = tile / plan.tiles, begin = tile % plan.tiles * plan.time_tile;
  const int64_t end = HWY_MIN(begin + plan.time_tile, size.length);
  for (int64_t t = begin; t < end;) {
    const ConvSequence sequence = sequences.of_token(item, t);
    const int64_t run = HWY_MIN(sequence.end, end) - t;
    visit(item, sequence, t, run);
    t += run;
  }
}

template <typename T>
void ForwardTask(const CausalConv1dProblem& p, const CausalConv1dSize& size,
                 const CausalConv1dPlan& plan, std::byte* scratch, int64_t task) {
  Arena arena(scratch, plan.scratch_bytes);
  const Parameters<T> parameters(size.width, arena);
  T* x = arena.take<T>((plan.time_tile + size.width) * kChannelBlock);
  T* out = arena.take<T>(plan.time_tile * kChannelBlock);
  const Block block = BlockAt<T>(size, task % plan.blocks);
  parameters.Load(p, block);
  const Range tiles = part_of(size.batch * plan.tiles, plan.parts, task / plan.blocks);
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile)
    EachRun(p, size, plan, tile,
            [&](int64_t item, const ConvSequence& sequence, int64_t t, int64_t run) HWY_ATTR {
              if (sequence.number < 0) {
                Fill(out, run * kChannelBlock, T(0));
              } else {
                const int64_t history = size.width - 1;
                LoadInputs(p, block, sequence, t - history, history + run, x);
                Convolve(x, parameters, size.width, run, block.width, p.silu, out);
              }
              StoreTile(out, kChannelBlock, run, block.channels,
                        TokenWindow(p.out, block, item, t));
            });
}

template <typename T>
void ForwardState(const CausalConv1dProblem& p, const CausalConv1dSize& size,
                  const CausalConv1dPlan& plan, std::byte* scratch, int64_t task) {
  Arena arena(scratch, plan.scratch_bytes);
  T* rows = arena.take<T>(size.width * kChannelBlock);
  const Block block = BlockAt<T>(size, task % plan.blocks);
  const ConvSequence sequence =
      ConvSequences{p.offsets, size.sequences, size.length}.get(task / plan.blocks);
  const int64_t history = size.width - 1;
  LoadInputs(p, block, sequence, sequence.end - history, history, rows);
  StoreTile(rows, kChannelBlock, history, block.channels,
            StateWindow(p.final_state, block, sequence.number, 0));
}

// rows[i] = the gradient of the sum at token t + i of a sequence; zero from the sequence's end on.
// `x` is filled with what stands at t - (width - 1) and later.
template <typename T>
HWY_INLINE void LoadGradients(const CausalConv1dProblem& p, const CausalConv1dGradients& g,
                              const Block& block, const Parameters<T>& parameters,
                              const ConvSequence& s, int64_t t, int64_t count, T* x, T* rows) {
  const int64_t width = p.weight.shape[1], inside = HWY_MIN(count, s.end - t);
  LoadInputs(p, block, s, t - (width - 1), width - 1 + inside, x);
  if (g.out)
    LoadRows(TokenWindow(g.out, block, p.offsets ? 0 : s.number, t), inside, block, rows);
  else
    Fill(rows, inside * kChannelBlock, T(0));
  if (p.silu && g.out) ThroughSilu(x, parameters, width, inside, block.width, rows);
  Fill(rows + inside * kChannelBlock, (count - inside) * kChannelBlock, T(0));
}

template <typename T>
void BackwardTask(const CausalConv1dProblem& p, const CausalConv1dGradients& g,
                  const CausalConv1dSize& size, const CausalConv1dPlan& plan, T* all_sums,
                  std::byte* scratch, int64_t task) {
  Arena arena(scratch, plan.scratch_bytes);
  const int64_t history = size.width - 1;
  const Parameters<T> parameters(size.width, arena), sums(size.width, arena);
  T* x = arena.take<T>((plan.time_tile + 2 * history) * kChannelBlock);
  T* gradient = arena.take<T>((plan.time_tile + history) * kChannelBlock);
  T* gx = arena.take<T>(plan.time_tile * kChannelBlock);
  T* state = arena.take<T>(size.width * kChannelBlock);
  const Block block = BlockAt<T>(size, task % plan.blocks);
  parameters.Load(p, block);
  Fill(sums.weight, size.width * kChannelBlock, T(0));
  Fill(sums.bias, kChannelBlock, T(0));
  const int64_t part = task / plan.blocks;
  const Range tiles = part_of(size.batch * plan.tiles, plan.parts, part);
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile)
    EachRun(p, size, plan, tile,
            [&](int64_t item, const ConvSequence& s, int64_t t, int64_t run) HWY_ATTR {
              if (s.number < 0) {
                Fill(gx, run * kChannelBlock, T(0));
              } else {
                LoadGradients(p, g, block, parameters, s, t, run + history, x, gradient);
                Gather(x, gradient, parameters, size.width, run, block.width, gx, sums);
                // The last tokens are the final state as well.
                const int64_t kept = HWY_MAX(t, s.end - history);
                if (g.final_state && kept < t + run) {
                  LoadRows(StateWindow(g.final_state, block, s.number, kept - (s.end - history)),
                           t + run - kept, block, state);
                  AddRows(state, t + run - kept, gx + (kept - t) * kChannelBlock);
                }
              }
              StoreTile(gx, kChannelBlock, run, block.channels, TokenWindow(g.x, block, item, t));
            });
  T* own = all_sums + part * (size.width + 1) * size.channels + block.channel;
  for (int64_t row = 0; row <= size.width; ++row)
    for (int64_t c = 0; c < block.channels; ++c)
      own[row * size.channels + c] =
          row < size.width ? sums.weight[row * kChannelBlock + c] : sums.bias[c];
}

template <typename T>
void BackwardState(const CausalConv1dProblem& p, const CausalConv1dGradients& g,
                   const CausalConv1dSize& size, const CausalConv1dPlan& plan, std::byte* scratch,
                   int64_t task) {
  const hn::ScalableTag<T> d;
  Arena arena(scratch, plan.scratch_bytes);
  const int64_t history = size.width - 1;
  const Parameters<T> parameters(size.width, arena);
  T* x = arena.take<T>(2 * size.width * kChannelBlock);
  T* gradient = arena.take<T>(size.width * kChannelBlock);
  T* state = arena.take<T>(size.width * kChannelBlock);
  const Block block = BlockAt<T>(size, task % plan.blocks);
  parameters.Load(p, block);
  const ConvSequence s =
      ConvSequences{p.offsets, size.sequences, size.length}.get(task / plan.blocks);
  LoadGradients(p, g, block, parameters, s, s.begin, history, x, gradient);
  for (int64_t place = 0; place < history; ++place)
    for (int64_t c = 0; c < block.width; c += LanesOf<T>()) {
      auto sum = hn::Zero(d);
      for (int64_t tap = 0; tap <= place; ++tap)
        sum = hn::MulAdd(hn::Load(d, parameters.weight + tap * kChannelBlock + c),
                         hn::Load(d, gradient + (place - tap) * kChannelBlock + c), sum);
      hn::Store(sum, d, state + place * kChannelBlock + c);
    }
  // What a short sequence pushes through to the final state.
  const int64_t length = s.end - s.begin;
  if (g.final_state && length < history) {
    LoadRows(StateWindow(g.final_state, block, s.number, 0), history - length, block, gradient);
    AddRows(gradient, history - length, state + length * kChannelBlock);
  }
  StoreTile(state, kChannelBlock, history, block.channels,
            StateWindow(g.initial_state, block, s.number, 0));
}

template <typename T>
T* SumsOf(const CausalConv1dPlan& plan, std::byte* workspace) {
  const int64_t slots = plan.slots * plan.scratch_bytes;
  return Arena(workspace + slots, plan.workspace_bytes - slots).take<T>(0);
}

template <typename T>
void FinishAll(const CausalConv1dGradients& g, const CausalConv1dSize& size,
               const CausalConv1dPlan& plan, std::byte* workspace) {
  T* sums = SumsOf<T>(plan, workspace);
  const int64_t stride = (size.width + 1) * size.channels;
  const auto store = [&](const Window& window, int64_t row) HWY_ATTR {
    StoreSum(sums + row * size.channels, plan.parts, stride, size.channels, window);
  };
  if (plan.parts == 0)  // nothing to add up: zeros
    for (int64_t i = 0; i < stride; ++i) sums[i] = 0;
  if (g.weight)
    for (int64_t tap = 0; tap < size.width; ++tap)
      store(WindowAt(g.weight, tap, 0, size.width), tap);
  if (g.bias) store(WindowAt(g.bias, 0, 0, 1), size.width);
}

// What the dispatch table holds: the accumulator's type becomes compile-time here.
void Forward(const CausalConv1dProblem& p, const CausalConv1dSize& size,
             const CausalConv1dPlan& plan, std::byte* scratch, int64_t begin, int64_t end) {
  const bool wide = accumulator_of(size.dtype) == DType::kFloat64;
  for (int64_t task = begin; task < end; ++task)
    wide ? ForwardTask<double>(p, size, plan, scratch, task)
         : ForwardTask<float>(p, size, plan, scratch, task);
}

void ForwardStates(const CausalConv1dProblem& p, const CausalConv1dSize& size,
                   const CausalConv1dPlan& plan, std::byte* scratch, int64_t begin, int64_t end) {
  const bool wide = accumulator_of(size.dtype) == DType::kFloat64;
  for (int64_t task = begin; task < end; ++task)
    wide ? ForwardState<double>(p, size, plan, scratch, task)
         : ForwardState<float>(p, size, plan, scratch, task);
}

void Backward(const CausalConv1dProblem& p, const CausalConv1dGradients& g,
              const CausalConv1dSize& size, const CausalConv1dPlan& plan, std::byte* workspace,
              std::byte* scratch, int64_t begin, int64_t end) {
  const bool wide = accumulator_of(size.dtype) == DType::kFloat64;
  for (int64_t task = begin; task < end; ++task)
    wide ? BackwardTask(p, g, size, plan, SumsOf<double>(plan, workspace), scratch, task)
         : BackwardTask(p, g, size, plan, SumsOf<float>(plan, workspace), scratch, task);
}

void BackwardStates(const CausalConv1dProblem& p, const CausalConv1dGradients& g,
                    const CausalConv1dSize& size, const CausalConv1dPlan& plan, std::byte* scratch,
                    int64_t begin, int64_t end) {
  const bool wide = accumulator_of(size.dtype) == DType::kFloat64;
  for (int64_t task = begin; task < end; ++task)
    wide ? BackwardState<double>(p, g, size, plan, scratch, task)
         : BackwardState<float>(p, g, size, plan, scratch, task);
}

void Finish(const CausalConv1dGradients& g, const CausalConv1dSize& size,
            const CausalConv1dPlan& plan, std::byte* workspace) {
  accumulator_of(size.dtype) == DType::kFloat64 ? FinishAll<double>(g, size, plan, workspace)
                                                : FinishAll<float>(g, size, plan, workspace);
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
HWY_EXPORT(ForwardStates);
HWY_EXPORT(Backward);
HWY_EXPORT(BackwardStates);
HWY_EXPORT(Finish);

// Calls run(scratch, begin, end) for ranges that cover `count` tasks, each with a slot's scratch.
template <class Run>
void in_slots(const CausalConv1dPlan& plan, std::byte* workspace, int64_t count,
              const ParallelFor& parallel_for, const Run& run) {
  parallel_each(parallel_for, plan.slots, [&](int64_t slot) {
    const Range tasks = part_of(count, plan.slots, slot);
    run(workspace + slot * plan.scratch_bytes, tasks.begin, tasks.end);
  });
}

}  // namespace

void forward(const CausalConv1dProblem& p, const CausalConv1dPlan& plan, std::byte* workspace,
             const ParallelFor& parallel_for) {
  ensure_simd_target();
  const CausalConv1dSize size = size_of(p);
  in_slots(plan, workspace, plan.tasks, parallel_for, [&](auto... tasks) {
    HWY_DYNAMIC_DISPATCH(Forward)(p, size, plan, tasks...);
  });
  if (!p.final_state) return;
  in_slots(plan, workspace, size.sequences * plan.blocks, parallel_for, [&](auto... tasks) {
    HWY_DYNAMIC_DISPATCH(ForwardStates)(p, size, plan, tasks...);
  });
}

void backward(const CausalConv1dProblem& p, const CausalConv1dGradients& g,
              const CausalConv1dPlan& plan, std::byte* workspace, const ParallelFor& parallel_for) {
  ensure_simd_target();
  const CausalConv1dSize size = size_of(p);
  in_slots(plan, workspace, plan.tasks, parallel_for, [&](auto... tasks) {
    HWY_DYNAMIC_DISPATCH(Backward)(p, g, size, plan, workspace, tasks...);
  });
  if (g.initial_state)
    in_slots(plan, workspace, size.sequences * plan.blocks, parallel_for, [&](auto... tasks) {
      HWY_DYNAMIC_DISPATCH(BackwardStates)(p, g, size, plan, tasks...);
    });
  HWY_DYNAMIC_DISPATCH(Finish)(g, size, plan, workspace);
}

}  // namespace linescan
#endif  // HWY_ONCE
