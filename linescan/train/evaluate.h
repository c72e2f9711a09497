// How well a network does on labelled images, and the figures that say so for any task.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "linescan/models/compute.h"
#include "linescan/models/networks/image_network.h"
#include "linescan/train/batch.h"
#include "linescan/train/image_set.h"

namespace linescan {

// An image whose label the network got wrong.
struct Mistake {
  int64_t index = 0;  // in the image set
  int64_t label = 0;
  int64_t predicted = 0;
  double probability = 0;  // that the network gives its answer
};

struct Evaluation {
  int64_t examples = 0;       // images, or answers about sequences
  double loss = 0;            // mean cross entropy, without label smoothing
  double top1 = 0, top5 = 0;  // 0..1; top5 counts the label among the five likeliest classes
  // Of images only:
  std::vector<std::vector<int64_t>> confusion;  // [true class][predicted class]
  std::vector<Mistake> mistakes;                // the most confident first
};

struct EvaluationSettings {
  int64_t batch = 128;
  int64_t mistakes = 0;             // how many to keep
  std::function<bool()> stop = {};  // asked before every batch
  Compute compute = {};             // where the network is
  bool graph = true;                // on a GPU: batches of images as a recorded CUDA graph
};

// Evaluation mode of a network for as long as the object lives.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& network)
      : network_(network), was_training_(network.is_training()) {
    network_.eval();
  }
  ~EvaluationMode() { network_.train(was_training_); }
  EvaluationMode(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& network_;
  bool was_training_;
};

// Runs the network in evaluation mode and without gradients; its mode is restored. `images` must be
// of the network's size and have labels below its number of classes. Empty if `stop` said so.
std::optional<Evaluation> evaluate(ImageNetworkImpl& network, const ImageSet& images,
                                   const BatchAssembler& assembler,
                                   const EvaluationSettings& settings);

// {"top1", "top5", "loss", "images", "confusion"}
nlohmann::json to_json(const Evaluation& evaluation);

// The same with {"classes": names, "mistakes": [{"index", "label", "predicted", "probability",
// "png_base64"}]}: the content of a run's evaluation.json.
nlohmann::json evaluation_document(const Evaluation& evaluation, const ImageSet& images,
                                   const std::vector<std::string>& classes);

}  // namespace linescan
