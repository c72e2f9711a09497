#include "linescan/models/networks/language_model_config.h"

#include "linescan/models/networks/config_checks.h"

namespace linescan {

std::vector<Option> LanguageModelConfig::options() {
  return {
      {"hidden", &hidden, "channels of the blocks"},
      {"layers", &layers, "blocks"},
      {"heads", &heads, "query and key heads of a layer"},
      {"value_heads", &value_heads, "value heads, a multiple of heads; 0: as many"},
      {"head_dim", &head_dim, "size of a query or key head"},
      {"expand_v", &expand_v, "size of a value head as a multiple of head_dim"},
      {"conv_size", &conv_size, "tokens that the short convolutions see, 2 to 4"},
      {"short_conv", &short_conv, "convolutions before the recurrence"},
      {"gate", &gate, "gate behind the recurrence"},
      {"allow_neg_eigval", &allow_neg_eigval, "negative eigenvalues of the state's transitions"},
      {"mlp_ratio", &mlp_ratio, "hidden channels of the gated MLP over channels; 0: no MLP"},
  };
}

void LanguageModelConfig::validate() const {
  expect_size("hidden", hidden);
  expect_size("layers", layers);
  expect_size("heads", heads);
  expect_size("value_heads", value_heads, 0);
  expect_size("head_dim", head_dim);
  if (!(expand_v > 0 && expand_v <= kLargestRatio))
    throw_error<InvalidArgument>("model option expand_v is {}, expected a positive number up to {}",
                                 expand_v, kLargestRatio);
  expect_ratio("mlp_ratio", mlp_ratio);
}

}  // namespace linescan
