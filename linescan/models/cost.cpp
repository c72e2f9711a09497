#include "linescan/models/cost.h"

#include <initializer_list>

#include "linescan/base/error.h"
#include "linescan/base/math.h"
#include "linescan/models/layers/downsample.h"
#include "linescan/models/layers/patch_embed.h"

namespace linescan {
namespace {

// sum += product of the factors, without overflow.
void add_product(int64_t& sum, std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  bool overflow = false;
  for (int64_t factor : factors) overflow |= __builtin_mul_overflow(product, factor, &product);
  overflow |= __builtin_add_overflow(sum, product, &sum);
  if (overflow) throw_error<InvalidArgument>("the cost of this network exceeds 64 bits");
}

// Adds up layers; `points` is the number of grid points at which a layer gives a result.
class Counter {
 public:
  explicit Counter(bool batch_norm) : batch_norm_(batch_norm) {}

  void parameters(std::initializer_list<int64_t> factors) { add_product(parameters_, factors); }
  void multiply_adds(std::initializer_list<int64_t> factors) {
    add_product(multiply_adds_, factors);
  }

  void linear(int64_t points, int64_t inputs, int64_t outputs, bool bias) {
    parameters({inputs, outputs});
    if (bias) parameters({outputs});
    multiply_adds({points, inputs, outputs});
  }
  void convolution(int64_t points, int64_t inputs, int64_t outputs, int64_t kernel) {
    linear(points, inputs * kernel * kernel, outputs, /*bias=*/true);
  }
  void depthwise(int64_t points, int64_t channels, int64_t kernel, bool bias) {
    linear(points, kernel * kernel, channels, bias);
  }
  void layer_norm(int64_t points, int64_t channels) {
    parameters({2, channels});
    multiply_adds({5, points, channels});
  }
  void norm(int64_t points, int64_t channels) {
    if (!batch_norm_) return layer_norm(points, channels);
    parameters({2, channels});
    multiply_adds({2, points, channels});
  }

  int64_t total_parameters() const { return parameters_; }
  int64_t total_multiply_adds() const { return multiply_adds_; }

 private:
  bool batch_norm_;
  int64_t parameters_ = 0, multiply_adds_ = 0;
};

void count_stem(Counter& counter, const VMambaConfig& config, int64_t height, int64_t width) {
  const StemKind kind = parse_stem(config.stem);
  const int64_t channels = config.channels(0), half = channels / 2;
  const StageShape grid = stage_shapes(config, height, width).front();
  const int64_t points = grid.height * grid.width;
  if (kind == StemKind::kPatches) {
    counter.convolution(points, config.in_channels, channels, config.stem_stride);
  } else {
    const int64_t stride = first_stride(config.stem_stride);
    const int64_t between = ceil_div(height, stride) * ceil_div(width, stride);
    counter.convolution(between, config.in_channels, half, 3);
    if (config.patch_norm) counter.norm(between, half);
    counter.convolution(points, half, channels, 3);
  }
  if (config.patch_norm) counter.norm(points, channels);
  if (config.pos_embed) {
    const StageShape made = stage_shapes(config, config.image_size, config.image_size).front();
    counter.parameters({channels, made.height, made.width});
  }
}

void count_op(Counter& counter, const VMambaConfig& config, int64_t stage, int64_t points) {
  const ForwardType type = config.type();
  const int64_t channels = config.channels(stage), inner = config.inner(stage);
  const int64_t rank = config.rank(stage), scanned = kRouteGroups * inner;
  counter.linear(points, channels, type.gate == Gate::kNone ? inner : 2 * inner, /*bias=*/false);
  if (config.kernel() > 0)
    counter.depthwise(points, inner, config.kernel(), config.has_conv_bias());

  counter.linear(points, inner, kRouteGroups * (rank + 2 * config.states), /*bias=*/false);
  counter.linear(points, rank, scanned, /*bias=*/true);  // the time steps
  counter.parameters({scanned, config.states + 1});      // A and D
  counter.multiply_adds({points, scanned, 9 * config.states + 1});
  // The norms without parameters before both scans.
  if (type.routes == Routes::kCascade) counter.multiply_adds({2, 5, points, inner});

  const bool norm = type.out_norm == OutNorm::kLayerNorm,
             convolution = type.out_norm == OutNorm::kDepthwise,
             both = type.out_norm == OutNorm::kLayerNormDepthwise;
  if (norm || both) counter.layer_norm(points, inner);
  if (convolution || both) counter.depthwise(points, inner, 3, /*bias=*/false);
  counter.linear(points, inner, channels, /*bias=*/false);
}

void count_block(Counter& counter, const VMambaConfig& config, int64_t stage, int64_t points) {
  const int64_t channels = config.channels(stage), hidden = config.hidden(stage);
  if (config.inner(stage) > 0) {
    counter.norm(points, channels);
    count_op(counter, config, stage, points);
  }
  if (hidden > 0) {
    counter.norm(points, channels);
    counter.linear(points, channels, config.gmlp ? 2 * hidden : hidden, /*bias=*/true);
    counter.linear(points, hidden, channels, /*bias=*/true);
  }
}

void count_downsample(Counter& counter, DownsampleKind kind, int64_t points, int64_t inputs,
                      int64_t outputs) {
  switch (kind) {
    case DownsampleKind::kNone:
      break;
    case DownsampleKind::kMerge:
      counter.norm(points, 4 * inputs);
      counter.linear(points, 4 * inputs, outputs, /*bias=*/false);
      break;
    default:
      counter.convolution(points, inputs, outputs, kind == DownsampleKind::kOverlapping ? 3 : 2);
      counter.norm(points, outputs);
  }
}

void count_mlp(Counter& counter, int64_t points, int64_t channels, int64_t hidden) {
  counter.linear(points, channels, hidden, /*bias=*/true);
  counter.linear(points, hidden, channels, /*bias=*/true);
}

void count_attention_block(Counter& counter, const PlainConfig& config, int64_t points) {
  const int64_t channels = config.channels(0);
  counter.layer_norm(points, channels);
  counter.linear(points, channels, 3 * channels, /*bias=*/true);
  counter.multiply_adds({2, points, points, channels});
  counter.linear(points, channels, channels, /*bias=*/true);
  counter.layer_norm(points, channels);
  count_mlp(counter, points, channels, config.hidden(0));
}

void count_convolution_block(Counter& counter, const PlainConfig& config, int64_t stage,
                             int64_t points) {
  const int64_t channels = config.channels(stage);
  counter.depthwise(points, channels, /*kernel=*/7, /*bias=*/true);
  counter.layer_norm(points, channels);
  count_mlp(counter, points, channels, config.hidden(stage));
  counter.depthwise(points, channels, /*kernel=*/1, /*bias=*/false);  // the scale of the branch
}

}  // namespace

Cost count_cost(const VMambaConfig& config, int64_t height, int64_t width) {
  config.validate();
  Cost cost;
  cost.stages = stage_shapes(config, height, width);
  Counter counter(config.norm == "bn");
  count_stem(counter, config, height, width);
  for (std::size_t stage = 0; stage < cost.stages.size(); ++stage) {
    const StageShape& shape = cost.stages[stage];
    const int64_t points = shape.height * shape.width;
    for (int64_t block = 0; block < shape.blocks; ++block)
      count_block(counter, config, static_cast<int64_t>(stage), points);
    if (config.backbone) counter.norm(points, shape.channels);
    if (stage + 1 == cost.stages.size()) break;
    const StageShape& next = cost.stages[stage + 1];
    count_downsample(counter, parse_downsample(config.downsample), next.height * next.width,
                     shape.channels, next.channels);
  }
  if (!config.backbone) {
    const StageShape& last = cost.stages.back();
    counter.norm(last.height * last.width, last.channels);
    counter.multiply_adds({last.height, last.width, last.channels});  // average pool
    counter.linear(1, last.channels, config.classes, /*bias=*/true);
  }
  cost.parameters = counter.total_parameters();
  cost.multiply_adds = counter.total_multiply_adds();
  return cost;
}

Cost count_cost(const PlainConfig& config, int64_t height, int64_t width) {
  config.validate();
  const bool attention = config.kind == PlainKind::kAttention;
  Cost cost;
  cost.stages = stage_shapes(config, height, width);
  Counter counter(/*batch_norm=*/false);
  for (std::size_t stage = 0; stage < cost.stages.size(); ++stage) {
    const StageShape& shape = cost.stages[stage];
    const int64_t points = shape.height * shape.width;
    if (stage == 0)
      counter.convolution(points, config.in_channels, shape.channels, config.patch);
    else
      counter.convolution(points, cost.stages[stage - 1].channels, shape.channels, 2);
    if (!attention) {
      const StageShape& normed = cost.stages[stage == 0 ? 0 : stage - 1];
      counter.layer_norm(normed.height * normed.width, normed.channels);
    }
    for (int64_t block = 0; block < shape.blocks; ++block) {
      if (attention)
        count_attention_block(counter, config, points);
      else
        count_convolution_block(counter, config, static_cast<int64_t>(stage), points);
    }
  }
  const StageShape& last = cost.stages.back();
  const int64_t points = last.height * last.width;
  if (attention) {
    const StageShape made = stage_shapes(config, config.image_size, config.image_size).front();
    counter.parameters({made.channels, made.height, made.width});  // position embedding
  }
  counter.layer_norm(attention ? points : 1, last.channels);
  counter.multiply_adds({points, last.channels});  // average pool
  counter.linear(1, last.channels, config.classes, /*bias=*/true);
  cost.parameters = counter.total_parameters();
  cost.multiply_adds = counter.total_multiply_adds();
  return cost;
}

}  // namespace linescan
