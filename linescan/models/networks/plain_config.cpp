#include "linescan/models/networks/plain_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "linescan/models/cost.h"
#include "linescan/models/layers/choice.h"
#include "linescan/models/networks/config_checks.h"

namespace linescan {
namespace {

constexpr Choice<PlainKind> kKinds[] = {{"attention", PlainKind::kAttention},
                                        {"conv", PlainKind::kConvolution}};

// Keeps the best of the configurations that it is shown.
class Search {
 public:
  explicit Search(const VMambaConfig& config)
      : size_(config.image_size),
        parameters_(static_cast<double>(count_cost(config, size_, size_).parameters)) {}

  // `unusual` is 0 for the proportions that such networks have and grows away from them; a step of it
  // counts as much as two per cent of the parameters.
  void consider(const PlainConfig& candidate, double unusual) {
    const auto parameters = static_cast<double>(count_cost(candidate, size_, size_).parameters);
    const double distance = std::abs(parameters / parameters_ - 1) + 0.02 * unusual;
    if (distance >= distance_) return;
    distance_ = distance;
    best_ = candidate;
  }

  double parameters() const { return parameters_; }
  const PlainConfig& best() const { return best_; }

 private:
  int64_t size_;
  double parameters_, distance_ = std::numeric_limits<double>::infinity();
  PlainConfig best_;
};

double octaves(double ratio) { return std::abs(std::log2(ratio)); }

void search_attention(Search& search, PlainConfig candidate) {
  constexpr double kSmallNetwork = 4e6;  // parameters; heads of 64 channels would be too few
  constexpr int64_t kDeepest = 32, kMostHeads = 32;
  const int64_t head = search.parameters() < kSmallNetwork ? 16 : 64;
  for (candidate.heads = 1; candidate.heads <= kMostHeads; ++candidate.heads)
    for (int64_t depth = 2; depth <= kDeepest; ++depth) {
      candidate.dims = {candidate.heads * head};
      candidate.depths = {depth};
      // The well-known ones are 16 to 64 channels wide for each block of their depth.
      const double unusual = octaves(static_cast<double>(candidate.dims[0]) / 32 / depth);
      for (const double ratio : {4.0, 3.5, 3.0}) {
        candidate.mlp_ratio = ratio;
        search.consider(candidate, unusual + (4 - ratio));
      }
    }
}

void search_convolution(Search& search, PlainConfig candidate, std::size_t stages) {
  constexpr int64_t kWidest = 256, kDeepest = 36;
  constexpr std::size_t kMain = 2;  // the stage that has three times as many blocks
  for (int64_t channels = 8; channels <= kWidest; channels += 8)
    for (int64_t few = 1; few <= 4; ++few)
      for (int64_t many = few; many <= kDeepest; ++many) {
        candidate.dims = {channels};
        candidate.depths.assign(stages, few);
        const bool has_main = stages > kMain;
        candidate.depths[has_main ? kMain : 0] = many;
        const double usual = has_main ? 3.0 * few : 1.0 * few;
        search.consider(candidate, octaves(many / usual) / 2 + octaves(few / 3.0) / 2);
      }
}

}  // namespace

PlainKind parse_plain_kind(std::string_view name) { return read_choice(kKinds, "rival", name); }

std::string_view name_of(PlainKind kind) { return kKinds[static_cast<int>(kind)].name; }

std::vector<Option> PlainConfig::options() {
  std::vector<Option> all = {
      {"in_channels", &in_channels, "channels of an image"},
      {"classes", &classes, "number of classes"},
      {"image_size", &image_size, "height and width that the network is made for"},
      {"patch", &patch, "pixels a grid point of the first stage"},
      {"dims", &dims, "channels; of several stages as for a VMamba"},
      {"depths", &depths, "blocks of every stage"},
      {"mlp_ratio", &mlp_ratio, "hidden channels of the MLP over channels"},
      {"drop_path", &drop_path, "stochastic depth of the last block, growing linearly from 0"},
  };
  if (kind == PlainKind::kAttention) all.push_back({"heads", &heads, "heads of the attention"});
  return all;
}

void PlainConfig::validate() const {
  expect_size("in_channels", in_channels);
  expect_size("classes", classes);
  expect_size("image_size", image_size);
  expect_size("patch", patch);
  const bool attention = kind == PlainKind::kAttention;
  if (depths.empty() || (attention && depths.size() != 1))
    throw_error<InvalidArgument>("model option depths has {} numbers, expected {}", depths.size(),
                                 attention ? "1" : "one a stage");
  if (dims.size() != 1 && dims.size() != depths.size())
    throw_error<InvalidArgument>("model option dims is {}, expected one number or {}",
                                 fmt::join(dims, ","), depths.size());
  for (const int64_t depth : depths) expect_size("depths", depth, 0);
  for (int64_t stage = 0; stage < stages(); ++stage) expect_size("dims", channels(stage));
  if (attention && (heads < 1 || dims[0] % heads != 0))
    throw_error<InvalidArgument>("model option heads is {}, expected a divisor of {} channels",
                                 heads, dims[0]);
  if (!(mlp_ratio > 0 && mlp_ratio <= 64) || hidden(0) < 1)
    throw_error<InvalidArgument>(
        "model option mlp_ratio is {}, expected above 0, up to 64, and a hidden channel",
        mlp_ratio);
  expect_probability("drop_path", drop_path);
}

int64_t PlainConfig::channels(int64_t stage) const {
  if (dims.size() > 1) return dims[stage];
  int64_t channels = dims[0];
  // Saturates far above what validate() allows, instead of overflowing.
  for (int64_t i = 0; i < stage && channels <= kLargestSize; ++i) channels *= 2;
  return channels;
}

int64_t PlainConfig::hidden(int64_t stage) const {
  return static_cast<int64_t>(mlp_ratio * static_cast<double>(channels(stage)));
}

std::vector<StageShape> stage_shapes(const PlainConfig& config, int64_t height, int64_t width) {
  std::vector<StageShape> shapes;
  int64_t rows = height / config.patch, columns = width / config.patch;
  for (int64_t stage = 0; stage < config.stages(); ++stage) {
    if (rows < 1 || columns < 1)
      throw_error<InvalidArgument>("{}: an image of {} x {} is too small, stage {} would be empty",
                                   config.kind == PlainKind::kAttention ? "vit" : "convnext",
                                   height, width, stage);
    shapes.push_back({config.channels(stage), rows, columns, config.depths[stage]});
    rows /= 2;
    columns /= 2;
  }
  return shapes;
}

PlainConfig rival_of(const VMambaConfig& config, PlainKind kind) {
  config.validate();
  PlainConfig candidate;
  candidate.kind = kind;
  candidate.in_channels = config.in_channels;
  candidate.classes = config.classes;
  candidate.image_size = config.image_size;
  candidate.drop_path = config.drop_path;
  Search search(config);
  if (kind == PlainKind::kAttention) {
    // As coarse as the VMamba's third stage, where most of its blocks are.
    candidate.patch = config.stem_stride << std::min<int64_t>(config.stages() - 1, 2);
    search_attention(search, candidate);
  } else {
    candidate.patch = config.stem_stride;
    search_convolution(search, candidate, config.depths.size());
  }
  return search.best();
}

}  // namespace linescan
