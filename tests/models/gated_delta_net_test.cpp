// The Gated DeltaNet layer against its equations written out in plain tensor operations, one token
// after the other, in double; caches, padding, parts of batches and packed sequences against whole
// sequences; the layer on a GPU against the layer on the CPU.

#include "linescan/models/layers/gated_delta_net.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <map>

#include "linescan/base/error.h"
#include "linescan/base/out_of_memory.h"
#include "linescan/binding/gated_delta_rule.h"
#include "linescan/binding/gpu_runtime.h"
#include "linescan/models/compute.h"
#include "linescan/models/decay.h"
#include "tests/support/gpu_test.h"
#include "tests/support/messages.h"

namespace linescan {
namespace {

using Weights = std::map<std::string, at::Tensor>;

GatedDeltaNetOptions small_options() {
  return {.hidden_size = 10, .expand_v = 1.5, .head_dim = 4, .num_heads = 2, .num_v_heads = 4};
}

// The same weights in every type and on every device.
GatedDeltaNet make_layer(const GatedDeltaNetOptions& options,
                         const at::TensorOptions& on = at::kDouble) {
  torch::manual_seed(5);
  GatedDeltaNet layer(options);
  {
    const at::NoGradGuard no_grad;  // away from the values at which mistakes do not show
    for (auto& item : layer->named_parameters())
      if (item.key() == "o_norm.weight") item.value().uniform_(0.5, 1.5);
  }
  layer->to(on.device(), on.dtype().toScalarType());
  return layer;
}

Weights weights_of(const GatedDeltaNet& layer) {
  Weights weights;
  for (const auto& item : layer->named_parameters())
    weights[item.key()] = item.value().detach().clone().requires_grad_();
  return weights;
}

// y[t] = sum_j w[:, j] x[t - (width - 1) + j], then SiLU.
at::Tensor plain_convolution(const at::Tensor& x, const Weights& weights, const std::string& name) {
  if (!weights.contains(name + ".weight")) return at::silu(x);
  const at::Tensor weight = weights.at(name + ".weight").squeeze(1);
  const int64_t width = weight.size(1);
  std::vector<at::Tensor> tokens;
  for (int64_t t = 0; t < x.size(1); ++t) {
    at::Tensor sum = at::zeros_like(x.select(1, 0));
    for (int64_t tap = 0; tap < width; ++tap)
      if (const int64_t from = t - (width - 1) + tap; from >= 0)
        sum = sum + x.select(1, from) * weight.select(1, tap);
    if (weights.contains(name + ".bias")) sum = sum + weights.at(name + ".bias");
    tokens.push_back(sum / (1 + at::exp(-sum)));
  }
  return at::stack(tokens, 1);
}

at::Tensor plain_layer(const at::Tensor& x, const Weights& weights,
                       const GatedDeltaNetOptions& options) {
  const int64_t heads = options.num_heads, value_heads = options.value_heads();
  const auto product = [&](const char* name) { return at::matmul(x, weights.at(name).t()); };
  const auto mixed = [&](const char* projection, const char* convolution, int64_t count) {
    return plain_convolution(product(projection), weights, convolution).unflatten(-1, {count, -1});
  };
  at::Tensor q = mixed("q_proj.weight", "q_conv1d", heads);
  at::Tensor k = mixed("k_proj.weight", "k_conv1d", heads);
  const at::Tensor v = mixed("v_proj.weight", "v_conv1d", value_heads);
  const auto unit = [](const at::Tensor& t) {
    return t / at::sqrt((t * t).sum(-1, /*keepdim=*/true) + 1e-6);
  };
  q = unit(q).repeat_interleave(value_heads / heads, 2);
  k = unit(k).repeat_interleave(value_heads / heads, 2);
  const at::Tensor beta =
      (options.allow_neg_eigval ? 2 : 1) / (1 + at::exp(-product("b_proj.weight")));
  const at::Tensor g = -at::exp(weights.at("A_log")) *
                       at::log(1 + at::exp(product("a_proj.weight") + weights.at("dt_bias")));

  at::Tensor state =
      at::zeros({x.size(0), value_heads, options.head_dim, options.value_dim()}, x.options());
  std::vector<at::Tensor> outputs;
  for (int64_t t = 0; t < x.size(1); ++t) {
    const at::Tensor key = k.select(1, t).unsqueeze(-1), query = q.select(1, t).unsqueeze(-1);
    state = state * at::exp(g.select(1, t)).unsqueeze(-1).unsqueeze(-1);
    const at::Tensor error = v.select(1, t) - (state * key).sum(2);
    state = state + key * (beta.select(1, t).unsqueeze(-1) * error).unsqueeze(2);
    outputs.push_back((state * query).sum(2) / std::sqrt(static_cast<double>(options.head_dim)));
  }
  at::Tensor o = at::stack(outputs, 1);  // [batch, length, value_heads, V]
  o = o / at::sqrt((o * o).mean(-1, /*keepdim=*/true) + options.norm_eps) *
      weights.at("o_norm.weight");
  if (options.use_gate) {
    const at::Tensor gate = product("g_proj.weight").unflatten(-1, {value_heads, -1});
    o = o * gate / (1 + at::exp(-gate));
  }
  return at::matmul(o.flatten(-2), weights.at("o_proj.weight").t());
}

void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double error = (got - expected).abs().max().item<double>();
  EXPECT_LE(error, tolerance * std::max(1.0, expected.abs().max().item<double>())) << what;
}

// |got - expected| / |expected| over a whole tensor.
double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kCPU, at::kDouble);
  return ((got.to(at::kCPU, at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

// By name, on the CPU: y and the gradients of x and of all parameters.
Weights results_of(GatedDeltaNet& layer, const at::Tensor& x, const at::Tensor& upstream,
                   const Compute& compute) {
  layer->zero_grad();
  const at::Tensor input = x.detach().to(compute.device).requires_grad_();
  at::Tensor y;
  {
    const ComputeScope scope(compute);
    y = layer->forward(input);
  }
  y.backward(upstream.to(y.options()));
  Weights results = {{"y", y.detach().cpu()}, {"x", input.grad().cpu()}};
  for (const auto& item : layer->named_parameters())
    results[item.key()] = item.value().grad().cpu();
  return results;
}

TEST(GatedDeltaNet, HasTheParametersOfThePublishedLayer) {
  const auto sizes_of = [](const GatedDeltaNetOptions& options) {
    std::map<std::string, std::vector<int64_t>> sizes;
    const GatedDeltaNet layer = make_layer(options);
    for (const auto& item : layer->named_parameters())
      sizes[item.key()] = item.value().sizes().vec();
    EXPECT_TRUE(layer->buffers().empty());
    return sizes;
  };
  std::map<std::string, std::vector<int64_t>> expected = {{"A_log", {4}},
                                                          {"dt_bias", {4}},
                                                          {"q_proj.weight", {8, 10}},
                                                          {"k_proj.weight", {8, 10}},
                                                          {"v_proj.weight", {24, 10}},
                                                          {"a_proj.weight", {4, 10}},
                                                          {"b_proj.weight", {4, 10}},
                                                          {"g_proj.weight", {24, 10}},
                                                          {"o_proj.weight", {10, 24}},
                                                          {"q_conv1d.weight", {8, 1, 4}},
                                                          {"k_conv1d.weight", {8, 1, 4}},
                                                          {"v_conv1d.weight", {24, 1, 4}},
                                                          {"o_norm.weight", {6}}};
  GatedDeltaNetOptions options = small_options();
  EXPECT_EQ(sizes_of(options), expected);
  options.conv_bias = true;
  options.use_gate = false;
  expected.erase("g_proj.weight");
  expected["q_conv1d.bias"] = expected["k_conv1d.bias"] = {8};
  expected["v_conv1d.bias"] = {24};
  EXPECT_EQ(sizes_of(options), expected);
  options.use_short_conv = false;
  for (const char* name : {"q", "k", "v"}) {
    expected.erase(std::string(name) + "_conv1d.weight");
    expected.erase(std::string(name) + "_conv1d.bias");
  }
  EXPECT_EQ(sizes_of(options), expected);
  // The published defaults: 6 hidden_size^2 parameters, give or take the small ones.
  const GatedDeltaNet published(GatedDeltaNetOptions{});
  int64_t count = 0;
  for (const at::Tensor& parameter : published->parameters()) count += parameter.numel();
  EXPECT_NEAR(static_cast<double>(count), 6.0 * 2048 * 2048, 0.005 * 6 * 2048 * 2048);
}

TEST(GatedDeltaNet, StartsFromThePublishedValuesWhichAreNotDecayed) {
  torch::manual_seed(1);
  GatedDeltaNet layer(
      GatedDeltaNetOptions{.hidden_size = 16, .head_dim = 2, .num_heads = 1000, .conv_bias = true});
  for (const auto& item : layer->named_parameters()) {
    const at::Tensor value = item.value().detach();
    if (item.key() == "A_log") {
      EXPECT_LE(at::exp(value).max().item<double>(), 16);
      EXPECT_NEAR(at::exp(value).mean().item<double>(), 8, 0.6);  // 4 deviations of 0.146
      EXPECT_FALSE(has_weight_decay(item.key(), value));
    } else if (item.key() == "dt_bias") {
      const at::Tensor step = at::softplus(value);
      EXPECT_GE(step.min().item<double>(), 0.9e-3);
      EXPECT_LE(step.max().item<double>(), 0.101);
      EXPECT_NEAR(at::log(step).mean().item<double>(), std::log(1e-2), 0.17);
      EXPECT_FALSE(has_weight_decay(item.key(), value));
    } else if (item.key().ends_with("_proj.weight")) {  // like PyTorch's Linear
      EXPECT_LE(value.abs().max().item<double>(), 1 / std::sqrt(value.size(1)));
      EXPECT_TRUE(has_weight_decay(item.key(), value));
    } else if (item.key().find("_conv1d") != std::string::npos) {
      EXPECT_LE(value.abs().max().item<double>(), 0.5);
    } else {
      EXPECT_EQ(item.key(), "o_norm.weight");
      EXPECT_TRUE(at::equal(value, at::ones_like(value)));
      EXPECT_FALSE(has_weight_decay(item.key(), value));
    }
  }
}

TEST(GatedDeltaNet, AgreesWithPlainTensorOperationsInValueAndGradients) {
  std::vector<GatedDeltaNetOptions> cases(6, small_options());
  cases[1].use_gate = false;
  cases[2].use_short_conv = false;
  cases[3].allow_neg_eigval = true;
  cases[3].conv_bias = true;
  cases[3].conv_size = 3;
  cases[4].num_v_heads = 0;
  cases[4].expand_v = 2;
  cases[4].mode = "chunk";
  cases[5].mode = "recurrent";
  for (std::size_t number = 0; number < cases.size(); ++number) {
    SCOPED_TRACE(number);
    GatedDeltaNet layer = make_layer(cases[number]);
    const Weights weights = weights_of(layer);
    const at::Tensor x = torch::randn({2, 21, 10}, at::kDouble).requires_grad_();
    const at::Tensor same = x.detach().clone().requires_grad_();
    const at::Tensor got = layer->forward(x);
    const at::Tensor expected = plain_layer(same, weights, cases[number]);
    expect_close(got, expected, 1e-12, "y");
    const at::Tensor upstream = torch::randn_like(got);
    got.backward(upstream);
    expected.backward(upstream);
    expect_close(x.grad(), same.grad(), 1e-10, "gradient of x");
    for (const auto& item : layer->named_parameters())
      expect_close(item.value().grad(), weights.at(item.key()).grad(), 1e-10, item.key());
  }
}

void expect_pieces_give_the_whole_sequence(const at::TensorOptions& on, double tolerance) {
  for (const bool short_conv : {true, false}) {
    GatedDeltaNetOptions options = small_options();
    options.use_short_conv = short_conv;
    GatedDeltaNet layer = make_layer(options, on);
    const at::Tensor x = torch::randn({3, 77, 10}, on);
    const at::Tensor whole = layer->forward(x).detach();
    for (const bool with_gradients : {false, true}) {
      const at::AutoGradMode mode(with_gradients);
      GatedDeltaNetCache cache;
      std::vector<at::Tensor> pieces;
      int64_t begin = 0;
      for (const int64_t length : {2, 1, 1, 70, 1, 2}) {
        pieces.push_back(layer->forward(x.narrow(1, begin, length), {}, &cache));
        begin += length;
        EXPECT_EQ(cache.offset, begin);
      }
      expect_close(at::cat(pieces, 1), whole, tolerance, "pieces");
    }
  }
}

TEST(GatedDeltaNet, CacheGivesTheWholeSequenceInAnyPieces) {
  expect_pieces_give_the_whole_sequence(at::kDouble, 1e-12);
}

void expect_padding_is_skipped(int64_t split_batch, const at::TensorOptions& on, double tolerance) {
  SCOPED_TRACE(split_batch);
  GatedDeltaNetOptions options = small_options();
  options.split_batch = split_batch;
  GatedDeltaNet layer = make_layer(options, on);
  const at::Tensor x = torch::randn({3, 7, 10}, on);
  const at::Tensor mask = at::ones({3, 7}, on.dtype(at::kLong));
  mask[0].narrow(0, 0, 3).zero_();  // in front, behind, and everything
  mask[1].narrow(0, 5, 2).zero_();
  mask[2].zero_();
  GatedDeltaNetCache cache;
  const at::Tensor got = layer->forward(x, mask, &cache);
  EXPECT_EQ(cache.offset, 7);
  const auto alone = [&](int64_t item, int64_t begin, int64_t length) {
    return layer->forward(x.narrow(0, item, 1).narrow(1, begin, length))[0];
  };
  expect_close(got[0].narrow(0, 3, 4), alone(0, 3, 4), tolerance, "padding in front");
  expect_close(got[1].narrow(0, 0, 5), alone(1, 0, 5), tolerance, "padding behind");
  EXPECT_EQ(got.mul(mask.eq(0).unsqueeze(-1)).abs().max().item<double>(), 0);

  // The cache stands behind the last token of each, so one token more goes on from there.
  const at::Tensor next = torch::randn({3, 1, 10}, on);
  const at::Tensor more = layer->forward(next, {}, &cache);
  const at::Tensor joined = at::cat({x.narrow(0, 1, 1).narrow(1, 0, 5), next.narrow(0, 1, 1)}, 1);
  expect_close(more[1], layer->forward(joined)[0].narrow(0, 5, 1), tolerance, "next token");
  expect_close(more[2], layer->forward(next.narrow(0, 2, 1))[0], tolerance, "first token");
}

TEST(GatedDeltaNet, PaddingIsSkippedWhereverItStands) {
  for (const int64_t split_batch : {int64_t{0}, int64_t{1}, int64_t{2}, kSplitBatchAsNeeded})
    expect_padding_is_skipped(split_batch, at::kDouble, 1e-12);
}

TEST(GatedDeltaNet, SplitBatchesEqualTheWhole) {
  GatedDeltaNetOptions options = small_options();
  GatedDeltaNet whole = make_layer(options);
  options.split_batch = 2;
  GatedDeltaNet split = make_layer(options);
  const at::Tensor x = torch::randn({5, 7, 10}, at::kDouble);
  for (const bool with_gradients : {true, false}) {
    const at::AutoGradMode mode(with_gradients);
    GatedDeltaNetCache of_whole, of_split;
    for (const auto& [begin, length] : {std::pair{0, 4}, {4, 1}, {5, 2}}) {
      const at::Tensor piece = x.narrow(1, begin, length);
      expect_close(split->forward(piece, {}, &of_split), whole->forward(piece, {}, &of_whole),
                   1e-12, "y");
    }
    EXPECT_EQ(of_split.offset, 7);
    expect_close(of_split.recurrent_state, of_whole.recurrent_state, 1e-12, "state");
  }
  whole->forward(x).square().sum().backward();
  split->forward(x).square().sum().backward();
  for (const auto& parameter : whole->named_parameters())
    expect_close(split->named_parameters()[parameter.key()].grad(), parameter.value().grad(), 1e-9,
                 parameter.key().c_str());
}

// No new tensor on the CPU may have more bytes than these. Tensors made meanwhile know it: it has
// to outlive them.
class LimitedMemory : public c10::Allocator {
 public:
  std::size_t most = std::numeric_limits<std::size_t>::max();
  int refused = 0;

  LimitedMemory() { c10::SetCPUAllocator(this); }
  ~LimitedMemory() override { c10::SetCPUAllocator(unlimited_); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes > most) {
      ++refused;
      TORCH_CHECK(false, "DefaultCPUAllocator: not enough memory: you tried to allocate ", bytes,
                  " bytes.");  // what LibTorch's own says
    }
    return unlimited_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return unlimited_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    unlimited_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* unlimited_ = c10::GetCPUAllocator();
};

TEST(GatedDeltaNet, ABatchIsSplitWhereMemoryRunsOut) {
  LimitedMemory memory;
  const at::NoGradGuard no_grad;
  GatedDeltaNetOptions options = small_options();
  GatedDeltaNet whole = make_layer(options);
  options.split_batch = kSplitBatchAsNeeded;
  GatedDeltaNet split = make_layer(options);
  constexpr int64_t kLength = 1000;
  const at::Tensor x = torch::randn({5, 2 * kLength + 1, 10}, at::kDouble);
  GatedDeltaNetCache of_whole, of_split;
  // A token comes whole: its states move in place.
  for (const auto& [begin, length] :
       {std::pair<int64_t, int64_t>{0, kLength}, {kLength, 1}, {kLength + 1, kLength}}) {
    const at::Tensor piece = x.narrow(1, begin, length);
    const at::Tensor expected = whole->forward(piece, {}, &of_whole);
    // There is room for y, of 10 channels, and for v, of 24, of two of the five sequences. What
    // comes before v has moved its states on by the time it is refused.
    memory.most = 5 * kLength * 10 * sizeof(double);
    const at::Tensor got = split->forward(piece, {}, &of_split);
    memory.most = std::numeric_limits<std::size_t>::max();
    expect_close(got, expected, 1e-12, "y");
  }
  EXPECT_EQ(memory.refused, 2);
  EXPECT_EQ(of_split.offset, of_whole.offset);
  expect_close(of_split.recurrent_state, of_whole.recurrent_state, 1e-12, "state");

  // Where there is no room for one sequence, the error goes through and the cache stays.
  const GatedDeltaNetCache before = of_split;
  memory.most = kLength * sizeof(double);
  EXPECT_THROW(split->forward(x.narrow(1, 0, kLength), {}, &of_split), c10::Error);
  memory.most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(memory.refused, 2 + 3);  // five, two and one
  EXPECT_EQ(of_split.offset, before.offset);
  EXPECT_TRUE(of_split.q_conv.is_same(before.q_conv));
  EXPECT_TRUE(of_split.recurrent_state.is_same(before.recurrent_state));
}

using Parts = std::vector<std::pair<int64_t, int64_t>>;

// The parts that get through; `refuse` throws where one does not.
Parts parts_of(
    int64_t batch, int64_t split_batch,
    const std::function<void(int64_t first, int64_t count)>& refuse = [](int64_t, int64_t) {}) {
  Parts parts;
  for_each_part(batch, split_batch, [&](int64_t first, int64_t count) {
    refuse(first, count);
    parts.emplace_back(first, count);
  });
  return parts;
}

TEST(ForEachPart, GoesThroughTheBatchInOrder) {
  EXPECT_EQ(parts_of(10, 0), (Parts{{0, 10}}));
  EXPECT_EQ(parts_of(10, 4), (Parts{{0, 4}, {4, 4}, {8, 2}}));
  EXPECT_EQ(parts_of(3, 4), (Parts{{0, 3}}));
  EXPECT_EQ(parts_of(10, kSplitBatchAsNeeded), (Parts{{0, 10}}));
  for (const int64_t split_batch : {int64_t{0}, int64_t{4}, kSplitBatchAsNeeded})
    EXPECT_EQ(parts_of(0, split_batch), (Parts{{0, 0}}));
}

TEST(ForEachPart, TriesSmallerOnesWhereMemoryRunsOut) {
  // There is memory for `most`; the refusal speaks of `fitting`.
  const auto room = [](int64_t most, int64_t fitting) {
    return [=](int64_t, int64_t count) {
      if (count > most) throw OutOfMemory("injected", fitting);
    };
  };
  const auto parts = [](const auto& refuse) { return parts_of(10, kSplitBatchAsNeeded, refuse); };
  EXPECT_EQ(parts(room(7, 7)), (Parts{{0, 7}, {7, 3}}));
  EXPECT_EQ(parts(room(3, 0)), (Parts{{0, 2}, {2, 2}, {4, 2}, {6, 2}, {8, 2}}));
  EXPECT_EQ(parts(room(5, 1)), (Parts{{0, 5}, {5, 5}}));           // no fewer than half
  EXPECT_EQ(parts(room(4, 20)), (Parts{{0, 4}, {4, 4}, {8, 2}}));  // 9, 8, .. are tried in vain
  const auto of_the_allocator = [](int64_t first, int64_t count) {
    TORCH_CHECK_WITH(OutOfMemoryError, first + count <= 8 || count == 1, "injected");
  };
  EXPECT_EQ(parts(of_the_allocator), (Parts{{0, 5}, {5, 2}, {7, 1}, {8, 1}, {9, 1}}));
}

TEST(ForEachPart, OtherErrorsGoThrough) {
  int tries = 0;
  const auto no_room = [&](int64_t, int64_t) {
    ++tries;
    throw OutOfMemory("injected");
  };
  EXPECT_THROW(parts_of(10, kSplitBatchAsNeeded, no_room), OutOfMemory);
  EXPECT_EQ(tries, 4);  // of ten, five, two and one
  EXPECT_THROW(parts_of(10, 4, no_room), OutOfMemory);
  EXPECT_EQ(tries, 5);
  const auto wrong = [&](int64_t, int64_t) {
    ++tries;
    throw InvalidArgument("injected");
  };
  EXPECT_THROW(parts_of(10, kSplitBatchAsNeeded, wrong), InvalidArgument);
  EXPECT_EQ(tries, 6);
}

TEST(GatedDeltaNet, PackedSequencesAreSequencesOnTheirOwn) {
  GatedDeltaNet layer = make_layer(small_options());
  const at::Tensor x = torch::randn({1, 11, 10}, at::kDouble);
  const at::Tensor got = layer->forward_packed(x, torch::tensor({0, 4, 4, 11}, at::kInt));
  expect_close(got.narrow(1, 0, 4), layer->forward(x.narrow(1, 0, 4)), 1e-12, "first");
  expect_close(got.narrow(1, 4, 7), layer->forward(x.narrow(1, 4, 7)), 1e-12, "last");
}

// 65 538 pairs of batch item and head: one grid dimension of a GPU ends at 65 535. Products may cut
// their sums elsewhere, so the last bits may differ.
void expect_a_large_batch_equals_its_halves(const Compute& compute, double tolerance) {
  GatedDeltaNet layer = make_layer({.hidden_size = 128, .head_dim = 16, .num_heads = 6},
                                   at::TensorOptions(at::kFloat).device(compute.device));
  const at::Tensor x = torch::randn({10923, 32, 128}), upstream = torch::randn({10923, 32, 128});
  const Weights whole = results_of(layer, x, upstream, compute);
  Weights sums;
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 5462}, {5462, 5461}}) {
    const Weights half =
        results_of(layer, x.narrow(0, begin, count), upstream.narrow(0, begin, count), compute);
    for (const auto& [name, result] : half) {
      if (name == "y" || name == "x")
        expect_close(result, whole.at(name).narrow(0, begin, count), tolerance, name);
      else
        sums[name] = sums.contains(name) ? sums[name] + result : result;
    }
  }
  for (const auto& [name, sum] : sums)
    EXPECT_LE(relative_error(sum, whole.at(name)), 10 * tolerance) << name;
}

// Takes 9 s and 4 GB.
TEST(GatedDeltaNet, ALargeBatchEqualsItsHalves) {
  expect_a_large_batch_equals_its_halves(Compute{}, 1e-5);
}

TEST(GatedDeltaNet, RunsUnderAutocast) {
  GatedDeltaNet layer = make_layer(small_options(), at::kFloat);
  const at::Tensor x = torch::randn({2, 9, 10});
  const at::Tensor wide = layer->forward(x);
  at::Tensor narrow;
  {
    const ComputeScope scope({.precision = Precision::kBf16});
    narrow = layer->forward(x);
  }
  EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
  expect_close(narrow.to(at::kFloat), wide, 0.05, "y");
  narrow.to(at::kFloat).sum().backward();
  for (const auto& item : layer->named_parameters())
    EXPECT_EQ(item.value().grad().scalar_type(), at::kFloat) << item.key();
}

TEST(GatedDeltaNet, RunsInHalfPrecision) {
  GatedDeltaNet layer = make_layer(small_options(), at::kFloat);
  const at::Tensor x = torch::randn({2, 9, 10});
  const at::Tensor wide = layer->forward(x);
  layer->to(at::kBFloat16);
  const at::Tensor narrow = layer->forward(x.to(at::kBFloat16));
  EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
  expect_close(narrow.to(at::kFloat), wide, 0.05, "y");
  narrow.sum().backward();
  for (const auto& item : layer->named_parameters())
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
}

TEST(GatedDeltaNet, ACacheIsOfAsManySequences) {
  const torch::NoGradGuard no_grad;
  for (const bool short_conv : {true, false}) {
    GatedDeltaNetOptions options = small_options();
    options.use_short_conv = short_conv;
    GatedDeltaNet layer = make_layer(options);
    GatedDeltaNetCache cache;
    layer->forward(torch::randn({2, 3, 10}, at::kDouble), {}, &cache);
    for (const int64_t length : {1, 3}) {
      const at::Tensor x = torch::randn({4, length, 10}, at::kDouble);
      EXPECT_EQ(testing::refusal_of([&] { layer->forward(x, {}, &cache); }),
                "gated_delta_net: the cache is of 2 sequences, expected 4 as x has");
      EXPECT_EQ(cache.offset, 3);
    }
  }
}

TEST(GatedDeltaNet, NamesOptionsThatDoNotFit) {
  const auto message = [](auto&& spoil) {
    GatedDeltaNetOptions options = small_options();
    spoil(options);
    return testing::refusal_of([&] { options.validate(); });
  };
  EXPECT_EQ(message([](auto&) {}), "accepted");
  EXPECT_EQ(message([](auto& o) { o.num_heads = 0; }),
            "gated_delta_net: num_heads is 0, expected 1 or more");
  EXPECT_EQ(message([](auto& o) { o.num_v_heads = 3; }),
            "gated_delta_net: num_v_heads is 3, expected a multiple of num_heads 2, or 0");
  EXPECT_EQ(message([](auto& o) { o.expand_v = 1.1; }),
            "gated_delta_net: expand_v is 1.1, expected a multiple of 1 / 4 that makes value heads "
            "of a whole size (head_dim 4)");
  EXPECT_EQ(message([](auto& o) { o.head_dim = 400; }),
            "gated_delta_net: head_dim is 400 and a value head 600, expected at most 512 for both");
  EXPECT_EQ(message([](auto& o) { o.conv_size = 5; }),
            "gated_delta_net: conv_size is 5, expected 2 to 4");
  EXPECT_EQ(message([](auto& o) { o.split_batch = kSplitBatchAsNeeded; }), "accepted");
  EXPECT_EQ(message([](auto& o) { o.split_batch = -2; }),
            "gated_delta_net: split_batch is -2, expected 0 or more, or -1 (as needed)");
  GatedDeltaNetOptions options = small_options();
  options.split_batch = 2;  // parts of a mask of too many rows would fit
  GatedDeltaNet layer = make_layer(options);
  EXPECT_THROW(layer->forward(torch::randn({2, 3, 9}, at::kDouble)), InvalidArgument);
  for (const auto& [batch, length] : {std::pair{2, 4}, {4, 3}})
    EXPECT_THROW(layer->forward(torch::randn({2, 3, 10}, at::kDouble), at::ones({batch, length})),
                 InvalidArgument);
}

// ---- On a GPU -----------------------------------------------------------------------------------

class GpuGatedDeltaNet : public GpuTest {
 protected:
  at::TensorOptions on_gpu(at::ScalarType type = at::kFloat) const {
    return at::TensorOptions(type).device(compute_.device);
  }

  // Takes the memory that is free, but for so many bytes.
  at::Tensor all_memory_but(int64_t bytes) const {
    gpu_runtime().release_unused_memory();
    const int64_t free = gpu_runtime().memory(compute_.device).free;
    return at::empty({std::max<int64_t>(free - bytes, 0)}, on_gpu(at::kByte));
  }
};

TEST_F(GpuGatedDeltaNet, AgreesWithTheCpuInValueAndGradients) {
  std::vector<GatedDeltaNetOptions> cases(2, small_options());
  cases[1].use_short_conv = cases[1].use_gate = false;
  // Heads for which there are kernels of warp groups.
  cases.push_back({.hidden_size = 96, .expand_v = 1, .head_dim = 128, .num_heads = 2});
  for (std::size_t number = 0; number < cases.size(); ++number) {
    SCOPED_TRACE(number);
    const GatedDeltaNetOptions& options = cases[number];
    GatedDeltaNet reference = make_layer(options), layer = make_layer(options, on_gpu());
    const at::Tensor x = torch::randn({3, 150, options.hidden_size});
    const at::Tensor upstream = torch::randn_like(x);
    const Weights expected = results_of(reference, x.to(at::kDouble), upstream, Compute{});
    for (const auto& [precision, tolerance] : {std::pair{"fp32", 2e-5}, {"bf16", 3e-2}}) {
      const Weights got = results_of(layer, x, upstream, open_compute("cuda", precision));
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [name, result] : got)
        EXPECT_LT(relative_error(result, expected.at(name)),
                  name == "y" ? tolerance : 5 * tolerance)
            << precision << ' ' << name;
    }
  }
}

TEST_F(GpuGatedDeltaNet, CacheGivesTheWholeSequenceInAnyPieces) {
  expect_pieces_give_the_whole_sequence(on_gpu(), 1e-4);
}

TEST_F(GpuGatedDeltaNet, PaddingIsSkippedWhereverItStands) {
  for (const int64_t split_batch : {int64_t{0}, int64_t{1}, int64_t{2}, kSplitBatchAsNeeded})
    expect_padding_is_skipped(split_batch, on_gpu(), 1e-4);
}

TEST_F(GpuGatedDeltaNet, ALargeBatchEqualsItsHalves) {
  expect_a_large_batch_equals_its_halves(open_compute("cuda", "bf16"), 2e-2);
}

TEST_F(GpuGatedDeltaNet, ABatchIsSplitWhereMemoryRunsOut) {
  const at::NoGradGuard no_grad;
  GatedDeltaNetOptions options = {.hidden_size = 64, .expand_v = 1, .head_dim = 64, .num_heads = 8};
  GatedDeltaNet whole = make_layer(options, on_gpu());
  options.split_batch = kSplitBatchAsNeeded;
  GatedDeltaNet split = make_layer(options, on_gpu());
  const ComputeScope scope(open_compute("cuda", "bf16"));
  const at::Tensor x = torch::randn({64, 1024, 64}, on_gpu());
  const at::Tensor expected = whole->forward(x);
  // Each of q, k, v and o has 64 MiB.
  const at::Tensor others = all_memory_but(int64_t{256} << 20);
  EXPECT_ANY_THROW(whole->forward(x));
  GatedDeltaNetCache cache;
  EXPECT_LT(relative_error(split->forward(x, {}, &cache), expected), 2e-2);
  EXPECT_EQ(cache.recurrent_state.size(0), 64);
}

TEST_F(GpuGatedDeltaNet, TheOperatorRefusesATrainingStepAndNamesABatchThatFits) {
  // A batch of one sequence over and over, which takes no memory itself.
  const at::TensorOptions half = on_gpu(at::kBFloat16);
  const at::Tensor q = torch::randn({1, 256, 2, 64}, half).requires_grad_();
  const at::Tensor v = torch::randn({1, 256, 4, 64}, half).requires_grad_();
  const at::Tensor g = torch::rand({1, 256, 4}, on_gpu()).neg_().requires_grad_();
  const at::Tensor upstream = torch::randn({1, 256, 4, 64}, half);
  const auto train = [&](int64_t batch) {
    GatedDeltaRuleOptions rule;
    rule.qk_l2norm = rule.beta_sigmoid = true;
    const auto times = [&](const at::Tensor& tensor) {
      std::vector<int64_t> sizes = tensor.sizes().vec();
      sizes[0] = batch;
      return tensor.expand(sizes);
    };
    const at::Tensor o =
        std::get<0>(gated_delta_rule(times(q), times(q), times(v), times(g), times(g), rule));
    o.backward(times(upstream));
  };
  const at::Tensor others = all_memory_but(int64_t{2} << 30);
  int64_t fitting = 0;
  try {
    train(int64_t{1} << 20);
  } catch (const OutOfMemory& refusal) {
    fitting = refusal.fitting_batch;
    EXPECT_TRUE(testing::contains(refusal.what(), "q [1048576, 256, 2, 64]")) << refusal.what();
  }
  ASSERT_GT(fitting, 0);
  EXPECT_NO_THROW(train(fitting * 7 / 8));  // the allocator may leave gaps
  EXPECT_TRUE(q.grad().isfinite().all().item<bool>());
  EXPECT_THROW(train(fitting * 5 / 4), OutOfMemory);
}

}  // namespace
}  // namespace linescan
