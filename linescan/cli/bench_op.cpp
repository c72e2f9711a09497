// linescan bench op: times an operator as a LibTorch program calls it (outputs allocated, the
// projection of ss2d included), and holds it against what the machine can do.

#include <fmt/format.h>
#include <torch/torch.h>

#include <iostream>
#include <memory>

#include "linescan/binding/causal_conv1d.h"
#include "linescan/binding/gated_delta_rule.h"
#include "linescan/binding/selective_scan.h"
#include "linescan/binding/ss2d.h"
#include "linescan/binding/tensors.h"
#include "linescan/cli/bench.h"
#include "linescan/cli/command.h"
#include "linescan/cli/shape_options.h"
#include "linescan/lab/timed_work.h"
#include "linescan/ops/ceilings.h"

namespace linescan::cli {
namespace {

struct BenchOpRequest {
  std::string op, shape, dtype = "float32", layout;
  double seconds = 3;
  bool softplus = false, json = false;
};

// An operator with its inputs: what to call, what to differentiate by, what it costs at least.
struct Subject {
  std::function<at::Tensor()> forward;
  std::vector<at::Tensor> inputs;
  int64_t elements;                   // of the result, times routes
  int64_t bytes[2], exponentials[2];  // forward, backward
  int64_t multiplications[2] = {};  // with states, where the plan counts them; no part of the floor
};

// Uniform numbers between low and high that want a gradient.
at::Tensor draw(at::IntArrayRef shape, DType dtype, double low, double high) {
  const at::Tensor values = torch::rand(shape) * (high - low) + low;
  return values.to(torch_type(dtype)).requires_grad_();
}

template <class Size>
void set_costs(Subject& subject, const Size& size) {
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const auto plan = linescan::plan(size, pass, at::get_num_threads());
    subject.bytes[static_cast<int>(pass)] = plan.bytes;
    subject.exponentials[static_cast<int>(pass)] = plan.exponentials;
    if constexpr (requires { plan.multiplications; })
      subject.multiplications[static_cast<int>(pass)] = plan.multiplications;
  }
}

// [batch, a, b] in memory as [batch, b, a].
at::Tensor turned(const at::Tensor& values) {
  return values.detach().transpose(1, 2).requires_grad_();
}

Subject scan_subject(const BenchOpRequest& request) {
  SelectiveScanSize size = parse_scan_shape(request.shape, request.dtype, request.layout).size;
  size.softplus = request.softplus;
  const DType parameter = accumulator_of(size.dtype);
  const auto sequence = [&](double low, double high) {
    if (size.length_last)
      return draw({size.batch, size.channels, size.length}, size.dtype, low, high);
    return turned(draw({size.batch, size.length, size.channels}, size.dtype, low, high));
  };
  const at::Tensor u = sequence(-1, 1);
  const at::Tensor delta = request.softplus ? sequence(-4, 1) : sequence(0.001, 0.1);
  const at::Tensor A = draw({size.channels, size.states}, parameter, -2, -0.1);
  const std::vector<int64_t> factor = {size.batch, size.groups, size.states, size.length};
  const at::Tensor B = draw(factor, size.dtype, -1, 1), C = draw(factor, size.dtype, -1, 1);
  const at::Tensor D = draw({size.channels}, parameter, -1, 1);
  Subject subject;
  subject.forward = [=, softplus = request.softplus] {
    return std::get<0>(selective_scan(u, delta, A, B, C, D, {}, {}, {}, softplus));
  };
  subject.inputs = {u, delta, A, B, C, D};
  subject.elements = size.batch * size.channels * size.length;
  set_costs(subject, size);
  return subject;
}

Subject ss2d_subject(const BenchOpRequest& request) {
  const Ss2dShape shape = parse_ss2d_shape(request.shape, request.dtype, request.layout);
  const Ss2dSize& size = shape.size;
  const DType parameter = accumulator_of(size.dtype);
  at::Tensor x = draw({size.batch, size.channels, size.height, size.width}, size.dtype, -1, 1);
  if (size.channels_last)
    x = x.detach().contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  const int64_t K = size.routes;
  const at::Tensor x_weight = draw({K, size.record(), size.channels}, size.dtype, -0.1, 0.1);
  const at::Tensor dt_weight = draw({K, size.channels, size.rank}, size.dtype, -0.4, 0.4);
  const at::Tensor dt_bias = draw({K, size.channels}, parameter, -6, -2);
  const at::Tensor A_log = draw({K * size.channels, size.states}, parameter, 0, 1);
  const at::Tensor D = draw({K * size.channels}, parameter, 0.5, 1.5);
  Subject subject;
  subject.forward = [=, routes = shape.routes] {
    return ss2d(x, x_weight, {}, dt_weight, dt_bias, A_log, D, routes);
  };
  subject.inputs = {x, x_weight, dt_weight, dt_bias, A_log, D};
  subject.elements = size.batch * size.channels * size.pixels() * K;
  set_costs(subject, size);
  return subject;
}

Subject rule_subject(const BenchOpRequest& request) {
  const RuleShape shape = parse_rule_shape(request.shape, request.dtype, request.layout);
  const GatedDeltaRuleSize& size = shape.size;
  const auto heads = [&](int64_t count, int64_t width) {
    return draw({size.batch, size.length, count, width}, size.dtype, -1, 1);
  };
  const auto gates = [&](DType dtype, double low, double high) {
    return draw({size.batch, size.length, size.value_heads}, dtype, low, high);
  };
  const at::Tensor q = heads(size.heads, size.K), k = heads(size.heads, size.K);
  const at::Tensor v = heads(size.value_heads, size.V);
  const at::Tensor g = gates(accumulator_of(size.dtype), -0.5, 0);
  const at::Tensor beta = gates(size.dtype, 0, 1);
  GatedDeltaRuleOptions options;
  options.qk_l2norm = true;
  options.mode = name_of(size.mode);
  Subject subject;
  subject.forward = [=] { return std::get<0>(gated_delta_rule(q, k, v, g, beta, options)); };
  subject.inputs = {q, k, v, g, beta};
  subject.elements = size.batch * size.length * size.value_heads * size.V;
  set_costs(subject, size);
  return subject;
}

Subject conv_subject(const BenchOpRequest& request) {
  const ConvShape shape = parse_conv_shape(request.shape, request.dtype, request.layout);
  const CausalConv1dSize& size = shape.size;
  const DType parameter = accumulator_of(size.dtype);
  const at::Tensor x =
      shape.channels_last
          ? draw({size.batch, size.length, size.channels}, size.dtype, -1, 1)
          : turned(draw({size.batch, size.channels, size.length}, size.dtype, -1, 1));
  const at::Tensor weight = draw({size.channels, size.width}, parameter, -1, 1);
  const at::Tensor bias = draw({size.channels}, parameter, -1, 1);
  Subject subject;
  subject.forward = [=] { return std::get<0>(causal_conv1d(x, weight, bias)); };
  subject.inputs = {x, weight, bias};
  subject.elements = size.batch * size.length * size.channels;
  set_costs(subject, size);
  return subject;
}

struct TimedOperator {
  std::string name;
  Subject (*subject)(const BenchOpRequest& request);
};
const TimedOperator kOperators[] = {{kScanName, scan_subject},
                                    {kSs2dName, ss2d_subject},
                                    {kRuleName, rule_subject},
                                    {kConvName, conv_subject}};

nlohmann::json describe(const lab::Statistics& timing, const Subject& subject, int pass,
                        const Ceilings& ceilings) {
  const double bytes = static_cast<double>(subject.bytes[pass]);
  const double exponentials = static_cast<double>(subject.exponentials[pass]);
  nlohmann::json document = lab::to_json(timing);
  document["gb_per_s"] = bytes / timing.median / 1e9;
  document["ns_per_element"] = timing.median * 1e9 / static_cast<double>(subject.elements);
  document["share_of_copy"] = bytes / timing.median / ceilings.copy_bytes_per_second;
  document["share_of_exp"] = exponentials / timing.median / ceilings.exponentials_per_second;
  document["share_of_floor"] =
      floor_seconds(ceilings, subject.bytes[pass], subject.exponentials[pass]) / timing.median;
  if (subject.multiplications[pass] > 0)
    document["multiply_adds_per_s"] =
        static_cast<double>(subject.multiplications[pass]) / timing.median;
  return document;
}

void print_pass(const char* name, const nlohmann::json& row) {
  std::cout << fmt::format(
      "{:<9}{:>9.3f} ms ({:.3f} to {:.3f}) {:.3f} ns/element {:.1f} GB/s {:.0f} % of floor\n", name,
      row["ms_median"].get<double>(), row["ms_p10"].get<double>(), row["ms_p90"].get<double>(),
      row["ns_per_element"].get<double>(), row["gb_per_s"].get<double>(),
      100 * row["share_of_floor"].get<double>());
}

void run_bench_op(const BenchOpRequest& request) {
  expect_seconds("--seconds", request.seconds);
  if (request.softplus && request.op != kScanName)
    throw_error<InvalidArgument>("--softplus: expected with {} alone, got {}", kScanName,
                                 request.op);
  torch::manual_seed(0);
  const Subject subject = find_operator(kOperators, request.op).subject(request);
  if (subject.elements == 0)
    throw_error<InvalidArgument>("--shape has a size of 0: nothing to time");
  const auto measure = [&](const std::function<void()>& work) {
    return lab::time_work({}, {.seconds = request.seconds}, work).seconds;
  };
  const Ceilings ceilings = measure_ceilings(torch_parallel_for(), at::get_num_threads());

  const auto ahead = measure([&] {
    const torch::NoGradGuard no_grad;
    subject.forward();
  });
  const at::Tensor out = subject.forward();
  const at::Tensor upstream = torch::randn_like(out);
  const auto back = measure(
      [&] { torch::autograd::grad({out}, subject.inputs, {upstream}, /*retain_graph=*/true); });

  const nlohmann::json document = {{"op", request.op},
                                   {"forward", describe(ahead, subject, 0, ceilings)},
                                   {"backward", describe(back, subject, 1, ceilings)},
                                   {"machine",
                                    {{"threads", at::get_num_threads()},
                                     {"copy_gb_per_s", ceilings.copy_bytes_per_second / 1e9},
                                     {"exponentials_per_s", ceilings.exponentials_per_second}}}};
  if (request.json) return print_json(document);
  std::cout << fmt::format("{} on {} threads; copy {:.1f} GB/s, {:.2f} G exponentials/s\n",
                           request.op, at::get_num_threads(), ceilings.copy_bytes_per_second / 1e9,
                           ceilings.exponentials_per_second / 1e9);
  print_pass("forward", document["forward"]);
  print_pass("backward", document["backward"]);
  if (subject.multiplications[0] > 0)
    std::cout << fmt::format(
        "{:.1f} and {:.1f} G multiply-adds with states a second, which the floor leaves out\n",
        document["forward"]["multiply_adds_per_s"].get<double>() / 1e9,
        document["backward"]["multiply_adds_per_s"].get<double>() / 1e9);
}

}  // namespace

void add_bench_op(CLI::App& bench) {
  CLI::App& command = *bench.add_subcommand("op", "Time one operator, forward and backward");
  auto request = std::make_shared<BenchOpRequest>();
  command.add_option("op", request->op, "selective_scan, ss2d, gated_delta_rule or causal_conv1d")
      ->required();
  command.add_option("--shape", request->shape, kShapeHelp);
  command.add_option("--dtype", request->dtype, "float32, float64, float16 or bfloat16");
  command.add_option("--layout", request->layout, kLayoutHelp);
  command.add_flag("--softplus", request->softplus, "selective_scan: delta through a softplus");
  add_number(command, "--seconds", request->seconds, "time to spend on each measurement");
  command.add_flag("--json", request->json, "one JSON document on standard output");
  add_example(command, "linescan bench op selective_scan --shape channels=384,states=16");
  command.callback([request] { run_bench_op(*request); });
}

}  // namespace linescan::cli
