// The definition of depthwise_conv in plain loops over Tracked doubles; gradients as README.md
// derives them.

#include "linescan/ops/depthwise_conv/depthwise_conv.h"

namespace linescan {
namespace {

struct Grid {
  const DepthwiseConvProblem& p;
  int64_t batch = p.x.shape[0], height = p.x.shape[1], width = p.x.shape[2],
          channels = p.x.shape[3];

  int64_t index(int64_t b, int64_t i, int64_t j, int64_t c) const {
    return ((b * height + i) * width + j) * channels + c;
  }
  template <class Visit>
  void each(const Visit& visit) const {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < height; ++i)
        for (int64_t j = 0; j < width; ++j)
          for (int64_t c = 0; c < channels; ++c) visit(b, i, j, c);
  }
  // The neighbours of pixel (i, j) inside the image, with the place of their weight.
  template <class Visit>
  void each_neighbour(int64_t i, int64_t j, const Visit& visit) const {
    for (int64_t di = 0; di < 3; ++di)
      for (int64_t dj = 0; dj < 3; ++dj) {
        const int64_t row = i + di - 1, column = j + dj - 1;
        if (row >= 0 && row < height && column >= 0 && column < width) visit(di, dj, row, column);
      }
  }
  // The convolution's result before the activation.
  Tracked sum_at(int64_t b, int64_t i, int64_t j, int64_t c) const {
    Tracked sum = p.bias ? read_element(p.bias, c) : 0.0;
    each_neighbour(i, j, [&](int64_t di, int64_t dj, int64_t row, int64_t column) {
      sum += Tracked(read_element(p.weight, c, di, dj)) *
             Tracked(read_element(p.x, b, row, column, c));
    });
    return sum;
  }
};

}  // namespace

DepthwiseConvJudge reference_forward(const DepthwiseConvProblem& p) {
  const Grid grid{p};
  DepthwiseConvJudge result;
  result.out = Judged(p.x.shape);
  grid.each([&](int64_t b, int64_t i, int64_t j, int64_t c) {
    const Tracked sum = grid.sum_at(b, i, j, c);
    add(result.out, grid.index(b, i, j, c), p.silu ? sum * sigmoid(sum) : sum);
  });
  return result;
}

DepthwiseConvJudge reference_backward(const DepthwiseConvProblem& p,
                                      const DepthwiseConvGradients& g) {
  const Grid grid{p};
  DepthwiseConvJudge result;
  result.x = Judged(p.x.shape);
  result.weight = Judged(p.weight.shape);
  result.bias = Judged({grid.channels});
  grid.each([&](int64_t b, int64_t i, int64_t j, int64_t c) {
    Tracked gradient = read_element(g.out, b, i, j, c);
    if (p.silu) {
      const Tracked sum = grid.sum_at(b, i, j, c), s = sigmoid(sum);
      gradient = gradient * (s + sum * s * (Tracked(1.0) - s));
    }
    add(result.bias, c, gradient);
    grid.each_neighbour(i, j, [&](int64_t di, int64_t dj, int64_t row, int64_t column) {
      add(result.x, grid.index(b, row, column, c),
          gradient * Tracked(read_element(p.weight, c, di, dj)));
      add(result.weight, (c * 3 + di) * 3 + dj,
          gradient * Tracked(read_element(p.x, b, row, column, c)));
    });
  });
  return result;
}

}  // namespace linescan
