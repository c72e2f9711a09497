// The definition of layer_norm in plain loops over Tracked doubles; gradients as README.md derives
// them.

#include "linescan/ops/layer_norm/layer_norm.h"

namespace linescan {
namespace {

// x^-1/2
Tracked inverse_root(Tracked x) {
  const double value = 1 / std::sqrt(x.value);
  return smooth(value, -0.5 * value / x.value, x);
}

struct Row {
  std::vector<Tracked> normal;  // (x - mean) rstd
  Tracked mean, rstd;
};

Row read_row(const LayerNormProblem& p, int64_t row) {
  const int64_t channels = p.x.shape[1];
  const Tracked share = 1.0 / static_cast<double>(channels);
  Row result;
  for (int64_t c = 0; c < channels; ++c) result.mean += Tracked(read_element(p.x, row, c)) * share;
  Tracked variance;
  for (int64_t c = 0; c < channels; ++c) {
    const Tracked centred = Tracked(read_element(p.x, row, c)) - result.mean;
    variance += centred * centred * share;
  }
  result.rstd = inverse_root(variance + Tracked(p.epsilon));
  for (int64_t c = 0; c < channels; ++c)
    result.normal.push_back((Tracked(read_element(p.x, row, c)) - result.mean) * result.rstd);
  return result;
}

Tracked weight_of(const LayerNormProblem& p, int64_t c) {
  return p.weight ? read_element(p.weight, c) : 1.0;
}

}  // namespace

LayerNormJudge reference_forward(const LayerNormProblem& p) {
  const int64_t rows = p.x.shape[0], channels = p.x.shape[1];
  LayerNormJudge result;
  result.out = Judged({rows, channels});
  result.mean = result.rstd = Judged({rows});
  for (int64_t row = 0; row < rows; ++row) {
    const Row r = read_row(p, row);
    add(result.mean, row, r.mean);
    add(result.rstd, row, r.rstd);
    for (int64_t c = 0; c < channels; ++c) {
      const Tracked shift = p.bias ? read_element(p.bias, c) : 0.0;
      add(result.out, row * channels + c, r.normal[c] * weight_of(p, c) + shift);
    }
  }
  return result;
}

LayerNormJudge reference_backward(const LayerNormProblem& p, const LayerNormGradients& g) {
  const int64_t rows = p.x.shape[0], channels = p.x.shape[1];
  const Tracked share = 1.0 / static_cast<double>(channels);
  LayerNormJudge result;
  result.x = Judged({rows, channels});
  result.weight = result.bias = Judged({channels});
  for (int64_t row = 0; row < rows; ++row) {
    const Row r = read_row(p, row);
    Tracked mean, slope;  // of w gy, and of w gy normal
    for (int64_t c = 0; c < channels; ++c) {
      const Tracked gy = read_element(g.out, row, c), scaled = weight_of(p, c) * gy;
      add(result.weight, c, gy * r.normal[c]);
      add(result.bias, c, gy);
      mean += scaled * share;
      slope += scaled * r.normal[c] * share;
    }
    for (int64_t c = 0; c < channels; ++c) {
      const Tracked scaled = weight_of(p, c) * Tracked(read_element(g.out, row, c));
      Tracked gx = r.rstd * (scaled - mean - r.normal[c] * slope);
      if (g.skip) gx += Tracked(read_element(g.skip, row, c));
      add(result.x, row * channels + c, gx);
    }
  }
  return result;
}

}  // namespace linescan
