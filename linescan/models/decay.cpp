#include "linescan/models/decay.h"

namespace linescan {

bool has_weight_decay(std::string_view name, const at::Tensor& parameter, bool honour_marks) {
  const std::string_view last = name.substr(name.rfind('.') + 1);  // npos + 1 == 0: all of it
  if (parameter.dim() <= 1 || last == "bias" || last.ends_with("_bias") || last == "pos_embed")
    return false;
  return !(honour_marks && (last == "A_logs" || last == "Ds"));
}

DecayGroups decay_groups(const torch::nn::Module& module, bool honour_marks) {
  DecayGroups groups;
  for (const auto& item : module.named_parameters()) {
    const bool decayed = has_weight_decay(item.key(), item.value(), honour_marks);
    (decayed ? groups.decayed : groups.plain).push_back(item.value());
    (decayed ? groups.decayed_names : groups.plain_names).push_back(item.key());
  }
  return groups;
}

}  // namespace linescan
