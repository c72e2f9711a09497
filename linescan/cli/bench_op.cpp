// linescan bench op: times an operator as a LibTorch program calls it (outputs allocated, the
// projection of ss2d included), and holds it against what the machine can do.

#include <fmt/format.h>
#include <torch/torch.h>

#include <iostream>
#include <memory>

#include "linescan/binding/selective_scan.h"
#include "linescan/binding/ss2d.h"
#include "linescan/binding/tensors.h"
#include "linescan/cli/bench.h"
#include "linescan/cli/command.h"
#include "linescan/cli/shape_options.h"
#include "linescan/cli/timing.h"
#include "linescan/ops/ceilings.h"

namespace linescan::cli {
namespace {

struct BenchOpRequest {
  std::string op, shape, dtype = "float32", layout = "length";
  double seconds = 3;
  bool softplus = false, json = false;
};

// An operator with its inputs: what to call, what to differentiate by, what it costs at least.
struct Subject {
  std::function<at::Tensor()> forward;
  std::vector<at::Tensor> inputs;
  int64_t elements;                   // of the first input, times routes
  int64_t bytes[2], exponentials[2];  // forward, backward
};

at::ScalarType torch_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBFloat16:
      return at::kBFloat16;
    default:
      return at::kFloat;
  }
}

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
  }
}

Subject scan_subject(const BenchOpRequest& request) {
  SelectiveScanSize size = parse_scan_shape(request.shape, request.dtype, request.layout).size;
  size.softplus = request.softplus;
  const DType parameter = accumulator_of(size.dtype);
  const auto sequence = [&](double low, double high) {
    const bool channels_last = request.layout == "channels";
    at::Tensor values = draw({size.batch, channels_last ? size.length : size.channels,
                              channels_last ? size.channels : size.length},
                             size.dtype, low, high);
    if (channels_last) values = values.detach().transpose(1, 2).requires_grad_();
    return values;
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

nlohmann::json describe(const Timing& timing, const Subject& subject, int pass,
                        const Ceilings& ceilings) {
  const double bytes = static_cast<double>(subject.bytes[pass]);
  const double exponentials = static_cast<double>(subject.exponentials[pass]);
  nlohmann::json document = to_json(timing);
  document["gb_per_s"] = bytes / timing.median / 1e9;
  document["ns_per_element"] = timing.median * 1e9 / static_cast<double>(subject.elements);
  document["share_of_copy"] = bytes / timing.median / ceilings.copy_bytes_per_second;
  document["share_of_exp"] = exponentials / timing.median / ceilings.exponentials_per_second;
  document["share_of_floor"] =
      floor_seconds(ceilings, subject.bytes[pass], subject.exponentials[pass]) / timing.median;
  return document;
}

void print_row(const char* name, const nlohmann::json& row) {
  std::cout << fmt::format(
      "{:<9}{:>9.3f} ms  ({:.3f} to {:.3f}) {:>8.3f} ns/element {:>6.1f} GB/s {:>4.0f}% of floor\n",
      name, row["ms_median"].get<double>(), row["ms_p10"].get<double>(),
      row["ms_p90"].get<double>(), row["ns_per_element"].get<double>(),
      row["gb_per_s"].get<double>(), 100 * row["share_of_floor"].get<double>());
}

void run_bench_op(const BenchOpRequest& request) {
  const std::string known[] = {kScanName, kSs2dName};
  check_operator(request.op, known);
  if (!(request.seconds > 0))
    throw_error<InvalidArgument>("--seconds is {}, expected more than 0", request.seconds);
  torch::manual_seed(0);
  const Subject subject = request.op == kScanName ? scan_subject(request) : ss2d_subject(request);
  if (subject.elements == 0)
    throw_error<InvalidArgument>("--shape has a size of 0: nothing to time");
  const Ceilings ceilings = measure_ceilings(torch_parallel_for(), at::get_num_threads());

  const Timing ahead = measure(request.seconds, [&] {
    const torch::NoGradGuard no_grad;
    subject.forward();
  });
  const at::Tensor out = subject.forward();
  const at::Tensor upstream = torch::randn_like(out);
  const Timing back = measure(request.seconds, [&] {
    torch::autograd::grad({out}, subject.inputs, {upstream}, /*retain_graph=*/true);
  });

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
  print_row("forward", document["forward"]);
  print_row("backward", document["backward"]);
}

}  // namespace

void add_bench_op(CLI::App& bench) {
  CLI::App& command = *bench.add_subcommand("op", "Time one operator, forward and backward");
  auto request = std::make_shared<BenchOpRequest>();
  command.add_option("op", request->op, "selective_scan or ss2d")->required();
  command.add_option("--shape", request->shape, kShapeHelp);
  command.add_option("--dtype", request->dtype, "float32, float64, float16 or bfloat16");
  command.add_option("--layout", request->layout, "which index is adjacent: length or channels");
  command.add_flag("--softplus", request->softplus, "selective_scan: delta through a softplus");
  command.add_option("--seconds", request->seconds, "time to spend on each measurement");
  command.add_flag("--json", request->json, "one JSON document on standard output");
  add_example(command, "linescan bench op selective_scan --shape channels=384,states=16");
  command.callback([request] { run_bench_op(*request); });
}

}  // namespace linescan::cli
