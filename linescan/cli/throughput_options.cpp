#include "linescan/cli/throughput_options.h"

#include <algorithm>

#include "linescan/base/error.h"
#include "linescan/cli/command.h"
#include "linescan/cli/output_files.h"
#include "linescan/device/gpu.h"
#include "linescan/models/compute.h"

namespace linescan::cli {
namespace {

void expect_if_given(const char* name, int64_t value, int64_t least, int64_t most = kLargestCount) {
  if (value != kNotGiven) expect_within(name, value, least, most);
}

int64_t given_or(int64_t value, int64_t otherwise) {
  return value == kNotGiven ? otherwise : value;
}

// "a,b,c"; an empty part is refused.
std::vector<std::string> parts_of(const char* name, const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char letter : text) {
    if (letter == ',')
      parts.emplace_back();
    else
      parts.back() += letter;
  }
  for (const std::string& part : parts)
    if (part.empty() || std::count(parts.begin(), parts.end(), part) > 1)
      throw_error<InvalidArgument>("{} is '{}', expected different values separated by commas",
                                   name, text);
  return parts;
}

std::vector<int64_t> numbers_of(const char* name, const std::string& text, int64_t most) {
  std::vector<int64_t> numbers;
  set_option(std::vector<Option>{{name, &numbers, ""}}, "option", name, text);
  for (const int64_t number : numbers) expect_within(name, number, 1, most);
  return numbers;
}

bool needs_vmamba(const ThroughputOptions& options) {
  return !options.sweep.empty() || options.ladder || options.scan_modes || !options.states.empty();
}

void check(const ThroughputOptions& options) {
  expect_within("--warmup", options.warmup, 0, kLargestCount);
  expect_within("--repetitions", options.repetitions, 1, kLargestCount);
  expect_if_given("--rounds", options.rounds, 2);
  expect_if_given("--batch", options.batch, 1);
  expect_if_given("--size", options.size, 1, kLargestImage);
  expect_if_given("--threads", options.threads, 1, kMostThreads);
  if (!options.html.empty()) expect_writable("--html", options.html);
  if (!options.trace.empty()) expect_writable("--trace", options.trace);
  if (!options.html.empty() && !options.trace.empty())
    expect_different("--html", options.html, "--trace", options.trace);
  if (options.json && options.csv)
    throw_error<InvalidArgument>("--json and --csv: standard output holds one of them");
  if (!options.sweep.empty() && (options.sweep[0] != "resolution" || options.sweep.size() != 2))
    throw_error<InvalidArgument>("--sweep is '{}', expected resolution and a list of sizes",
                                 options.sweep[0]);
  if (!options.against.empty() && options.sweep.empty())
    throw_error<InvalidArgument>("--against: expected --sweep resolution with it");
  if (!options.plan_device.empty() && options.states.empty())
    throw_error<InvalidArgument>("--plan-device: expected --states with it");
  if (options.rounds != kNotGiven && !options.scan_modes)
    throw_error<InvalidArgument>("--rounds: expected --scan-modes with it");
  if (options.graph && options.device == "cpu")
    throw_error<InvalidArgument>("--graph: expected --device cuda with it");
  if (!options.plan_device.empty()) find_gpu(options.plan_device);
}

// A name that is left empty, as by a shell variable that is not set.
std::string expect_name(const std::string& text) {
  return text.empty() ? "expected the name of a file" : "";
}

}  // namespace

void add_options(CLI::App& command, ThroughputOptions& options) {
  command.add_option("model", options.model, "name of the network (below)")->required();
  command.add_option("--set", options.settings, "change an option of the network: key=value")
      ->allow_extra_args(false);
  add_number(command, "--size", options.size, "height and width of the images in pixels");
  add_number(command, "--batch", options.batch, "images in the batch; default 8, on a GPU 128");
  command.add_option("--device", options.device, "cpu (default), cuda or cuda:N");
  command.add_option("--precision", options.precisions,
                     "fp32 (default), tf32, bf16, fp16, or several: fp32,bf16\nThe first one holds "
                     "for what is measured besides.");
  add_number(command, "--warmup", options.warmup, "steps that do not count; default 50");
  add_number(command, "--repetitions", options.repetitions, "steps that count; default 30");
  command.add_flag("--with-optimizer", options.with_optimizer, "also training with AdamW's update");
  command.add_flag("--graph", options.graph, "on a GPU: record the steps as a CUDA graph");
  add_number(command, "--threads", options.threads, "threads to use; default: all cores");
  command.add_option("--sweep", options.sweep, "image sizes: resolution 224,384,512")
      ->expected(1, 2)  // two; with one, check() says what is missing
      ->type_name("resolution SIZES");
  command.add_option("--against", options.against,
                     "in the sweep: attention, conv or both,\nnetworks with as many parameters");
  command.add_flag("--ladder", options.ladder,
                   "the publication's acceleration steps, with channels\nand classes of the model");
  command.add_flag("--scan-modes", options.scan_modes,
                   "spread of training with routes one, two, cross, cascade");
  add_number(command, "--rounds", options.rounds, "of --scan-modes; default 20");
  command.add_option("--states", options.states, "cost of the scan with so many states: 1,4,16");
  command.add_option("--plan-device", options.plan_device,
                     "GPU that --states plans for; default: the one in use,\nor h100");
  command
      .add_option("--trace", options.trace,
                  "write one training step for chrome://tracing\nor ui.perfetto.dev")
      ->check(expect_name)
      ->type_name("FILE");
  command.add_option("--html", options.html, "write a page with everything measured, in one file")
      ->check(expect_name)
      ->type_name("FILE");
  command.add_flag("--json", options.json, "one JSON document on standard output");
  command.add_flag("--csv", options.csv, "one line a measurement on standard output");
}

ThroughputPlan plan_of(const ThroughputOptions& options) {
  check(options);
  ThroughputPlan plan;
  plan.config = named_image_model(options.model);
  for (const std::string& setting : options.settings)
    set_option(options_of(plan.config), "model option", setting);
  std::visit([](const auto& config) { config.validate(); }, plan.config);
  if (const auto* vmamba = std::get_if<VMambaConfig>(&plan.config)) {
    if (vmamba->backbone)
      throw_error<InvalidArgument>(
          "model option backbone is true, expected false: a loss needs a classifier");
  } else if (needs_vmamba(options)) {
    throw_error<InvalidArgument>(
        "model is {}, expected a VMamba for --sweep, --ladder, --scan-modes and --states",
        options.model);
  }
  plan.size = given_or(options.size, image_size_of(plan.config));
  count_cost(plan.config, plan.size, plan.size);  // refuses a size that is too small
  plan.batch = given_or(options.batch, options.device == "cpu" ? 8 : 128);
  plan.rounds = given_or(options.rounds, 20);
  plan.precisions = parts_of("--precision", options.precisions);
  for (const std::string& precision : plan.precisions) parse_precision(precision);
  if (!options.sweep.empty()) plan.sizes = numbers_of("--sweep", options.sweep[1], kLargestImage);
  for (const int64_t size : plan.sizes) count_cost(plan.config, size, size);
  if (!options.against.empty())
    for (const std::string& rival : parts_of("--against", options.against))
      plan.rivals.push_back(parse_plain_kind(rival));
  for (const PlainKind rival : plan.rivals)
    for (const int64_t size : plan.sizes)
      linescan::count_cost(rival_of(plan.vmamba(), rival), size, size);
  constexpr int64_t kMostStates = 1 << 16;
  if (!options.states.empty()) plan.states = numbers_of("--states", options.states, kMostStates);
  if ((options.scan_modes || !plan.states.empty()) && plan.vmamba().inner(0) == 0)
    throw_error<InvalidArgument>(
        "model option ssm_ratio is 0, expected a network with scans for --scan-modes and --states");
  // The first comes last: it is the one in force afterwards.
  for (auto precision = plan.precisions.rbegin(); precision != plan.precisions.rend(); ++precision)
    open_compute(options.device, *precision);
  return plan;
}

}  // namespace linescan::cli
