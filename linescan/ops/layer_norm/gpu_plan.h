// How layer_norm will run on a GPU: a plain value, made by a pure function, printable without
// running anything.
#pragma once

#include <cstdint>

#include "linescan/base/dtype.h"
#include "linescan/base/string_forward.h"
#include "linescan/ops/pass.h"

namespace linescan {

struct Gpu;

struct LayerNormSize {
  int64_t rows = 0, channels = 0;
  DType dtype = DType::kFloat32;      // of x
  DType out_dtype = DType::kFloat32;  // of the result, and of the gradient that comes for it
  bool vectors = true;                // addresses are multiples of 16 bytes
  bool skip = false;                  // a second gradient is added in the backward pass

  bool operator==(const LayerNormSize&) const = default;
};

// Numbers that a thread moves at once.
inline constexpr int kNormVector = 8;

struct LayerNormGpuPlan {
  static constexpr const char* kOperator = "layer_norm";

  Pass pass = Pass::kForward;
  int64_t lanes = 0;  // neighbouring threads that share a row
  // Vectors of a row that a thread keeps in registers; 0: the row is read again where it is needed,
  // one number at a time.
  int64_t vectors = 0;
  int64_t block = 0, grid = 0;
  int64_t rows_a_block = 0;  // at once; a block takes every grid-th group of rows
  int64_t shared_bytes = 0;
  int64_t workspace_bytes = 0;  // backward: the blocks' sums for weight and bias

  int64_t bytes = 0;  // every input read once, every output written once

  bool operator==(const LayerNormGpuPlan&) const = default;
};

LayerNormGpuPlan plan(const LayerNormSize& size, Pass pass, const Gpu& gpu);

std::string to_string(const LayerNormGpuPlan& plan);

}  // namespace linescan
