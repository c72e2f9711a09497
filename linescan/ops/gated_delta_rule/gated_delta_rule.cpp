#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"

#include <string_view>

#include "linescan/ops/expect.h"

namespace linescan {
namespace {

constexpr std::string_view kName = "gated_delta_rule";
constexpr std::string_view kStepName = "gated_delta_rule_step";

// What whole sequences and single steps have in common: everything but states. `lead`: the names of the
// dimensions in front of the heads.
struct Operands {
  std::string_view op, lead;
  const TensorView &q, &k, &v, &g, &beta, &o;
  const GatedDeltaRuleInputs& inputs;

  int lead_rank() const { return lead == "tokens" ? 1 : 2; }
  std::string meaning(std::string_view rest) const { return fmt::format("[{}, {}]", lead, rest); }

  // Sizes in front of the heads, then the given ones.
  Shape with_lead(std::initializer_list<int64_t> rest) const {
    Shape shape;
    for (int dim = 0; dim < lead_rank(); ++dim) shape.push_back(q.shape[dim]);
    for (int64_t size : rest) shape.push_back(size);
    return shape;
  }

  int64_t heads() const { return q.shape[lead_rank()]; }
  int64_t K() const { return q.shape[lead_rank() + 1]; }
  int64_t value_heads() const { return v.shape[lead_rank()]; }
  int64_t V() const { return v.shape[lead_rank() + 1]; }

  void expect_head_size(std::string_view argument, std::string_view name, int64_t size) const {
    if (size < 1 || size > kGatedDeltaRuleLargestHead)
      throw_error<InvalidArgument>("{}: {} has {} = {}, expected 1 to {}", op, argument, name, size,
                                   kGatedDeltaRuleLargestHead);
  }

  void expect_rank(std::string_view argument, const TensorView& tensor,
                   std::string_view rest) const {
    if (tensor.shape.rank() != lead_rank() + 2)
      throw_error<InvalidArgument>("{}: {} has shape {}, expected {}", op, argument,
                                   to_string(tensor.shape), meaning(rest));
  }

  void expect_contiguous_rows(std::string_view argument, const TensorView& tensor) const {
    const int last = tensor.shape.rank() - 1;
    if (tensor.shape.elements() > 0 && tensor.shape[last] > 1 && tensor.strides[last] != 1)
      throw_error<InvalidArgument>("{}: {} has stride {} in its last dimension, expected 1", op,
                                   argument, tensor.strides[last]);
  }

  void check_all() const {
    expect_rank("q", q, "heads, K");
    expect_rank("v", v, "value_heads, V");
    expect_shape(op, "k", k, q.shape, meaning("heads, K"));
    expect_shape(op, "v", v, with_lead({value_heads(), V()}), meaning("value_heads, V"));
    expect_head_size("q", "K", K());
    expect_head_size("v", "V", V());
    if (heads() < 1 || value_heads() % heads() != 0)
      throw_error<InvalidArgument>("{}: q has {} heads, which do not divide the {} heads of v", op,
                                   heads(), value_heads());
    const DType data = q.dtype, parameter = accumulator_of(data);
    expect_dtype(op, "k", k, data, "the type of q");
    expect_dtype(op, "v", v, data, "the type of q");
    expect_shape(op, "g", g, with_lead({value_heads()}), meaning("value_heads"));
    expect_dtype(op, "g", g, parameter, kParameterType);
    expect_shape(op, "beta", beta, with_lead({value_heads()}), meaning("value_heads"));
    if (beta.dtype != data && beta.dtype != parameter)
      throw_error<InvalidArgument>("{}: beta is {}, expected {} (the type of q) or {}", op,
                                   name_of(beta.dtype), name_of(data), name_of(parameter));
    for (const auto& [name, tensor] :
         {std::pair{"A_log", &inputs.A_log}, std::pair{"dt_bias", &inputs.dt_bias}}) {
      if (!*tensor) continue;
      expect_shape(op, name, *tensor, {value_heads()}, "[value_heads]");
      expect_dtype(op, name, *tensor, parameter, kParameterType);
    }
    if (inputs.dt_bias && !inputs.A_log)
      throw_error<InvalidArgument>("{}: dt_bias is given without A_log, expected both or A_log",
                                   op);
    if (inputs.allow_neg_eigval && !inputs.beta_sigmoid)
      throw_error<InvalidArgument>(
          "{}: allow_neg_eigval is set without beta_sigmoid, expected both or neither", op);
    expect_contiguous_rows("q", q);
    expect_contiguous_rows("k", k);
    expect_contiguous_rows("v", v);
    if (o) expect_contiguous_rows("o", o);
  }

  void check_state(std::string_view argument, const TensorView& state, std::string_view first_name,
                   int64_t first) const {
    const bool v_first = inputs.state_v_first;
    const Shape expected{first, value_heads(), v_first ? V() : K(), v_first ? K() : V()};
    expect_shape(op, argument, state, expected,
                 fmt::format("[{}, value_heads, {}]", first_name, v_first ? "V, K" : "K, V"));
    expect_dtype(op, argument, state, accumulator_of(q.dtype), kParameterType);
  }
};

void expect_gpu_can(std::string_view op, DType type, int64_t value_heads) {
  if (type == DType::kFloat64)
    throw_error<Unsupported>(
        "{}: q is float64, GPUs take float32, float16 and bfloat16 (use the CPU)", op);
  constexpr int64_t kMostHeads = int64_t{1} << 31;  // counted in 32 bits
  if (value_heads >= kMostHeads)
    throw_error<Unsupported>("{}: v has {} heads, GPUs take less than {}", op, value_heads,
                             kMostHeads);
}

}  // namespace

GatedDeltaRuleSize size_of(const GatedDeltaRuleProblem& p) {
  return {.batch = p.q.shape[0],
          .sequences = p.packed ? p.packed_sequences : p.q.shape[0],
          .length = p.q.shape[1],
          .heads = p.q.shape[2],
          .value_heads = p.v.shape[2],
          .K = p.q.shape[3],
          .V = p.v.shape[3],
          .dtype = p.q.dtype,
          .mode = p.mode,
          .kept_states = static_cast<bool>(p.states)};
}

void check(const GatedDeltaRuleProblem& p) {
  const Operands operands{kName, "batch, length", p.q, p.k, p.v, p.g, p.beta, p.o, p.inputs};
  operands.check_all();
  if (p.packed && p.q.shape[0] != 1)
    throw_error<InvalidArgument>(
        "{}: q has batch {}, expected 1 (sequences are packed by cu_seqlens)", kName, p.q.shape[0]);
  if (p.packed && p.packed_sequences < 0)
    throw_error<InvalidArgument>("{}: cu_seqlens has no elements, expected [sequences + 1]", kName);
  if (p.initial_state)
    operands.check_state("initial_state", p.initial_state, "sequences", size_of(p).sequences);
  if (p.states) {
    const GatedDeltaRuleSize size = size_of(p);
    const int64_t kept = gpu_kept_states(size, p.packed, gpu_piece(size, p.packed));
    expect_shape(kName, "states", p.states, {kept}, "[kept]");
    expect_dtype(kName, "states", p.states, DType::kFloat32, "always");
    if (const auto beyond = reinterpret_cast<std::uintptr_t>(p.states.data) % 16; beyond != 0)
      throw_error<InvalidArgument>(
          "{}: states starts {} bytes behind a multiple of 16, expected at one", kName, beyond);
  }
}

void check(const GatedDeltaRuleStepProblem& p) {
  const Operands operands{kStepName, "tokens", p.q, p.k, p.v, p.g, p.beta, p.o, p.inputs};
  operands.check_all();
  operands.check_state("pool", p.pool, "slots", p.pool.shape.rank() > 0 ? p.pool.shape[0] : 0);
  const Shape& strides = p.pool.strides;
  const int64_t columns = p.pool.shape[3];
  if (strides[3] != 1 || strides[2] != columns)
    throw_error<InvalidArgument>("{}: pool has strides {}, expected the last two to be {} and 1",
                                 kStepName, to_string(strides), columns);
  expect_own_places(kStepName, "pool", p.pool);
}

void check_gpu(const GatedDeltaRuleProblem& p) { expect_gpu_can(kName, p.q.dtype, p.v.shape[2]); }
void check_gpu(const GatedDeltaRuleGradients& gradients) {
  if (!gradients.v)
    throw_error<InvalidArgument>(
        "{}: the gradient of v is undefined, expected a tensor: on a GPU other numbers wait in it",
        kName);
}
void check_gpu(const GatedDeltaRuleStepProblem& p) {
  expect_gpu_can(kStepName, p.q.dtype, p.v.shape[1]);
}

}  // namespace linescan
