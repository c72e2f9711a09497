// One token of the recurrence, in two passes over the state: one reads S^T k and S^T q, one writes.
//
//   u = beta (v - a S^T k)        o = scale (a S^T q + (q k) u)        S <- a S + k u^T        a = exp(g)
//
// Include inside a kernel file after foreach_target.h, like simd.h.

#if defined(LINESCAN_OPS_GATED_DELTA_RULE_CPU_TOKEN_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESCAN_OPS_GATED_DELTA_RULE_CPU_TOKEN_H_
#undef LINESCAN_OPS_GATED_DELTA_RULE_CPU_TOKEN_H_
#else
#define LINESCAN_OPS_GATED_DELTA_RULE_CPU_TOKEN_H_
#endif

#include "linescan/ops/simd.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
struct Token {
  int64_t K;
  const T *q, *k;  // [K], zero up to the next vector boundary
  T gate, beta, scale;
  T read;  // q k

  // u and o of some columns, or of one row, from what the state says of k and q.
  template <class D>
  HWY_INLINE hn::Vec<D> Update(D d, hn::Vec<D> v, hn::Vec<D> at_k) const {
    return hn::Mul(hn::Set(d, beta), hn::NegMulAdd(hn::Set(d, gate), at_k, v));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Output(D d, hn::Vec<D> u, hn::Vec<D> at_q) const {
    const auto sum = hn::MulAdd(hn::Set(d, read), u, hn::Mul(hn::Set(d, gate), at_q));
    return hn::Mul(hn::Set(d, scale), sum);
  }
};

// kVectors vectors of columns of a state [K, columns] whose rows are `row` apart. `load` and `store`
// are vectors' ways from and to memory.
template <int kVectors, typename T, class Load, class Store>
HWY_INLINE void AdvanceVectors(const Token<T>& token, T* HWY_RESTRICT state, int64_t row,
                               const T* HWY_RESTRICT v, T* HWY_RESTRICT o, const Load& load,
                               const Store& store) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  Vec<T> at_k[kVectors], at_q[kVectors], u[kVectors];
#pragma GCC unroll 4
  for (int n = 0; n < kVectors; ++n) at_k[n] = at_q[n] = hn::Zero(d);
  for (int64_t x = 0; x < token.K; ++x) {
    const auto key = hn::Set(d, token.k[x]), query = hn::Set(d, token.q[x]);
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      const auto s = load(state + x * row + n * lanes);
      at_k[n] = hn::MulAdd(key, s, at_k[n]);
      at_q[n] = hn::MulAdd(query, s, at_q[n]);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < kVectors; ++n) {
    u[n] = token.Update(d, load(v + n * lanes), at_k[n]);
    store(token.Output(d, u[n], at_q[n]), o + n * lanes);
  }
  const auto gate = hn::Set(d, token.gate);
  for (int64_t x = 0; x < token.K; ++x) {
    const auto key = hn::Set(d, token.k[x]);
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      T* at = state + x * row + n * lanes;
      store(hn::MulAdd(key, u[n], hn::Mul(gate, load(at))), at);
    }
  }
}

// All columns of a state [K, columns].
template <typename T>
HWY_INLINE void AdvanceColumns(const Token<T>& token, int64_t columns, T* state, int64_t row,
                               const T* v, T* o) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  const auto load = [&](const T* from) HWY_ATTR { return hn::LoadU(d, from); };
  const auto store = [&](Vec<T> value, T* to) HWY_ATTR { hn::StoreU(value, d, to); };
  int64_t j = 0;
  for (; j + 4 * lanes <= columns; j += 4 * lanes)
    AdvanceVectors<4>(token, state + j, row, v + j, o + j, load, store);
  for (; j + lanes <= columns; j += lanes)
    AdvanceVectors<1>(token, state + j, row, v + j, o + j, load, store);
  if (j == columns) return;
  const auto rest = hn::FirstN(d, static_cast<size_t>(columns - j));
  AdvanceVectors<1>(
      token, state + j, row, v + j, o + j,
      [&](const T* from) HWY_ATTR { return hn::MaskedLoad(rest, d, from); },
      [&](Vec<T> value, T* to) HWY_ATTR { hn::BlendedStore(value, rest, d, to); });
}

// All rows of a state [V, K] whose rows follow each other.
template <typename T>
HWY_INLINE void AdvanceRows(const Token<T>& token, int64_t V, T* state, const T* v, T* o) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>(), K = token.K;
  const int64_t whole = K / lanes * lanes;
  const auto rest = hn::FirstN(d, static_cast<size_t>(K - whole));
  const auto gate = hn::Set(d, token.gate);
  for (int64_t i = 0; i < V; ++i) {
    T* HWY_RESTRICT row = state + i * K;
    auto at_k = hn::Zero(d), at_q = hn::Zero(d);
    const auto meet = [&](Vec<T> s, int64_t x) HWY_ATTR {
      at_k = hn::MulAdd(hn::Load(d, token.k + x), s, at_k);
      at_q = hn::MulAdd(hn::Load(d, token.q + x), s, at_q);
    };
    for (int64_t x = 0; x < whole; x += lanes) meet(hn::LoadU(d, row + x), x);
    if (whole < K) meet(hn::MaskedLoad(rest, d, row + whole), whole);
    const auto u = token.Update(d, hn::Set(d, v[i]), hn::SumOfLanes(d, at_k));
    o[i] = hn::GetLane(token.Output(d, u, hn::SumOfLanes(d, at_q)));
    const auto next = [&](Vec<T> s, int64_t x) HWY_ATTR {
      return hn::MulAdd(hn::Load(d, token.k + x), u, hn::Mul(gate, s));
    };
    for (int64_t x = 0; x < whole; x += lanes)
      hn::StoreU(next(hn::LoadU(d, row + x), x), d, row + x);
    if (whole < K)
      hn::BlendedStore(next(hn::MaskedLoad(rest, d, row + whole), whole), rest, d, row + whole);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace linescan
HWY_AFTER_NAMESPACE();

#endif  // LINESCAN_OPS_GATED_DELTA_RULE_CPU_TOKEN_H_
