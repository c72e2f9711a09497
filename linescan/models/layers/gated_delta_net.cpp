#include "linescan/models/layers/gated_delta_net.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "linescan/base/error.h"
#include "linescan/base/out_of_memory.h"
#include "linescan/binding/gated_delta_rule.h"
#include "linescan/binding/tensors.h"
#include "linescan/models/layers/padding.h"
#include "linescan/models/layers/scan_init.h"
#include "linescan/models/memory_errors.h"
#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"

namespace linescan {
namespace {

// exp(A_log) is uniform up to this; log(0) would never come back.
constexpr double kLargestDecay = 16, kSmallestDecay = 1e-6;

void expect_positive(std::string_view name, int64_t value) {
  if (value < 1)
    throw_error<InvalidArgument>("gated_delta_net: {} is {}, expected 1 or more", name, value);
}

torch::nn::Linear linear(int64_t inputs, int64_t outputs) {
  return torch::nn::Linear(torch::nn::LinearOptions(inputs, outputs).bias(false));
}

constexpr at::Tensor GatedDeltaNetCache::*kCacheStates[] = {
    &GatedDeltaNetCache::recurrent_state, &GatedDeltaNetCache::q_conv, &GatedDeltaNetCache::k_conv,
    &GatedDeltaNetCache::v_conv};

// Some items of a batch, if there is such a tensor; all of them are the tensor itself.
at::Tensor items_of(const at::Tensor& tensor, int64_t first, int64_t count) {
  return tensor.defined() && count < tensor.size(0) ? tensor.narrow(0, first, count) : tensor;
}
// The reverse.
at::Tensor joined(const std::vector<at::Tensor>& parts) {
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

// Whether x is one token more in evaluation: the states move in place.
bool is_step(const at::Tensor& x, bool packed, const GatedDeltaNetCache* cache) {
  return cache && cache->recurrent_state.defined() && !packed && x.size(1) == 1 &&
         !at::GradMode::is_enabled();
}

// [batch, length, heads size] -> [batch, length, heads, size]
at::Tensor to_heads(const at::Tensor& x, int64_t heads) { return x.unflatten(-1, {heads, -1}); }

}  // namespace

void GatedDeltaNetOptions::validate() const {
  expect_positive("hidden_size", hidden_size);
  expect_positive("head_dim", head_dim);
  expect_positive("num_heads", num_heads);
  const double values = static_cast<double>(head_dim) * expand_v;
  if (!(values >= 1) || values != std::floor(values))
    throw_error<InvalidArgument>(
        "gated_delta_net: expand_v is {}, expected a multiple of 1 / {} that makes value heads of "
        "a "
        "whole size (head_dim {})",
        expand_v, head_dim, head_dim);
  if (num_v_heads < 0 || num_v_heads % num_heads != 0)
    throw_error<InvalidArgument>(
        "gated_delta_net: num_v_heads is {}, expected a multiple of num_heads {}, or 0",
        num_v_heads, num_heads);
  if (head_dim > kGatedDeltaRuleLargestHead || values > kGatedDeltaRuleLargestHead)
    throw_error<InvalidArgument>(
        "gated_delta_net: head_dim is {} and a value head {}, expected at most {} for both",
        head_dim, values, kGatedDeltaRuleLargestHead);
  if (use_short_conv && (conv_size < 2 || conv_size > 4))
    throw_error<InvalidArgument>("gated_delta_net: conv_size is {}, expected 2 to 4", conv_size);
  if (split_batch < 0 && split_batch != kSplitBatchAsNeeded)
    throw_error<InvalidArgument>(
        "gated_delta_net: split_batch is {}, expected 0 or more, or {} (as needed)", split_batch,
        kSplitBatchAsNeeded);
  if (!(norm_eps >= 0))
    throw_error<InvalidArgument>("gated_delta_net: norm_eps is {}, expected 0 or more", norm_eps);
}

void for_each_part(int64_t batch, int64_t split_batch,
                   const std::function<void(int64_t first, int64_t count)>& run) {
  const bool as_needed = split_batch == kSplitBatchAsNeeded;
  int64_t most = split_batch > 0 ? split_batch : batch, first = 0;
  do {
    const int64_t count = std::min(most, batch - first);
    try {
      run(first, count);
      first += count;
    } catch (const std::exception& error) {
      if (!as_needed || count <= 1 || !is_out_of_memory(error)) throw;
      const auto* refusal = dynamic_cast<const OutOfMemory*>(&error);
      most = std::clamp(refusal ? refusal->fitting_batch : 0, count / 2, count - 1);
    }
  } while (first < batch);
}

GatedDeltaNetImpl::GatedDeltaNetImpl(const GatedDeltaNetOptions& options) : options_(options) {
  options_.validate();
  const int64_t hidden = options_.hidden_size, value_heads = options_.value_heads();
  const int64_t keys = options_.num_heads * options_.head_dim;
  const int64_t values = value_heads * options_.value_dim();
  q_proj_ = register_module("q_proj", linear(hidden, keys));
  k_proj_ = register_module("k_proj", linear(hidden, keys));
  v_proj_ = register_module("v_proj", linear(hidden, values));
  a_proj_ = register_module("a_proj", linear(hidden, value_heads));
  b_proj_ = register_module("b_proj", linear(hidden, value_heads));
  A_log_ = register_parameter(
      "A_log",
      at::empty({value_heads}).uniform_(0, kLargestDecay).clamp_min_(kSmallestDecay).log_());
  dt_bias_ = register_parameter("dt_bias", log_uniform_step_biases({value_heads}));
  if (options_.use_short_conv) {
    const auto convolution = [&](const char* name, int64_t channels) {
      return register_module(name,
                             ShortConvolution(channels, options_.conv_size, options_.conv_bias));
    };
    q_conv1d_ = convolution("q_conv1d", keys);
    k_conv1d_ = convolution("k_conv1d", keys);
    v_conv1d_ = convolution("v_conv1d", values);
  }
  if (options_.use_gate) g_proj_ = register_module("g_proj", linear(hidden, values));
  o_norm_ = register_module("o_norm", RmsNorm(options_.value_dim(), options_.norm_eps));
  o_proj_ = register_module("o_proj", linear(values, hidden));
}

void GatedDeltaNetImpl::check_cache(const GatedDeltaNetCache* cache, int64_t sequences) const {
  for (const auto state : kCacheStates)
    if (cache && (cache->*state).defined() && (cache->*state).size(0) != sequences)
      throw_error<InvalidArgument>(
          "gated_delta_net: the cache is of {} sequences, expected {} as x has",
          (cache->*state).size(0), sequences);
}

at::Tensor GatedDeltaNetImpl::recurrence(const at::Tensor& x, const at::Tensor& q,
                                         const at::Tensor& k, const at::Tensor& v,
                                         const at::Tensor& cu_seqlens, bool step,
                                         GatedDeltaNetCache* cache) {
  const int64_t heads = options_.num_heads, value_heads = options_.value_heads();
  const at::Tensor beta = b_proj_->forward(x), raw_gate = a_proj_->forward(x);
  // Gates are exponents: they stay wide under autocast and in a layer of half precision.
  const at::ScalarType wide = A_log_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor gate = raw_gate.to(wide);
  GatedDeltaRuleOptions rule;
  rule.A_log = A_log_.to(wide);
  rule.dt_bias = dt_bias_.to(wide);
  rule.qk_l2norm = true;
  rule.beta_sigmoid = true;
  rule.allow_neg_eigval = options_.allow_neg_eigval;
  rule.state_v_first = true;
  if (step) {
    const auto token = [](const at::Tensor& tensor) { return tensor.squeeze(1); };
    const at::Tensor slots = at::arange(x.size(0), x.options().dtype(at::kLong));
    return gated_delta_rule_step(to_heads(token(q), heads), to_heads(token(k), heads),
                                 to_heads(token(v), value_heads), token(gate), token(beta),
                                 cache->recurrent_state, slots, rule)
        .unsqueeze(1);
  }
  if (cache) rule.initial_state = optional(cache->recurrent_state);
  rule.cu_seqlens = optional(cu_seqlens);
  rule.mode = options_.mode;
  rule.output_final_state = cache != nullptr;
  const auto [o, state] = gated_delta_rule(to_heads(q, heads), to_heads(k, heads),
                                           to_heads(v, value_heads), gate, beta, rule);
  if (cache) cache->recurrent_state = state;
  return o;
}

at::Tensor GatedDeltaNetImpl::run(const at::Tensor& x, const at::Tensor& cu_seqlens,
                                  GatedDeltaNetCache* cache) {
  const bool step = is_step(x, cu_seqlens.defined(), cache);
  GatedDeltaNetCache moved;  // the cache's at the end: what fails in between leaves it as it was
  if (cache) moved = *cache;
  const auto convolved = [&](torch::nn::Linear& projection, ShortConvolution& convolution,
                             at::Tensor GatedDeltaNetCache::*state) {
    const at::Tensor projected = projection->forward(x);
    if (!convolution) return at::silu(projected);
    return convolution->forward(projected, cu_seqlens, step, cache ? &(moved.*state) : nullptr);
  };
  const at::Tensor q = convolved(q_proj_, q_conv1d_, &GatedDeltaNetCache::q_conv);
  const at::Tensor k = convolved(k_proj_, k_conv1d_, &GatedDeltaNetCache::k_conv);
  const at::Tensor v = convolved(v_proj_, v_conv1d_, &GatedDeltaNetCache::v_conv);
  const at::Tensor o = recurrence(x, q, k, v, cu_seqlens, step, cache ? &moved : nullptr);
  const at::Tensor normed =
      g_proj_ ? o_norm_->forward_gated(o, to_heads(g_proj_->forward(x), options_.value_heads()))
              : o_norm_->forward(o);
  const at::Tensor y = o_proj_->forward(normed.flatten(-2));
  if (cache) *cache = moved;
  return y;
}

at::Tensor GatedDeltaNetImpl::run_parts(const at::Tensor& x, const at::Tensor& mask,
                                        GatedDeltaNetCache* cache) {
  std::vector<at::Tensor> results;
  std::vector<GatedDeltaNetCache> caches;
  const auto run_part = [&](int64_t first, int64_t count) {
    GatedDeltaNetCache moved;
    for (const auto state : kCacheStates)
      if (cache) moved.*state = items_of(cache->*state, first, count);
    GatedDeltaNetCache* const part_cache = cache ? &moved : nullptr;
    const at::Tensor part = items_of(x, first, count);
    if (mask.defined()) {
      const Padding padding(part, items_of(mask, first, count));
      results.push_back(
          padding.restore(run(padding.remove(part), padding.cu_seqlens(), part_cache)));
    } else {
      results.push_back(run(part, {}, part_cache));
    }
    caches.push_back(moved);
  };
  // A step cannot be tried twice, and needs little beside its states.
  const bool step = is_step(x, mask.defined(), cache);
  const bool at_once = step && options_.split_batch == kSplitBatchAsNeeded;
  for_each_part(x.size(0), at_once ? 0 : options_.split_batch, run_part);
  const at::Tensor y = joined(results);
  if (!cache) return y;
  GatedDeltaNetCache moved = *cache;
  moved.offset += x.size(1);
  for (const auto state : kCacheStates) {
    if (step || !(caches.front().*state).defined()) continue;  // moved in place, or not there
    std::vector<at::Tensor> parts;
    for (const GatedDeltaNetCache& part : caches) parts.push_back(part.*state);
    moved.*state = joined(parts);
  }
  *cache = moved;
  return y;
}

at::Tensor GatedDeltaNetImpl::forward_packed(const at::Tensor& x, const at::Tensor& cu_seqlens,
                                             GatedDeltaNetCache* cache) {
  check_cache(cache, cu_seqlens.numel() - 1);
  const at::Tensor y = run(x, cu_seqlens, cache);
  if (cache) cache->offset += x.size(1);
  return y;
}

at::Tensor GatedDeltaNetImpl::forward(const at::Tensor& x, const at::Tensor& mask,
                                      GatedDeltaNetCache* cache) {
  if (x.dim() != 3 || x.size(2) != options_.hidden_size)
    throw_error<InvalidArgument>(
        "gated_delta_net: x has {} dimensions and {} channels, expected [batch, length, {}]",
        x.dim(), x.dim() > 0 ? x.size(-1) : 0, options_.hidden_size);
  // Parts of it are taken before Padding sees it.
  if (mask.defined()) expect_sizes("gated_delta_net", "mask", mask, {x.size(0), x.size(1)});
  check_cache(cache, x.size(0));
  return run_parts(x, mask, cache);
}

}  // namespace linescan
