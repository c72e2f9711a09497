// The definition of ss2d in plain loops over Tracked doubles: one scan after another, written out
// with its gradient. Slow, and meant to be read.

#include "linescan/ops/ss2d/route.h"
#include "linescan/ops/ss2d/ss2d.h"

namespace linescan {
namespace {

// One scan: route k over the channel c of batch item b, its inputs as functions of the pixel.
struct Scan {
  const Ss2dProblem& p;
  int64_t b, c, k;
  Ss2dSize size = size_of(p);
  int64_t parameter = k * size.channels + c;  // row of A_log and D

  Tracked x(int64_t pixel) const {
    return read_element(p.x, b, c, pixel / size.width, pixel % size.width);
  }
  int64_t record_index(int64_t pixel, int64_t i) const {
    return (b * size.pixels() + pixel) * size.routes * size.record() + k * size.record() + i;
  }
  Tracked record(int64_t pixel, int64_t i) const {
    return read_element(p.projection, b, pixel, k * size.record() + i);
  }
  Tracked dts(int64_t pixel, int64_t r) const { return record(pixel, r); }
  Tracked B(int64_t pixel, int64_t n) const { return record(pixel, size.rank + n); }
  Tracked C(int64_t pixel, int64_t n) const { return record(pixel, size.rank + size.states + n); }
  Tracked dt_weight(int64_t r) const { return read_element(p.dt_weight, k, c, r); }
  std::vector<Tracked> A() const {
    std::vector<Tracked> rates(size.states);
    for (int64_t n = 0; n < size.states; ++n)
      rates[n] = -exp(Tracked(read_element(p.A_log, parameter, n)));
    return rates;
  }
  Tracked D() const { return read_element(p.D, parameter); }
  Tracked raw_delta(int64_t pixel) const {
    Tracked sum = read_element(p.dt_bias, k, c);
    for (int64_t r = 0; r < size.rank; ++r) sum += dt_weight(r) * dts(pixel, r);
    return sum;
  }
};

// Calls visit(scan, pixels of one sequence in the order of the route) for every scan there is.
template <class Visit>
void for_each_sequence(const Ss2dProblem& problem, const Visit& visit) {
  const Ss2dSize size = size_of(problem);
  for (int64_t b = 0; b < size.batch; ++b)
    for (int64_t c = 0; c < size.channels; ++c)
      for (int64_t k = 0; k < size.routes; ++k) {
        const Route route(problem.routes[k], size.height, size.width);
        const int64_t lines = route.lines / std::max<int64_t>(route.sequences(), 1);
        for (int64_t sequence = 0; sequence < route.sequences(); ++sequence) {
          std::vector<int64_t> pixels;
          for (int64_t line = 0; line < lines; ++line)
            for (int64_t i = 0; i < route.line_length; ++i)
              pixels.push_back(route.pixel(sequence * lines + line, i));
          visit(Scan{.p = problem, .b = b, .c = c, .k = k}, pixels);
        }
      }
}

// h after each pixel at index (t + 1) * states + n, zero before the first.
std::vector<Tracked> states_of(const Scan& scan, const std::vector<int64_t>& pixels) {
  const int64_t states = scan.size.states;
  const std::vector<Tracked> A = scan.A();
  std::vector<Tracked> h((pixels.size() + 1) * states);
  for (std::size_t t = 0; t < pixels.size(); ++t) {
    const Tracked dt = softplus(scan.raw_delta(pixels[t]));
    for (int64_t n = 0; n < states; ++n)
      h[(t + 1) * states + n] =
          exp(dt * A[n]) * h[t * states + n] + dt * scan.B(pixels[t], n) * scan.x(pixels[t]);
  }
  return h;
}

}  // namespace

Ss2dJudge reference_forward(const Ss2dProblem& problem) {
  const Ss2dSize size = size_of(problem);
  Ss2dJudge result;
  result.out = Judged(problem.x.shape);
  for_each_sequence(problem, [&](const Scan& scan, const std::vector<int64_t>& pixels) {
    const std::vector<Tracked> h = states_of(scan, pixels);
    for (std::size_t t = 0; t < pixels.size(); ++t) {
      Tracked y = scan.D() * scan.x(pixels[t]);
      for (int64_t n = 0; n < size.states; ++n)
        y += scan.C(pixels[t], n) * h[(t + 1) * size.states + n];
      add(result.out, (scan.b * size.channels + scan.c) * size.pixels() + pixels[t], y);
    }
  });
  return result;
}

Ss2dJudge reference_backward(const Ss2dProblem& problem, const Ss2dGradients& gradients) {
  const Ss2dSize size = size_of(problem);
  const int64_t states = size.states, rank = size.rank;
  Ss2dJudge result;
  result.x = Judged(problem.x.shape);
  result.projection = Judged(problem.projection.shape);
  result.dt_weight = Judged(problem.dt_weight.shape);
  result.dt_bias = Judged(problem.dt_bias.shape);
  result.A_log = Judged(problem.A_log.shape);
  result.D = Judged(problem.D.shape);
  for_each_sequence(problem, [&](const Scan& scan, const std::vector<int64_t>& pixels) {
    const std::vector<Tracked> h = states_of(scan, pixels), A = scan.A();
    std::vector<Tracked> gh(states);
    for (std::size_t t = pixels.size(); t-- > 0;) {
      const int64_t pixel = pixels[t];
      const Tracked raw = scan.raw_delta(pixel), dt = softplus(raw), x = scan.x(pixel);
      const Tracked gy =
          read_element(gradients.out, scan.b, scan.c, pixel / size.width, pixel % size.width);
      Tracked gx = scan.D() * gy, gdt;
      for (int64_t n = 0; n < states; ++n) {
        const Tracked a = exp(dt * A[n]), before = h[t * states + n];
        const Tracked B = scan.B(pixel, n);
        gh[n] += scan.C(pixel, n) * gy;
        gx += gh[n] * dt * B;
        gdt += gh[n] * (A[n] * a * before + B * x);
        add(result.A_log, scan.parameter * states + n, gh[n] * dt * a * before * A[n]);
        add(result.projection, scan.record_index(pixel, rank + n), gh[n] * dt * x);
        add(result.projection, scan.record_index(pixel, rank + states + n),
            gy * h[(t + 1) * states + n]);
        gh[n] = a * gh[n];
      }
      const Tracked gdelta = gdt * softplus_slope(raw);
      for (int64_t r = 0; r < rank; ++r) {
        add(result.projection, scan.record_index(pixel, r), gdelta * scan.dt_weight(r));
        add(result.dt_weight, scan.parameter * rank + r, gdelta * scan.dts(pixel, r));
      }
      add(result.x, (scan.b * size.channels + scan.c) * size.pixels() + pixel, gx);
      add(result.dt_bias, scan.parameter, gdelta);
      add(result.D, scan.parameter, gy * x);
    }
  });
  return result;
}

}  // namespace linescan
