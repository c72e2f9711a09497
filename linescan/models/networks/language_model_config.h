// Everything that decides what a language model of Gated DeltaNet layers looks like, as named options.
#pragma once

#include <cstdint>
#include <vector>

#include "linescan/base/options.h"

namespace linescan {

// Defaults: a model that learns small synthetic tasks on a CPU within minutes.
struct LanguageModelConfig {
  int64_t hidden = 64;
  int64_t layers = 2;
  int64_t heads = 8;
  int64_t value_heads = 0;
  int64_t head_dim = 16;
  double expand_v = 1;
  int64_t conv_size = 4;
  bool short_conv = true;
  bool gate = true;
  bool allow_neg_eigval = false;
  double mlp_ratio = 2;

  // The table for set_option() and to_json(); it points into this object.
  std::vector<Option> options();

  // Throws InvalidArgument: one line that names the option, its value and what is expected.
  void validate() const;
};

}  // namespace linescan
