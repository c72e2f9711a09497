// One step of a network on a batch that stays on the device: what a throughput is measured of.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "linescan/models/compute.h"
#include "linescan/models/networks/image_network.h"
#include "linescan/train/optimizer.h"

namespace linescan::lab {

// Training is forward, loss and backward; an update by AdamW only where the name says so.
enum class StepKind { kInference, kTraining, kTrainingWithUpdate };

// "inference", "training", "training with update"
std::string_view name_of(StepKind kind);

// Forwards that a step costs: 1, or 3, as a backward pass counts for two.
int64_t passes(StepKind kind);

class Step {
 public:
  // Random images [batch, in_channels, size, size] and labels. The network, which must be on the device
  // of `compute`, is put into the mode that the kind needs.
  Step(ImageNetwork network, const ImageConfig& config, const Compute& compute, StepKind kind,
       int64_t batch, int64_t size);

  // Drops the gradients of the step before: not a part of the step.
  void prepare();
  void run();

  // Other random images at the same place in memory.
  void draw_images();

  // From now on works on the other step's images and labels, which both have in one place then.
  void share_batch(const Step& other);

 private:
  void train();

  ImageNetwork network_;
  Compute compute_;
  StepKind kind_;
  at::Tensor images_, labels_, one_, zero_, rate_;
  std::optional<AdamW> optimizer_;
  std::optional<ComputeScope> serving_;  // inference casts the weights once for all steps
};

}  // namespace linescan::lab
