#include "linescan/lab/states.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

#include "linescan/base/error.h"
#include "linescan/binding/ss2d.h"
#include "linescan/binding/ss2d_by_scans.h"
#include "linescan/binding/tensors.h"
#include "linescan/lab/out_of_memory.h"
#include "linescan/ops/selective_scan/gpu_plan.h"
#include "linescan/ops/ss2d/gpu_plan.h"
#include "linescan/ops/ss2d/route.h"

namespace linescan::lab {
namespace {

constexpr int64_t kReverse = kReverseInLine | kReverseLines;
constexpr int64_t kRoutes[] = {0, kColumnMajor, kReverse, kReverse | kColumnMajor};

template <class Plan>
PlannedPass summary(const Plan& plan, const Gpu& gpu, std::string kernels) {
  constexpr double kWarp = 32;
  return {std::move(kernels), plan.shared_bytes, plan.workspace_bytes,
          plan.blocks_per_multiprocessor,
          kWarp * static_cast<double>(plan.warps_per_multiprocessor) /
              static_cast<double>(gpu.threads_per_multiprocessor)};
}

PlannedPass planned(const Ss2dSize& size, Pass pass, const Gpu& gpu) {
  if (!scans_pay(size, kRoutes, gpu)) {
    const Ss2dGpuPlan ours = plan(size, pass, gpu);
    return summary(ours, gpu, ours.packed || ours.walks_states ? "ss2d, packed" : "ss2d");
  }
  return summary(plan(scan_of_part(size, pass), pass, gpu), gpu, "selective_scan");
}

DType data_type(Precision precision) {
  if (precision == Precision::kBf16) return DType::kBFloat16;
  return precision == Precision::kFp16 ? DType::kFloat16 : DType::kFloat32;
}

// The operator with its inputs.
class Subject {
 public:
  Subject(const Ss2dSize& size, const Compute& compute) {
    const int64_t K = size.routes, C = size.channels;
    const auto draw = [&](at::IntArrayRef shape, at::ScalarType type, double low, double high) {
      return to_device(torch::rand(shape) * (high - low) + low, compute).to(type);
    };
    const at::ScalarType data = torch_type(size.dtype);
    inputs_ = {draw({size.batch, C, size.height, size.width}, data, -1, 1)
                   .contiguous(at::MemoryFormat::ChannelsLast),
               draw({K, size.record(), C}, data, -0.1, 0.1),
               draw({K, C, size.rank}, data, -0.4, 0.4),
               draw({K, C}, at::kFloat, -6, -2),
               draw({K * C, size.states}, at::kFloat, 0, 1),
               draw({K * C}, at::kFloat, 0.5, 1.5)};
    upstream_ = draw({size.batch, C, size.height, size.width}, data, -1, 1)
                    .contiguous(at::MemoryFormat::ChannelsLast);
    for (at::Tensor& input : inputs_) input.requires_grad_();
  }

  at::Tensor forward() const {
    return ss2d(inputs_[0], inputs_[1], {}, inputs_[2], inputs_[3], inputs_[4], inputs_[5],
                kRoutes);
  }
  void infer() const {
    const torch::NoGradGuard no_grad;
    forward();
  }
  void train() const { torch::autograd::grad({forward()}, inputs_, {upstream_}); }

 private:
  std::vector<at::Tensor> inputs_;
  at::Tensor upstream_;
};

// Forward first: it is known even where the memory does not suffice for both passes.
void measure(const Bench& bench, const Ss2dSize& shape, StatesRow* row) {
  const Repetition repetition = {.warmup = bench.protocol.warmup,
                                 .repetitions = bench.protocol.repetitions,
                                 .graph = bench.protocol.graph};
  const Subject subject(shape, bench.compute);
  row->forward = time_work(
      bench.compute, repetition, [&] { subject.infer(); }, {}, bench.say);
  row->training = time_work(
      bench.compute, repetition, [&] { subject.train(); }, {}, bench.say);
}

}  // namespace

StatesCost cost_of_states(const Bench& bench, const VMambaConfig& config, int64_t size,
                          std::vector<int64_t> states, const Gpu& gpu) {
  if (config.inner(0) == 0)
    throw_error<InvalidArgument>("states: ssm_ratio is 0, expected a network with scans");
  std::sort(states.begin(), states.end());
  states.erase(std::unique(states.begin(), states.end()), states.end());
  const StageShape stage = stage_shapes(config, size, size).front();
  const DType type = data_type(bench.compute.precision);
  StatesCost cost;
  cost.shape = {.batch = bench.protocol.batch,
                .channels = config.inner(0),
                .height = stage.height,
                .width = stage.width,
                .rank = config.rank(0),
                .routes = std::size(kRoutes),
                .dtype = type,
                .out_dtype = type};
  cost.planned_for = gpu.name;
  for (const int64_t count : states) {
    if (count < 1) throw_error<InvalidArgument>("states is {}, expected 1 or more", count);
    if (bench.say) bench.say(fmt::format("states: {}", count));
    Ss2dSize shape = cost.shape;
    shape.states = count;
    StatesRow row;
    row.states = count;
    row.planned_forward = planned(shape, Pass::kForward, gpu);
    row.planned_backward = planned(shape, Pass::kBackward, gpu);
    if (!bench.compute.on_gpu())
      row.scratch_bytes = plan(shape, Pass::kBackward, at::get_num_threads()).scratch_bytes;
    give_memory_back(bench.compute);
    if (!fits_memory([&] { measure(bench, shape, &row); }) && bench.say)
      bench.say(fmt::format("out of memory with {} states", count));
    cost.rows.push_back(std::move(row));
  }
  return cost;
}

}  // namespace linescan::lab
