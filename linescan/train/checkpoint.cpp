#include "linescan/train/checkpoint.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "linescan/base/error.h"
#include "linescan/models/tensor_file.h"
#include "linescan/models/weights.h"
#include "linescan/train/checkpoint_folder.h"

namespace linescan {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kAverageFile = "ema.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";

void load_optimizer(const fs::path& path, const AdamW& optimizer) {
  const std::map<std::string, at::Tensor> stored = read_tensors(path);
  const NamedTensors wanted = optimizer.state();
  std::vector<std::string> wrong;
  for (const auto& [name, tensor] : wanted) {
    const auto found = stored.find(name);
    if (found == stored.end() || found->second.sizes() != tensor.sizes())
      wrong.push_back(fmt::format("{} [{}]", name, fmt::join(tensor.sizes(), ", ")));
  }
  if (!wrong.empty() || stored.size() != wanted.size())
    throw_error<InvalidArgument>(
        "checkpoint: {} has {} tensors, expected {}; it lacks {}", path.string(), stored.size(),
        wanted.size(), wrong.empty() ? "none" : fmt::format("{}", fmt::join(wrong, ", ")));
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : wanted) {
    at::Tensor target = tensor;
    target.copy_(stored.at(name));
  }
}

RunConfig config_of(const json& state, const fs::path& checkpoint) {
  const std::string who = (checkpoint / "state.json").string();
  if (!state.contains("config")) throw_error<InvalidArgument>("checkpoint: {} has no config", who);
  return config_from_json(state["config"], who);
}

// The weights of a verified checkpoint whose state.json is `document`.
void load_better_weights(const fs::path& checkpoint, const json& document,
                         torch::nn::Module& network) {
  const TrainingState state = state_from_json(document, (checkpoint / "state.json").string());
  const bool use_average = document["files"].contains(kAverageFile) &&
                           (state.use_average || state.best_step < 0 || state.evaluation_due);
  load_weights(network, checkpoint / (use_average ? kAverageFile : kModelFile));
}

}  // namespace

void save_checkpoint(const fs::path& checkpoints, const CheckpointTensors& tensors,
                     const TrainingState& state, const RunConfig& config, const json& data) {
  CheckpointWriter writer(checkpoints, state.step);
  save_weights(*tensors.network, writer.folder() / kModelFile);
  if (tensors.average != nullptr) save_weights(*tensors.average, writer.folder() / kAverageFile);
  write_tensors(writer.folder() / kOptimizerFile, tensors.optimizer->state());
  json document = to_json(state);
  document["config"] = to_json(config);
  document["data"] = data;
  writer.commit(std::move(document));
}

TrainingState load_checkpoint(const fs::path& checkpoint, const CheckpointTensors& tensors,
                              at::Device device) {
  const json document = read_checkpoint_state(checkpoint);
  TrainingState state = state_from_json(document, (checkpoint / "state.json").string());
  load_weights(*tensors.network, checkpoint / kModelFile);
  if (tensors.average != nullptr) load_weights(*tensors.average, checkpoint / kAverageFile);
  load_optimizer(checkpoint / kOptimizerFile, *tensors.optimizer);
  set_generator_state(state.rng);
  if (!device.is_cpu() && !state.device_rng.empty()) set_generator_state(state.device_rng, device);
  return state;
}

RunConfig load_config(const fs::path& checkpoint) {
  return config_of(read_checkpoint_state(checkpoint), checkpoint);
}

void load_trained_weights(const fs::path& checkpoint, torch::nn::Module& network) {
  load_better_weights(checkpoint, read_checkpoint_state(checkpoint), network);
}

TrainedModel load_trained(const fs::path& checkpoint, at::Device device) {
  const json document = read_checkpoint_state(checkpoint);
  const std::string who = (checkpoint / "state.json").string();
  TrainedModel model;
  model.checkpoint = checkpoint;
  model.config = config_of(document, checkpoint);
  if (model.config.task != kImages)
    throw_error<InvalidArgument>("checkpoint: {} was trained for task {}, expected {}", who,
                                 model.config.task, kImages);
  try {
    const json& data = document.at("data");
    model.classes = data.at("classes").get<std::vector<std::string>>();
    model.normalisation = {data.at("mean"), data.at("deviation")};
    model.channels = data.at("channels");
    model.height = data.at("height");
    model.width = data.at("width");
  } catch (const json::exception& error) {
    throw_error<InvalidArgument>("checkpoint: {} does not describe its data: {}", who,
                                 error.what());
  }
  model.network = make_image_network(model.config.image_network());
  load_better_weights(checkpoint, document, *model.network);
  model.network->to(device);
  model.network->eval();
  return model;
}

void seed_generator(uint64_t seed, at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

std::vector<uint8_t> generator_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  const uint8_t* bytes = state.const_data_ptr<uint8_t>();
  return {bytes, bytes + state.numel()};
}

void set_generator_state(const std::vector<uint8_t>& state, at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  at::Tensor tensor = at::empty({static_cast<int64_t>(state.size())}, at::kByte);
  if (tensor.numel() != generator.get_state().numel())
    throw_error<InvalidArgument>("checkpoint: the rng of {} has {} bytes, expected {}",
                                 device.str(), state.size(), generator.get_state().numel());
  std::memcpy(tensor.mutable_data_ptr(), state.data(), state.size());
  generator.set_state(tensor);
}

}  // namespace linescan
