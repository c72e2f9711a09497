#include "linescan/train/image_task.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "linescan/models/networks/image_network.h"
#include "linescan/train/non_finite.h"

namespace linescan {

ImageTask::ImageTask(const RunConfig& config, Dataset data)
    : config_(config), data_(std::move(data)), assembler_(data_.normalisation) {}

Network ImageTask::make_network() const {
  const ImageNetwork network = make_image_network(config_.image_network());
  return {network, [network](const at::Tensor& images) { return network->forward(images); }};
}

Batch ImageTask::batch(std::span<const int64_t> indices, int64_t epoch,
                       const Compute& compute) const {
  const ImageSet& images = data_.train;
  const Recipe& recipe = config_.recipe;
  const auto count = static_cast<int64_t>(indices.size());
  const Batch batch = {
      empty_for_upload({count, images.channels, images.height, images.width}, at::kFloat, compute),
      empty_for_upload({count}, at::kLong, compute)};
  assembler_.augmented(images, indices, {recipe.flip, recipe.shift}, recipe.seed, epoch,
                       batch.inputs.mutable_data_ptr<float>());
  int64_t* label = batch.labels.mutable_data_ptr<int64_t>();
  for (int64_t index : indices) *label++ = images.labels[index];
  return batch;
}

std::optional<Evaluation> ImageTask::evaluate(Network& network, Split split,
                                              const EvaluationSettings& settings) const {
  auto& image_network = dynamic_cast<ImageNetworkImpl&>(*network.module);
  const ImageSet& images = split == Split::kTest ? data_.test : data_.held_out;
  return linescan::evaluate(image_network, images, assembler_, settings);
}

nlohmann::json ImageTask::document(const Evaluation& evaluation) const {
  return evaluation_document(evaluation, data_.test, data_.classes);
}

std::string ImageTask::find_non_finite(Network& network, const at::Tensor& inputs) const {
  return linescan::find_non_finite(*network.module, inputs, network.forward);
}

nlohmann::json ImageTask::describe() const {
  return {{"classes", data_.classes},
          {"mean", data_.normalisation.mean},
          {"deviation", data_.normalisation.deviation},
          {"channels", data_.train.channels},
          {"height", data_.train.height},
          {"width", data_.train.width}};
}

std::string ImageTask::summary() const {
  return fmt::format("{} images of {}, {} held out", data_.train.count, config_.data,
                     data_.held_out.count);
}

}  // namespace linescan
