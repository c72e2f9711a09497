// Which parameters weight decay pulls towards zero.
#pragma once

#include <torch/torch.h>

#include <string>
#include <string_view>
#include <vector>

namespace linescan {

// False for one-dimensional parameters, biases of any shape and position embeddings, and with
// `honour_marks` for the A_logs and Ds of scans, which their authors marked as not to be decayed.
bool has_weight_decay(std::string_view name, const at::Tensor& parameter, bool honour_marks = true);

struct DecayGroups {
  std::vector<at::Tensor> decayed, plain;
  std::vector<std::string> decayed_names, plain_names;
};

// The parameters of a module in two groups, each in the module's order.
DecayGroups decay_groups(const torch::nn::Module& module, bool honour_marks = true);

}  // namespace linescan
