// linescan throughput: how fast a network is, how sure that is, and what it depends on.

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "linescan/cli/command.h"
#include "linescan/cli/compute_options.h"
#include "linescan/cli/throughput_options.h"
#include "linescan/device/gpu.h"
#include "linescan/files/atomic_write.h"
#include "linescan/lab/findings.h"
#include "linescan/train/machine.h"

namespace linescan::cli {
namespace {

void say(const std::string& text) { std::cerr << "linescan: " << text << '\n'; }

lab::Bench open_bench(const ThroughputOptions& options, const ThroughputPlan& plan,
                      const std::string& precision) {
  lab::Bench bench;
  bench.compute = open_compute(options.device, precision);
  bench.protocol = {.batch = plan.batch,
                    .warmup = static_cast<int>(options.warmup),
                    .repetitions = static_cast<int>(options.repetitions),
                    .graph = options.graph && bench.compute.on_gpu()};
  bench.products_per_second = lab::measure_products(bench.compute);
  bench.say = say;
  return bench;
}

std::vector<lab::StepKind> kinds_of(const ThroughputOptions& options) {
  std::vector<lab::StepKind> kinds = {lab::StepKind::kInference, lab::StepKind::kTraining};
  if (options.with_optimizer) kinds.push_back(lab::StepKind::kTrainingWithUpdate);
  return kinds;
}

// Every step in every precision. Returns the bench of the first precision, which comes last: it is the
// one in force for what follows.
lab::Bench measure_model(const ThroughputOptions& options, const ThroughputPlan& plan,
                         std::vector<lab::Measurement>* measurements) {
  lab::Bench bench;
  for (auto precision = plan.precisions.rbegin(); precision != plan.precisions.rend();
       ++precision) {
    bench = open_bench(options, plan, *precision);
    std::vector<lab::Measurement> own;
    for (const lab::StepKind kind : kinds_of(options)) {
      own.push_back(lab::measure_network(bench, plan.config, kind, plan.size));
      own.back().section = "model";
      own.back().label = options.model;
    }
    measurements->insert(measurements->begin(), own.begin(), own.end());
  }
  return bench;
}

// Of the steps that fitted the memory, on the batch that did; the others are named in a line. Returns the
// training step's recording.
lab::Recording break_model_down(const ThroughputOptions& options, const ThroughputPlan& plan,
                                lab::Bench bench, lab::Findings* findings) {
  lab::Recording recording;
  std::vector<std::string_view> missing;
  auto measured = findings->measurements.begin();  // those of the first precision come first
  for (const lab::StepKind kind : kinds_of(options)) {
    const bool wanted = kind == lab::StepKind::kTraining;
    lab::Breakdown breakdown;
    bench.protocol.batch = measured++->batch;
    if (bench.protocol.batch > 0)
      breakdown =
          lab::break_down_step(bench, plan.config, kind, plan.size, wanted ? &recording : nullptr);
    if (breakdown.total() > 0)
      findings->breakdowns.push_back({kind, breakdown});
    else
      missing.push_back(lab::name_of(kind));
  }
  const bool untraced = !options.trace.empty() && recording.spans.empty();
  if (!missing.empty())
    say(fmt::format("no breakdown of {}: not even one image fits the memory{}",
                    fmt::join(missing, ", "),
                    untraced ? fmt::format("; {} is not written", options.trace) : ""));
  return recording;
}

const Gpu& planned_gpu(const ThroughputOptions& options, const Compute& compute) {
  if (!options.plan_device.empty()) return find_gpu(options.plan_device);
  return find_gpu(compute.on_gpu() ? options.device : "h100");
}

void print(const lab::Findings& findings, const ThroughputOptions& options) {
  if (options.json) return print_json(to_json(findings));
  if (options.csv) {
    std::cout << to_csv(findings);
    return;
  }
  std::cout << fmt::format("{} at {} x {} pixels, {:.2f} million parameters, {}\n", findings.model,
                           findings.size, findings.size, findings.parameters / 1e6,
                           describe_workers(findings.compute));
  std::cout << to_text(findings);
}

void write_files(const lab::Findings& findings, const lab::Recording& step,
                 const ThroughputOptions& options) {
  if (!options.html.empty())
    write_file_atomically(options.html, std::string_view(page_of(findings)));
  if (!options.trace.empty() && !step.spans.empty())
    write_file_atomically(options.trace, std::string_view(lab::chrome_trace(step)));
}

void run_throughput(const ThroughputOptions& options) {
  const ThroughputPlan plan = plan_of(options);
  if (options.threads != kNotGiven) at::set_num_threads(static_cast<int>(options.threads));
  lab::Findings findings;
  findings.model = options.model;
  findings.size = plan.size;
  findings.parameters = count_cost(plan.config, plan.size, plan.size).parameters;
  const lab::Bench bench = measure_model(options, plan, &findings.measurements);
  findings.compute = bench.compute;
  findings.protocol = bench.protocol;
  findings.machine = describe_machine(bench.compute);
  const lab::Recording step = break_model_down(options, plan, bench, &findings);
  if (!plan.sizes.empty())
    findings.sweep =
        lab::sweep_resolutions(bench, options.model, plan.vmamba(), plan.sizes, plan.rivals);
  if (options.ladder) findings.ladder = lab::climb_ladder(bench, plan.vmamba(), plan.size);
  if (options.scan_modes)
    findings.modes =
        lab::compare_scan_modes(bench, plan.vmamba(), plan.size, static_cast<int>(plan.rounds));
  if (!plan.states.empty())
    findings.states = lab::cost_of_states(bench, plan.vmamba(), plan.size, plan.states,
                                          planned_gpu(options, bench.compute));
  print(findings, options);  // first: a full disk must not cost the measurements
  std::cout << std::flush;
  write_files(findings, step, options);
}

}  // namespace

void add_throughput(CLI::App& command) {
  auto options = std::make_shared<ThroughputOptions>();
  add_options(command, *options);
  command.footer("Networks:\n" + wrap_names(image_model_names()) + '\n');
  add_example(command,
              "linescan throughput vmamba_tiny_s1l8 --batch 8 --html report.html\n"
              "  linescan throughput vmamba_tiny_s1l8 --device cuda --precision bf16 \\\n"
              "      --sweep resolution 224,384,512,768,1024 --against attention,conv");
  command.callback([options] { run_throughput(*options); });
}

}  // namespace linescan::cli
