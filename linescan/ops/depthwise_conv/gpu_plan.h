// How depthwise_conv will run on a GPU: a plain value, made by a pure function, printable without
// running anything.
#pragma once

#include <cstdint>

#include "linescan/base/dtype.h"
#include "linescan/base/string_forward.h"
#include "linescan/ops/pass.h"

namespace linescan {

struct Gpu;

struct DepthwiseConvSize {
  int64_t batch = 0, height = 0, width = 0, channels = 0;
  DType dtype = DType::kFloat32;
  bool vectors = true;  // addresses are multiples of four elements
  bool silu = true;

  bool operator==(const DepthwiseConvSize&) const = default;
};

// A thread owns a few neighbouring channels and walks along a strip of the image: some columns of a
// band of rows. A block is a number of channel packs times a number of strips.
struct ConvStrips {
  int64_t vector = 0;               // channels of a thread: 4, or 1 where addresses do not allow it
  int64_t rows = 0;                 // of a band
  int64_t segment = 0;              // columns of a strip
  int64_t bands = 0, segments = 0;  // of an image
  int64_t strips = 0;               // of the batch
  int64_t packs_a_block = 0, strips_a_block = 0, block = 0;
  int64_t shared_bytes = 0;  // of a block: columns on their way
  int64_t chunks = 0;        // blocks side by side along the channels
  int64_t groups = 0;        // blocks along the strips; block g takes every groups-th set of strips

  int64_t grid() const { return chunks * groups; }
  bool operator==(const ConvStrips&) const = default;
};

struct DepthwiseConvGpuPlan {
  static constexpr const char* kOperator = "depthwise_conv";

  Pass pass = Pass::kForward;
  ConvStrips convolution;        // forward; backward: the gradient of x
  ConvStrips sums;               // backward: gradients of the activation, the weight and the bias
  int64_t activation_bytes = 0;  // backward, with SiLU: the gradient of its argument, in x's type
  int64_t workspace_bytes = 0;   // that, and behind it the blocks' sums for weight and bias

  int64_t bytes = 0;         // every input read once, every output written once
  int64_t exponentials = 0;  // one a SiLU

  bool operator==(const DepthwiseConvGpuPlan&) const = default;
};

// Rows that a thread computes at once: two share two of the four rows that they read.
inline constexpr int kConvRows = 2;
// Columns that a thread has ordered from memory while it computes: with 12 to 16 warps a
// multiprocessor they are the 30 to 60 KB under way that hide the memory's latency.
inline constexpr int kConvAhead = 4;

DepthwiseConvGpuPlan plan(const DepthwiseConvSize& size, Pass pass, const Gpu& gpu);

std::string to_string(const DepthwiseConvGpuPlan& plan);

}  // namespace linescan
