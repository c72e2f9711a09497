#include "linescan/train/predict.h"

#include <ATen/ops/log_softmax.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "linescan/base/error.h"

namespace linescan {

std::vector<float> log_probabilities(ImageNetworkImpl& network, const ImageSet& images,
                                     int64_t first, int64_t count, const BatchAssembler& assembler,
                                     const Compute& compute) {
  const at::NoGradGuard no_grad;
  const ComputeScope scope(compute);
  const at::Tensor input =
      empty_for_upload({count, images.channels, images.height, images.width}, at::kFloat, compute);
  assembler.plain(images, first, count, input.mutable_data_ptr<float>());
  const at::Tensor logits = network.forward(to_device(input, compute));  // [count, classes]
  const at::Tensor result = at::log_softmax(logits, 1, at::kFloat).cpu().contiguous();
  const float* values = result.const_data_ptr<float>();
  const int64_t classes = result.size(1);
  for (int64_t i = 0; i < result.numel(); ++i)
    if (std::isnan(values[i]))  // a single bad logit makes the whole row NaN
      throw_error<NotFinite>("predict: image {} has logits that are not finite",
                             first + i / classes);
  return {values, values + result.numel()};
}

}  // namespace linescan
