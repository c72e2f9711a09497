// linescan bench network: images per second of inference and of training (forward, loss, backward;
// no optimiser step, no data loading), on one batch of random images.

#include <fmt/format.h>
#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <optional>

#include "linescan/binding/gpu_runtime.h"
#include "linescan/cli/bench.h"
#include "linescan/cli/command.h"
#include "linescan/cli/compute_options.h"
#include "linescan/lab/timed_work.h"
#include "linescan/models/networks/registry.h"
#include "linescan/models/networks/vmamba.h"
#include "linescan/train/machine.h"

namespace linescan::cli {
namespace {

struct BenchNetworkRequest {
  std::string model;
  ComputeOptions compute;
  std::vector<std::string> settings;
  std::optional<int64_t> size, threads;
  int64_t batch = 8;
  double seconds = 10;
  bool graph = true;
  bool json = false;
};

void check(const BenchNetworkRequest& request) {
  expect_within("--batch", request.batch, 1, kLargestCount);
  if (request.size) expect_within("--size", *request.size, 1, kLargestImage);
  if (request.threads) expect_within("--threads", *request.threads, 1, kMostThreads);
  expect_seconds("--seconds", request.seconds);
}

nlohmann::json measure_images(const BenchNetworkRequest& request, const Compute& compute,
                              const std::function<void()>& work,
                              const std::function<void()>& before = {}) {
  const lab::Repetition repetition = {.warmup = compute.on_gpu() ? 5 : 2,
                                      .seconds = request.seconds,
                                      .graph = request.graph && compute.on_gpu()};
  const lab::Timed timed = lab::time_work(
      compute, repetition, work, before,
      [](const std::string& text) { std::cerr << "linescan: warning: " << text << '\n'; });
  nlohmann::json document = lab::to_json(timed, compute);
  document["images_per_s"] = static_cast<double>(request.batch) / timed.seconds.median;
  return document;
}

void print_network(const char* name, const nlohmann::json& row) {
  std::cout << fmt::format("{:<10}{:>8.2f} images/s {:>9.1f} ms ({:.1f} to {:.1f}) {:>7.0f} MB{}\n",
                           name, row["images_per_s"].get<double>(), row["ms_median"].get<double>(),
                           row["ms_p10"].get<double>(), row["ms_p90"].get<double>(),
                           row["peak_mb"].get<double>(),
                           row.value("graph", false) ? ", CUDA graph" : "");
}

// Inference and training of a network on one batch of random images.
std::pair<nlohmann::json, nlohmann::json> measure_network(const BenchNetworkRequest& request,
                                                          const Compute& compute,
                                                          const VMambaConfig& config,
                                                          int64_t size) {
  torch::manual_seed(0);
  VMamba network(config);
  network->to(compute.device);
  const at::Tensor images =
      to_device(torch::randn({request.batch, config.in_channels, size, size}), compute);
  const at::Tensor labels = to_device(torch::randint(config.classes, {request.batch}), compute);

  network->eval();
  nlohmann::json inference;
  {
    const ComputeScope scope(compute);  // one for all runs: weights are cast once, as in serving
    inference = measure_images(request, compute, [&] {
      const torch::NoGradGuard no_grad;
      network->forward(images);
    });
  }
  if (compute.on_gpu()) gpu_runtime().release_unused_memory();
  network->train();
  nlohmann::json training = measure_images(
      request, compute,
      [&] {
        at::Tensor logits;
        {
          const ComputeScope scope(compute);  // weights change with every step: cast in every one
          logits = network->forward(images).to(at::kFloat);
        }
        torch::nn::functional::cross_entropy(logits, labels).backward();
      },
      [&] { network->zero_grad(); });
  return {std::move(inference), std::move(training)};
}

void run_bench_network(const BenchNetworkRequest& request) {
  check(request);
  if (request.threads) at::set_num_threads(static_cast<int>(*request.threads));
  VMambaConfig config = named_model(request.model);
  for (const std::string& setting : request.settings)
    set_option(config.options(), "model option", setting);
  const int64_t size = request.size.value_or(config.image_size);
  const Compute compute = request.compute.open();
  const auto [inference, training] = measure_network(request, compute, config, size);

  if (request.json)
    return print_json({{"model", request.model},
                       {"size", size},
                       {"batch", request.batch},
                       {"device", request.compute.device},
                       {"precision", request.compute.precision},
                       {"inference", inference},
                       {"training", training},
                       {"machine", describe_machine(compute)}});
  std::cout << fmt::format("{} at {} x {}, batch {}, {}, {}\n", request.model, size, size,
                           request.batch, request.compute.precision, describe_workers(compute));
  print_network("inference", inference);
  print_network("training", training);
}

}  // namespace

void add_bench_network(CLI::App& bench) {
  CLI::App& command = *bench.add_subcommand("network", "Time a network: inference and training");
  auto request = std::make_shared<BenchNetworkRequest>();
  command.add_option("model", request->model, "name of the network")->required();
  command.add_option("--set", request->settings, "change an option of the network: key=value")
      ->allow_extra_args(false);
  add_number(command, "--size", request->size, "height and width of the images in pixels");
  add_number(command, "--batch", request->batch, "images in the batch");
  add_compute_options(command, request->compute);
  command.add_flag("--graph,!--no-graph", request->graph,
                   "on a GPU: record the work as a CUDA graph (default)");
  add_number(command, "--threads", request->threads, "threads to use; default: all cores");
  add_number(command, "--seconds", request->seconds, "time to spend on each measurement");
  command.add_flag("--json", request->json, "one JSON document on standard output");
  add_example(command,
              "linescan bench network vmamba_tiny_s1l8 --size 224 --batch 8\n"
              "  linescan bench network vmamba_tiny_s1l8 --batch 128 --device cuda \\\n"
              "      --precision bf16");
  command.callback([request] { run_bench_network(*request); });
}

}  // namespace linescan::cli
