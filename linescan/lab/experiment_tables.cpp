// The tables of ladder, scan modes and states.

#include <fmt/format.h>

#include "linescan/lab/figures.h"
#include "linescan/lab/findings.h"

namespace linescan::lab {
namespace {

std::string paper(double images_per_second) {
  return images_per_second > 0 ? fmt::format("{:.0f}", images_per_second) : "-";
}

// How much faster than the first rung.
std::string speedup(const Measurement& now, const Measurement& first) {
  return now.fitted() && first.fitted()
             ? fmt::format("{:.2f}", now.images_per_second() / first.images_per_second())
             : "-";
}
std::string speedup(double now, double first) {
  return now > 0 && first > 0 ? fmt::format("{:.2f}", now / first) : "-";
}

std::vector<std::string> cells_of(const ModeResult& mode) {
  if (mode.rates.empty()) return {mode.mode, kNoMemory, "-", "-", "-", "-", "-", "-", "-"};
  const bool compared = mode.relative.count > 0;
  return {mode.mode,
          figure(mode.rate.median),
          figure(mode.rate.least),
          figure(mode.rate.most),
          percent(mode.rate.variation()),
          compared ? fmt::format("{:.3f}", mode.relative.median) : "-",
          compared ? percent(mode.relative.variation()) : "-",
          percent(mode.within),
          fmt::format("{:+.1f}", 100 * mode.drift)};
}

// Median, variation, and the median's share of a state.
void append_times(const Timed& timed, int64_t states, std::vector<std::string>* row) {
  const double median = timed.seconds.median;
  if (timed.measured())
    row->insert(row->end(), {ms(median), percent(timed.seconds.variation()),
                             ms(median / static_cast<double>(states))});
  else
    row->insert(row->end(), {kNoMemory, "-", "-"});
}

}  // namespace

std::vector<Table> ladder_tables(const Findings& findings) {
  if (findings.ladder.empty()) return {};
  const RungResult& first = findings.ladder.front();
  Table rates = {
      "Acceleration ladder, img/s (x: over vanilla; paper: A100, batch 128, 224 pixels)",
      {"step", "M params", "inference", "x", "training", "x", "paper inf", "x", "paper train", "x"},
      {},
      {}};
  std::vector<Measurement> all;
  for (const RungResult& result : findings.ladder) {
    const Rung& rung = result.rung;
    rates.rows.push_back(
        {rung.step, fmt::format("{:.2f}", result.parameters / 1e6), marked_rate(result.inference),
         speedup(result.inference, first.inference), marked_rate(result.training),
         speedup(result.training, first.training), paper(rung.paper_inference),
         speedup(rung.paper_inference, first.rung.paper_inference), paper(rung.paper_training),
         speedup(rung.paper_training, first.rung.paper_training)});
    rates.notes.push_back(fmt::format("{}: {}.", rung.step, rung.change));
    all.insert(all.end(), {result.inference, result.training});
  }
  const std::vector<std::string> notes = notes_on_spread(all);
  rates.notes.insert(rates.notes.end(), notes.begin(), notes.end());
  return {rates};
}

std::vector<Table> mode_tables(const Findings& findings) {
  if (!findings.modes) return {};
  const ScanModes& modes = *findings.modes;
  Table table = {
      fmt::format("Scan modes, training, {} rounds of {} steps, batch {}", modes.rounds,
                  modes.steps, modes.batch),
      {"mode", "img/s", "least", "most", "+-%", "x cross", "+-% of x", "round +-%", "drift %"},
      {},
      {}};
  for (const ModeResult& mode : modes.modes) table.rows.push_back(cells_of(mode));
  if (modes.batch == 0) table.notes.emplace_back("Not even one image fits the memory.");
  return {table};
}

std::vector<Table> states_tables(const Findings& findings) {
  if (!findings.states) return {};
  const StatesCost& cost = *findings.states;
  const Ss2dSize& shape = cost.shape;
  const bool cpu = !findings.compute.on_gpu();
  Table times = {
      fmt::format("States: ss2d of {} x {} x {} x {}", shape.batch, shape.channels, shape.height,
                  shape.width),
      {"states", "forward ms", "+-%", "ms a state", "fwd+bwd ms", "+-%", "ms a state", "MB"},
      {},
      {}};
  Table plans = {
      fmt::format("Plans for {}", cost.planned_for),
      {"states", "forward", "KiB", "blocks", "occup. %", "backward", "KiB", "blocks", "occup. %"},
      {},
      {"KiB of shared memory a block, blocks a multiprocessor; occupancy: warps that a "
       "multiprocessor holds, of those it could hold."}};
  for (const StatesRow& row : cost.rows) {
    std::vector<std::string> cells = {std::to_string(row.states)};
    append_times(row.forward, row.states, &cells);
    append_times(row.training, row.states, &cells);
    cells.push_back(row.training.measured() ? mb(row.training.peak_bytes) : "-");
    if (cpu) cells.push_back(kib(row.scratch_bytes));
    times.rows.push_back(std::move(cells));
    const PlannedPass &ahead = row.planned_forward, &back = row.planned_backward;
    plans.rows.push_back({std::to_string(row.states), ahead.kernels, kib(ahead.shared_bytes),
                          std::to_string(ahead.blocks), percent(ahead.occupancy), back.kernels,
                          kib(back.shared_bytes), std::to_string(back.blocks),
                          percent(back.occupancy)});
  }
  if (cpu) times.columns.emplace_back("scratch KiB");
  return {times, plans};
}

}  // namespace linescan::lab
