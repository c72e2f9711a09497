// linescan forward: weights and inputs from files, logits, loss and gradients to a file. Made for
// comparing the networks with other implementations.

#include <torch/torch.h>

#include <memory>

#include "linescan/cli/command.h"
#include "linescan/cli/compute_options.h"
#include "linescan/cli/output_files.h"
#include "linescan/models/networks/registry.h"
#include "linescan/models/networks/vmamba.h"
#include "linescan/models/tensor_file.h"
#include "linescan/models/weights.h"

namespace linescan::cli {
namespace {

struct ForwardRequest {
  std::string model;
  std::vector<std::string> settings;
  std::string weights, input, output;
  std::string dtype = "float32";
  ComputeOptions compute;
};

struct ForwardInput {
  at::Tensor x;       // [batch, in_channels, height, width]
  at::Tensor labels;  // [batch] int64, or undefined
};

at::ScalarType parse_dtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "float64") return at::kDouble;
  throw_error<InvalidArgument>("--dtype is '{}', expected float32 or float64", name);
}

void check_labels(const std::string& path, const ForwardInput& input, int64_t classes) {
  const at::Tensor& labels = input.labels;
  if (!at::isIntegralType(labels.scalar_type(), /*includeBool=*/false) || labels.dim() != 1 ||
      labels.size(0) != input.x.size(0))
    throw_error<InvalidArgument>("{}: labels is {}, expected integers [{}], one an image", path,
                                 describe(labels), input.x.size(0));
  if (labels.size(0) == 0)
    throw_error<InvalidArgument>("{}: a loss needs at least one image, x is {}", path,
                                 describe(input.x));
  const int64_t low = labels.min().item<int64_t>(), high = labels.max().item<int64_t>();
  if (low < 0 || high >= classes)
    throw_error<InvalidArgument>("{}: labels reach from {} to {}, expected 0 to {}", path, low,
                                 high, classes - 1);
}

ForwardInput read_input(const std::string& path, at::ScalarType dtype, const VMambaConfig& config) {
  auto tensors = read_tensors(path);
  for (const auto& [name, tensor] : tensors)
    if (name != "x" && name != "labels")
      throw_error<InvalidArgument>("{}: unexpected tensor '{}', expected x and labels", path, name);
  if (!tensors.contains("x"))
    throw_error<InvalidArgument>("{}: there is no tensor x, expected x and perhaps labels", path);
  ForwardInput input;
  input.x = tensors["x"];
  if (input.x.scalar_type() != dtype || input.x.dim() != 4 || input.x.size(1) != config.in_channels)
    throw_error<InvalidArgument>("{}: x is {}, expected {} [batch, {}, height, width]", path,
                                 describe(input.x), c10::getDtypeNames(dtype).first,
                                 config.in_channels);
  if (tensors.contains("labels")) {
    input.labels = tensors["labels"];
    check_labels(path, input, config.classes);
    input.labels = input.labels.to(at::kLong);
  }
  return input;
}

// Module::to() would also turn the counters of batch norms into floating-point numbers.
void cast_floating_point(torch::nn::Module& module, at::ScalarType dtype) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  for (at::Tensor& tensor : tensors)
    if (tensor.is_floating_point()) tensor.set_data(tensor.to(dtype));
}

void run_forward(const ForwardRequest& request) {
  VMambaConfig config = named_model(request.model);
  for (const std::string& setting : request.settings)
    set_option(config.options(), "model option", setting);
  const at::ScalarType dtype = parse_dtype(request.dtype);
  expect_writable("--output", request.output);
  expect_different("--output", request.output, "--weights", request.weights);
  expect_different("--output", request.output, "--input", request.input);
  const Compute compute = request.compute.open();
  if (config.backbone)
    throw_error<InvalidArgument>("forward: backbone=true has no classifier, hence no logits");
  VMamba model(config);
  cast_floating_point(*model, dtype);
  load_weights(*model, request.weights);
  model->to(compute.device);
  model->eval();
  const ForwardInput input = read_input(request.input, dtype, config);
  const at::Tensor x = to_device(input.x, compute);
  const auto run = [&] {
    const ComputeScope scope(compute);
    return model->forward(x).to(dtype);
  };

  NamedTensors results;
  if (!input.labels.defined()) {
    torch::NoGradGuard no_grad;
    results.emplace_back("logits", run());
  } else {
    const at::Tensor logits = run();
    const at::Tensor loss = at::cross_entropy_loss(logits, to_device(input.labels, compute));
    loss.backward();
    results.emplace_back("logits", logits);
    results.emplace_back("loss", loss);
    for (const auto& item : model->named_parameters()) {
      const at::Tensor& gradient = item.value().grad();
      results.emplace_back("grad." + item.key(),
                           gradient.defined() ? gradient : at::zeros_like(item.value()));
    }
  }
  write_tensors(request.output, results);
  for (const auto& [name, tensor] : results)
    if (!at::isfinite(tensor).all().item<bool>())
      throw_error<NotFinite>("forward: {} has numbers that are not finite; all results are in {}",
                             name, request.output);
}

}  // namespace

void add_forward(CLI::App& command) {
  auto request = std::make_shared<ForwardRequest>();
  command.add_option("model", request->model, "name of the network")->required();
  command.add_option("--set", request->settings, "change an option of the network: key=value")
      ->allow_extra_args(false);
  command.add_option("--weights", request->weights, "safetensors file with all weights")
      ->required();
  command
      .add_option("--input", request->input,
                  "safetensors: x [batch, channels, height, width], labels")
      ->required();
  command
      .add_option("--output", request->output, "logits; with labels also loss and grad.<parameter>")
      ->required();
  command.add_option("--dtype", request->dtype, "type to compute in: float32 or float64");
  add_compute_options(command, request->compute);
  add_example(command,
              "linescan forward vmamba_fashion --weights model.safetensors \\\n"
              "      --input batch.safetensors --output result.safetensors");
  command.callback([request] { run_forward(*request); });
}

}  // namespace linescan::cli
