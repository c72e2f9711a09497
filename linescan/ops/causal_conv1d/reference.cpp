// The definition of causal_conv1d in plain loops over Tracked doubles; gradients as README.md derives
// them.

#include "linescan/ops/causal_conv1d/causal_conv1d.h"
#include "linescan/ops/causal_conv1d/sequence.h"

namespace linescan {
namespace {

struct Walk {
  const CausalConv1dProblem& p;
  CausalConv1dSize size = size_of(p);
  ConvSequences sequences{p.offsets, size.sequences, size.length};
  int64_t history = size.width - 1;

  int64_t index(int64_t item, int64_t t, int64_t c) const {
    return (item * size.length + t) * size.channels + c;
  }
  int64_t state_index(int64_t sequence, int64_t c, int64_t place) const {
    return (sequence * size.channels + c) * history + place;
  }
  int64_t item_of(const ConvSequence& s) const { return p.offsets ? 0 : s.number; }
  double weight(int64_t c, int64_t tap) const { return read_element(p.weight, c, tap); }

  // What stands at time t of a sequence, which may be before its begin.
  double input(const ConvSequence& s, int64_t t, int64_t c) const {
    if (t >= s.begin) return read_element(p.x, item_of(s), t, c);
    return p.initial_state ? read_element(p.initial_state, s.number, c, history + t - s.begin)
                           : 0.0;
  }
  // The convolution's result before the activation.
  Tracked sum_at(const ConvSequence& s, int64_t t, int64_t c) const {
    Tracked sum = p.bias ? read_element(p.bias, c) : 0.0;
    for (int64_t tap = 0; tap < size.width; ++tap)
      sum += Tracked(weight(c, tap)) * Tracked(input(s, t - history + tap, c));
    return sum;
  }
  template <class Visit>
  void each_sequence(const Visit& visit) const {
    for (int64_t number = 0; number < size.sequences; ++number)
      for (int64_t c = 0; c < size.channels; ++c) visit(sequences.get(number), c);
  }
};

}  // namespace

CausalConv1dJudge reference_forward(const CausalConv1dProblem& p) {
  const Walk walk{p};
  CausalConv1dJudge result;
  result.out = Judged(p.x.shape);
  result.final_state = Judged({walk.size.sequences, walk.size.channels, walk.history});
  walk.each_sequence([&](const ConvSequence& s, int64_t c) {
    for (int64_t t = s.begin; t < s.end; ++t) {
      const Tracked sum = walk.sum_at(s, t, c);
      add(result.out, walk.index(walk.item_of(s), t, c), p.silu ? sum * sigmoid(sum) : sum);
    }
    for (int64_t place = 0; place < walk.history; ++place)
      add(result.final_state, walk.state_index(s.number, c, place),
          walk.input(s, s.end - walk.history + place, c));
  });
  return result;
}

CausalConv1dJudge reference_backward(const CausalConv1dProblem& p, const CausalConv1dGradients& g) {
  const Walk walk{p};
  CausalConv1dJudge result;
  result.x = Judged(p.x.shape);
  result.weight = Judged(p.weight.shape);
  result.bias = Judged({walk.size.channels});
  result.initial_state = Judged({walk.size.sequences, walk.size.channels, walk.history});
  walk.each_sequence([&](const ConvSequence& s, int64_t c) {
    const auto add_input = [&](int64_t t, Tracked gradient) {
      if (t >= s.begin)
        add(result.x, walk.index(walk.item_of(s), t, c), gradient);
      else
        add(result.initial_state, walk.state_index(s.number, c, walk.history + t - s.begin),
            gradient);
    };
    for (int64_t t = s.begin; t < s.end; ++t) {
      Tracked gradient = g.out ? read_element(g.out, walk.item_of(s), t, c) : 0.0;
      if (p.silu) {
        const Tracked sum = walk.sum_at(s, t, c), sigma = sigmoid(sum);
        gradient = gradient * (sigma + sum * sigma * (Tracked(1.0) - sigma));
      }
      add(result.bias, c, gradient);
      for (int64_t tap = 0; tap < walk.size.width; ++tap) {
        const int64_t from = t - walk.history + tap;
        add_input(from, gradient * Tracked(walk.weight(c, tap)));
        add(result.weight, c * walk.size.width + tap, gradient * Tracked(walk.input(s, from, c)));
      }
    }
    for (int64_t place = 0; place < walk.history && g.final_state; ++place)
      add_input(s.end - walk.history + place, read_element(g.final_state, s.number, c, place));
  });
  return result;
}

}  // namespace linescan
