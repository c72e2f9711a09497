// A whole training run as a checkpoint: tensors, state and configuration, and back.
//
//   model.safetensors      the weights and buffers
//   ema.safetensors        their average, where one is kept
//   optimizer.safetensors  AdamW's moments
//   state.json             TrainingState, the configuration, what the data look like, and the
//                          sizes and hashes of the files (checkpoint_folder.h)
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "linescan/models/networks/image_network.h"
#include "linescan/train/config.h"
#include "linescan/train/image_set.h"
#include "linescan/train/optimizer.h"
#include "linescan/train/state.h"

namespace linescan {

struct CheckpointTensors {
  torch::nn::Module* network;
  torch::nn::Module* average;  // null: none
  const AdamW* optimizer;
};

// Writes checkpoints/step-N; `data` is Task::describe(). Throws IoError; what was there before stays
// good.
void save_checkpoint(const std::filesystem::path& checkpoints, const CheckpointTensors& tensors,
                     const TrainingState& state, const RunConfig& config,
                     const nlohmann::json& data);

// Verifies the checkpoint, copies its values into the tensors, wherever they are, and sets the
// generators of the CPU and, if the run was on a GPU as well, of `device`. Throws InvalidArgument
// naming the file that is missing, damaged or does not fit.
TrainingState load_checkpoint(const std::filesystem::path& checkpoint,
                              const CheckpointTensors& tensors, at::Device device = at::kCPU);

// What is needed to use a network trained on images without its data.
struct TrainedModel {
  std::filesystem::path checkpoint;
  RunConfig config;
  std::vector<std::string> classes;
  Normalisation normalisation;
  int64_t channels = 0, height = 0, width = 0;  // of the images that it was trained on
  ImageNetwork network;                         // in evaluation mode
};

// The configuration that a checkpoint was written with, verified like the rest.
RunConfig load_config(const std::filesystem::path& checkpoint);

// Fills `network` with the more accurate of weights and average, by the last evaluation before the
// checkpoint; with the average where there was none. Throws InvalidArgument like load_checkpoint.
void load_trained_weights(const std::filesystem::path& checkpoint, torch::nn::Module& network);

// The network of a run that was trained on images, with those weights; throws InvalidArgument for
// others too.
TrainedModel load_trained(const std::filesystem::path& checkpoint, at::Device device = at::kCPU);

// PyTorch's generator of a device. The CPU's draws initial weights, each device's its dropped paths.
void seed_generator(uint64_t seed, at::Device device = at::kCPU);
std::vector<uint8_t> generator_state(at::Device device = at::kCPU);
void set_generator_state(const std::vector<uint8_t>& state, at::Device device = at::kCPU);

}  // namespace linescan
