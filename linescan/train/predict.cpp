#include "linescan/train/predict.h"

#include <ATen/ops/log_softmax.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "linescan/base/error.h"

namespace linescan {

at::Tensor Predictor::forward(const at::Tensor& batch) const {
  const ComputeScope scope(compute_);
  return at::log_softmax(network_.forward(batch), 1, at::kFloat);
}

// `batch` is on the CPU.
at::Tensor Predictor::record_or_run(const at::Tensor& batch) {
  replayed_ = false;
  if (!may_record_) return forward(to_device(batch, compute_));
  if (!input_.defined() || input_.sizes() != batch.sizes()) {
    if (graph_) return forward(to_device(batch, compute_));  // the last one, of fewer images
    input_ = to_device(batch, compute_);
    plain_batches_ = 0;
  } else {
    input_.copy_(batch, /*non_blocking=*/true);
  }
  if (!graph_ && plain_batches_ >= kRunsBeforeRecording) {
    try {
      graph_ = gpu_runtime().record([this] { output_ = forward(input_); });
    } catch (const DeviceError&) {  // results are the same without
      may_record_ = false;
    }
  }
  if (!graph_) {
    ++plain_batches_;
    return forward(input_);
  }
  graph_->replay();
  replayed_ = true;
  return output_;
}

std::vector<float> Predictor::log_probabilities(const ImageSet& images, int64_t first,
                                                int64_t count, const BatchAssembler& assembler) {
  const at::NoGradGuard no_grad;
  const at::Tensor batch =
      empty_for_upload({count, images.channels, images.height, images.width}, at::kFloat, compute_);
  assembler.plain(images, first, count, batch.mutable_data_ptr<float>());
  const at::Tensor result = record_or_run(batch).cpu().contiguous();  // [count, classes]
  const float* values = result.const_data_ptr<float>();
  const int64_t classes = result.size(1);
  for (int64_t i = 0; i < result.numel(); ++i)
    if (std::isnan(values[i]))  // a single bad logit makes the whole row NaN
      throw_error<NotFinite>("predict: image {} has logits that are not finite",
                             first + i / classes);
  return {values, values + result.numel()};
}

}  // namespace linescan
