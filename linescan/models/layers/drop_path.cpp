#include "linescan/models/layers/drop_path.h"

#include <torch/torch.h>

namespace linescan {

at::Tensor add_branch(const at::Tensor& residual, at::Tensor branch, double rate, bool training) {
  if (!training || rate <= 0) {
    const bool in_place =
        !at::GradMode::is_enabled() && branch.scalar_type() == residual.scalar_type();
    return in_place ? branch.add_(residual) : residual + branch;
  }
  std::vector<int64_t> sizes(branch.dim(), 1);
  sizes[0] = branch.size(0);
  at::Tensor scale = at::empty(sizes, residual.options());
  scale.bernoulli_(1 - rate);
  // In a half type 1 / (1 - rate) would be rounded before it is used; as a number it is not.
  if (residual.is_cuda())
    return at::addcmul(residual, branch.to(residual.scalar_type()), scale,
                       rate < 1 ? 1 / (1 - rate) : 0);
  if (rate < 1) scale.div_(1 - rate);
  return at::addcmul(residual, branch.to(residual.scalar_type()), scale);
}

}  // namespace linescan
