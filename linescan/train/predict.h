// From images to class probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linescan/binding/gpu_runtime.h"
#include "linescan/models/compute.h"
#include "linescan/models/networks/image_network.h"
#include "linescan/train/batch.h"
#include "linescan/train/image_set.h"

namespace linescan {

// Applies a network to batch after batch, without gradients, in the mode that it is in: call eval() first. On a GPU a few batches of
// one size run as they are, then those of that size as a recorded CUDA graph; weights may change in place meanwhile.
class Predictor {
 public:
  // The network is on the device of `compute` and outlives the object. graph: whether there may be one.
  Predictor(ImageNetworkImpl& network, const Compute& compute, bool graph = true)
      : network_(network), compute_(compute), may_record_(graph && compute.on_gpu()) {}

  // Log-probabilities [count, classes] of images [first, first + count). Throws NotFinite naming the image whose logits are NaN
  // or infinite.
  std::vector<float> log_probabilities(const ImageSet& images, int64_t first, int64_t count,
                                       const BatchAssembler& assembler);

  // Whether the last batch was a replay.
  bool replayed() const { return replayed_; }

 private:
  ImageNetworkImpl& network_;
  Compute compute_;
  bool may_record_, replayed_ = false;
  int64_t plain_batches_ = 0;  // of the size of input_, one after the other
  at::Tensor input_, output_;  // on the GPU; where the graph reads and writes them
  std::unique_ptr<RecordedWork> graph_;

  at::Tensor forward(const at::Tensor& batch) const;
  at::Tensor record_or_run(const at::Tensor& batch);
};

}  // namespace linescan
