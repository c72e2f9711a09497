#include "linescan/ops/selective_scan/gpu_arguments.h"

#include <algorithm>
#include <bit>

namespace linescan {
namespace {

int log2_of(int64_t power) { return std::countr_zero(static_cast<uint64_t>(power)); }

// The widest of 16, 8 and 4 bytes that divides all of the numbers; 0 if none does.
template <typename... Numbers>
int common_granule(Numbers... numbers) {
  const uint64_t all = (uint64_t{16} | ... | static_cast<uint64_t>(numbers));
  const uint64_t granule = all & (~all + 1);
  return granule >= 4 ? static_cast<int>(granule) : 0;
}

struct Geometry {
  int64_t batch, group_channels, length, segments, rows, tile;
  int64_t pad = 16;  // bytes between rows in shared memory
  bool runs = true;  // whether rows that touch each other may be copied as one line
  int64_t own = 0;   // one state, forward: steps of a lane
};

// Strides of dimensions with one index say nothing.
GpuSequence sequence(const TensorView& tensor, const Geometry& g) {
  GpuSequence q;
  if (!tensor) return q;
  q.data = tensor.as<unsigned char>();
  q.dtype = tensor.dtype;
  q.element = static_cast<int>(size_of(tensor.dtype));
  const int64_t element = q.element;
  q.batch = g.batch > 1 ? tensor.strides[0] * element : 0;
  q.channel = tensor.shape[1] > 1 ? tensor.strides[1] * element : 0;
  q.step = g.length > 1 ? tensor.strides[2] * element : element;
  q.group = tensor.shape[1] > g.group_channels ? g.group_channels * q.channel : 0;

  const auto address = reinterpret_cast<std::uintptr_t>(q.data);
  const bool along_time = q.step == element;
  if (!along_time && q.channel == element) {
    const int64_t line = g.rows * element;
    q.lines = GpuLines::kSteps;
    q.granule = common_granule(address, q.batch, q.step, g.group_channels * element, line);
    q.line_shift = log2_of(line / (q.granule ? q.granule : element));
    q.row_pitch = q.element;
    q.step_pitch = q.pad = static_cast<int>(line);
    q.plain = q.granule == 16;
    return q;
  }
  const int64_t line = g.tile * element;
  q.granule = along_time ? common_granule(address, q.batch, q.channel) : 0;
  q.line_shift = log2_of(line / (q.granule ? q.granule : element));
  q.row_pitch = static_cast<int>(line + g.pad);
  q.step_pitch = q.element;
  q.packed = true;
  q.plain = q.granule == 16 && line <= kGpuWarp * 16;
  q.unit = std::max(1, q.granule / q.element);
  q.vectors = q.unit >= 4;
  // Whole rows that touch each other allow wider copies than each row alone.
  const bool run = g.runs && along_time && g.length <= g.tile && q.channel == g.length * element;
  const int granule =
      run ? common_granule(address, q.batch, q.channel * g.group_channels, q.channel * g.rows) : 0;
  // One state, forward: all sequences do as the narrowest one needs it. A lane's steps remain wide accesses to shared memory.
  const bool wanted = g.own == 0 ? granule > q.granule
                                 : granule >= std::max(q.granule, 1) &&
                                       q.channel % common_granule(g.own * element) == 0;
  if (wanted) {
    q.lines = GpuLines::kRun;
    q.granule = granule;
    q.plain = false;
    q.row_pitch = static_cast<int>(q.channel);
    q.packed = q.channel % (4 * element) == 0;
  }
  return q;
}

GpuFactor factor(const TensorView& tensor, bool constant, const Geometry& g) {
  GpuFactor f;
  f.data = tensor.as<unsigned char>();
  f.dtype = tensor.dtype;
  f.element = static_cast<int>(size_of(tensor.dtype));
  f.constant = constant;
  const int64_t element = f.element;
  if (constant) {
    f.group = tensor.strides[0] * element;
    f.state = tensor.strides[1] * element;
    return f;
  }
  f.batch = g.batch > 1 ? tensor.strides[0] * element : 0;
  f.group = tensor.shape[1] > 1 ? tensor.strides[1] * element : 0;
  f.state = tensor.shape[2] > 1 ? tensor.strides[2] * element : 0;
  f.step = g.length > 1 ? tensor.strides[3] * element : element;
  const int granule = f.step != element ? 0
                                        : common_granule(reinterpret_cast<std::uintptr_t>(f.data),
                                                         f.batch, f.group, f.state);
  f.vectors = granule == 16;
  f.unit = std::max(1, granule / f.element);
  return f;
}

GpuFactorGradient factor_gradient(const TensorView& tensor, float* sums,
                                  const SelectiveScanGpuPlan& plan, const SelectiveScanSize& size) {
  GpuFactorGradient f;
  if (!tensor || tensor.shape.rank() == 2) return f;
  if (sums != nullptr) {  // [blocks, slice, groups, states, length] or [.., length, states]
    f.data = reinterpret_cast<unsigned char*>(sums);
    f.step = plan.channels_last ? 4 * size.states : 4;
    f.state = plan.channels_last ? 4 : 4 * size.length;
    f.group = 4 * size.length * size.states;
    f.batch = f.group * size.groups;
    f.part = f.batch * plan.slice;
    f.vectors = size.length % 4 == 0;
    return f;
  }
  const int64_t element = static_cast<int64_t>(size_of(tensor.dtype));
  f.data = tensor.as<unsigned char>();
  f.dtype = tensor.dtype;
  f.batch = tensor.strides[0] * element;
  f.group = tensor.strides[1] * element;
  f.state = tensor.strides[2] * element;
  f.step = tensor.strides[3] * element;
  f.vectors = f.step == element && common_granule(reinterpret_cast<std::uintptr_t>(f.data), f.batch,
                                                  f.group, f.state) >= 4 * element;
  return f;
}

}  // namespace

SelectiveScanGpuArguments gpu_arguments(const SelectiveScanProblem& problem,
                                        const SelectiveScanGradients* gradients,
                                        const SelectiveScanGpuPlan& plan, bool states_only,
                                        std::byte* workspace) {
  const SelectiveScanSize size = size_of(problem);
  SelectiveScanGpuArguments args{};
  const int64_t group_channels = size.channels / std::max<int64_t>(size.groups, 1);
  args.length = size.length;
  args.batch = static_cast<int>(size.batch);
  args.channels = static_cast<int>(size.channels);
  args.groups = static_cast<int>(size.groups);
  args.group_channels = static_cast<int>(group_channels);
  args.states = static_cast<int>(size.states);
  args.blocks = static_cast<int>(plan.blocks);
  args.tiles = static_cast<int>(plan.tiles);
  args.slice = static_cast<int>(plan.slice);
  args.rows = static_cast<int>(plan.rows);
  args.warps = static_cast<int>(plan.warps);
  args.shares = static_cast<int>(plan.shares);
  args.teams = args.warps / args.shares;
  args.places = static_cast<int>(plan.places);
  args.whole_rows = static_cast<int>(plan.whole_rows);
  args.exchange = exchange_floats(plan.many_states ? 2 : plan.shares);
  args.state_tile = static_cast<int>(plan.state_tile);
  args.state_steps = static_cast<int>(plan.kept_steps);
  args.softplus = problem.delta_softplus;
  args.shared = shared_layout(size, plan, states_only);

  Geometry g{size.batch,    group_channels,           size.length,
             plan.segments, kGpuWarp / plan.segments, plan.segments * kGpuItems};
  const bool by_lines = plan.one_state && !plan.short_rows && plan.whole_rows == 0 &&
                        (gradients == nullptr || states_only);
  if (plan.short_rows) g.tile = kShortLength;  // whole rows
  if (plan.whole_rows > 0) g.tile = tile_of(plan), g.rows = plan.whole_rows;
  if (by_lines) g.tile = tile_of(plan), g.pad = 0, g.own = plan.items;
  const auto placed = [&](const TensorView& tensor, int index) {
    GpuSequence q = sequence(tensor, g);
    q.shared = args.shared.sequence[index];
    q.stage = static_cast<int>(args.shared.stage[index]);
    return q;
  };
  if (by_lines) {
    const TensorView moved[] = {problem.u, problem.delta, states_only ? TensorView{} : problem.out};
    const auto all = [&](const auto& is) {
      return std::ranges::all_of(
          moved, [&](const TensorView& tensor) { return !tensor || is(sequence(tensor, g)); });
    };
    const auto wide = [](const GpuSequence& q) { return q.granule == 16; };
    g.runs = false;
    args.wide = all(wide);
    if (!args.wide && plan.segments < kGpuWarp) {  // all sequences as runs, or none
      g.runs = true;
      args.runs = g.runs = all([](const GpuSequence& q) { return q.lines == GpuLines::kRun; });
      args.wide = all(wide);
    }
  }
  args.inputs[0] = placed(problem.u, 0);
  args.inputs[1] = placed(problem.delta, 1);
  if (!states_only) args.inputs[2] = placed(problem.z, 2);
  args.factors[0] = factor(problem.B, size.constant_B, g);
  args.factors[1] = factor(problem.C, size.constant_C, g);
  args.order = problem.order;
  args.A = problem.A.as<float>();
  args.D = problem.D.as<float>();
  args.delta_bias = problem.delta_bias.as<float>();
  args.initial_state = problem.initial_state.as<float>();
  args.last_state = problem.last_state.as<float>();

  const SelectiveScanWorkspace layout = workspace_layout(size, plan);
  float* const floats = reinterpret_cast<float*>(workspace);
  if (!plan.shared_carries) args.carries = floats + layout.carries;
  float* const kept = plan.kept_steps > 0 ? problem.states.as<float>() : nullptr;
  args.state_items = static_cast<int>(kept ? size.batch : plan.slice);
  if (gradients == nullptr) {
    args.out = sequence(problem.out, g);
    args.tile_states = kept;
    return args;
  }
  const SelectiveScanGradients& grad = *gradients;
  if (plan.tiles > 1) args.tile_states = kept ? kept : floats + layout.states;
  if (plan.many_states) args.rates = floats + layout.rates;
  if (states_only) return args;
  args.inputs[3] = placed(grad.out, 3);
  args.last_state = grad.last_state.as<float>();
  args.initial_gradient = grad.initial_state.as<float>();
  args.gu = sequence(grad.u, g);
  args.gdelta = sequence(grad.delta, g);
  args.gz = sequence(grad.z, g);
  if (grad.A) args.A_sums = floats + layout.A;
  if (grad.D) args.D_sums = floats + layout.D;
  if (grad.delta_bias) args.bias_sums = floats + layout.bias;
  const TensorView* wanted[2] = {&grad.B, &grad.C};
  const bool constant[2] = {size.constant_B, size.constant_C};
  for (int i = 0; i < 2; ++i) {
    args.sums[i] = factor_gradient(*wanted[i], plan.blocks > 1 ? floats + layout.sums[i] : nullptr,
                                   plan, size);
    if (*wanted[i] && constant[i]) args.constant_sums[i] = floats + layout.constant[i];
  }
  return args;
}

}  // namespace linescan
