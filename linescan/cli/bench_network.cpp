// linescan bench network: images per second of inference and of training (forward, loss, backward;
// no optimiser step, no data loading), on one batch of random images.

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <iostream>
#include <memory>

#include "linescan/cli/bench.h"
#include "linescan/cli/command.h"
#include "linescan/cli/timing.h"
#include "linescan/device/cpu.h"
#include "linescan/models/networks/registry.h"
#include "linescan/models/networks/vmamba.h"
#include "linescan/train/machine.h"

namespace linescan::cli {
namespace {

struct BenchNetworkRequest {
  std::string model, device = "cpu", precision = "fp32";
  std::vector<std::string> settings;
  int64_t size = 0, batch = 8, threads = 0;
  double seconds = 10;
  bool json = false;
};

// bf16 by autocast for as long as it lives; float32 otherwise.
class Precision {
 public:
  explicit Precision(bool bf16) : before_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, bf16);
    if (bf16) at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Precision() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, before_);
  }

 private:
  bool before_;
};

void check(const BenchNetworkRequest& request) {
  if (request.device != "cpu")
    throw_error<Unsupported>("--device is {}; this build has code for cpu alone", request.device);
  if (request.precision != "fp32" && request.precision != "bf16")
    throw_error<Unsupported>("--precision is {}; on the CPU there are fp32 and bf16",
                             request.precision);
  if (request.batch < 1)
    throw_error<InvalidArgument>("--batch is {}, expected 1 or more", request.batch);
  if (!(request.seconds > 0))
    throw_error<InvalidArgument>("--seconds is {}, expected more than 0", request.seconds);
  if (request.threads < 0)
    throw_error<InvalidArgument>("--threads is {}, expected 1 or more", request.threads);
}

nlohmann::json measure_images(const BenchNetworkRequest& request, const std::function<void()>& work,
                              const std::function<void()>& before = {}) {
  reset_peak_memory();
  const Timing timing = measure(request.seconds, work, before);
  nlohmann::json document = to_json(timing);
  document["images_per_s"] = static_cast<double>(request.batch) / timing.median;
  document["peak_mb"] = static_cast<double>(peak_memory()) / 1e6;
  return document;
}

void print_row(const char* name, const nlohmann::json& row) {
  std::cout << fmt::format("{:<10}{:>8.2f} images/s {:>9.1f} ms ({:.1f} to {:.1f}) {:>7.0f} MB\n",
                           name, row["images_per_s"].get<double>(), row["ms_median"].get<double>(),
                           row["ms_p10"].get<double>(), row["ms_p90"].get<double>(),
                           row["peak_mb"].get<double>());
}

void run_bench_network(const BenchNetworkRequest& request) {
  check(request);
  if (request.threads > 0) at::set_num_threads(static_cast<int>(request.threads));
  VMambaConfig config = named_model(request.model);
  for (const std::string& setting : request.settings)
    set_option(config.options(), "model option", setting);
  const int64_t size = request.size > 0 ? request.size : config.image_size;
  torch::manual_seed(0);
  VMamba network(config);
  const at::Tensor images = torch::randn({request.batch, config.in_channels, size, size});
  const at::Tensor labels = torch::randint(config.classes, {request.batch});
  const Precision precision(request.precision == "bf16");

  network->eval();
  const nlohmann::json inference = measure_images(request, [&] {
    const torch::NoGradGuard no_grad;
    network->forward(images);
  });
  network->train();
  const nlohmann::json training = measure_images(
      request,
      [&] {
        const at::Tensor logits = network->forward(images).to(at::kFloat);
        torch::nn::functional::cross_entropy(logits, labels).backward();
      },
      [&] { network->zero_grad(); });

  if (request.json)
    return print_json({{"model", request.model},
                       {"size", size},
                       {"batch", request.batch},
                       {"precision", request.precision},
                       {"inference", inference},
                       {"training", training},
                       {"machine", describe_machine()}});
  std::cout << fmt::format("{} at {} x {}, batch {}, {}, {} threads\n", request.model, size, size,
                           request.batch, request.precision, at::get_num_threads());
  print_row("inference", inference);
  print_row("training", training);
}

}  // namespace

void add_bench_network(CLI::App& bench) {
  CLI::App& command = *bench.add_subcommand("network", "Time a network: inference and training");
  auto request = std::make_shared<BenchNetworkRequest>();
  command.add_option("model", request->model, "name of the network")->required();
  command.add_option("--set", request->settings, "change an option of the network: key=value")
      ->allow_extra_args(false);
  command.add_option("--size", request->size, "height and width of the images in pixels");
  command.add_option("--batch", request->batch, "images in the batch");
  command.add_option("--device", request->device, "cpu");
  command.add_option("--precision", request->precision, "fp32 or bf16");
  command.add_option("--threads", request->threads, "threads to use; default: all cores");
  command.add_option("--seconds", request->seconds, "time to spend on each measurement");
  command.add_flag("--json", request->json, "one JSON document on standard output");
  add_example(command, "linescan bench network vmamba_tiny_s1l8 --size 224 --batch 8");
  command.callback([request] { run_bench_network(*request); });
}

}  // namespace linescan::cli
