#include <fmt/format.h>

#include <functional>

#include "linescan/lab/figures.h"
#include "linescan/lab/findings.h"

namespace linescan::lab {
namespace {

Table rates_table(const Findings& findings) {
  Table table = {
      "Throughput",
      {"step", "prec", "batch", "img/s", "+-%", "MB", "Mpixel/s", "GFLOP/s", "% of peak"},
      {},
      {}};
  for (const Measurement& m : findings.measurements)
    table.rows.push_back({std::string(name_of(m.kind)), std::string(linescan::name_of(m.precision)),
                          std::to_string(m.batch), rate(m), percent(m.timed.seconds.variation()),
                          mb(m.timed.peak_bytes), figure(m.pixels_per_second() / 1e6),
                          figure(m.flop_per_second() / 1e9), percent(m.share_of_peak())});
  for (const Measurement& m : findings.measurements)
    if (m.kind == StepKind::kTraining && m.products_per_second > 0)
      table.notes.push_back(
          fmt::format("Peak in {}: {} GFLOP/s, a large matrix product measured here.",
                      linescan::name_of(m.precision), figure(m.products_per_second / 1e9)));
  for (const Measurement& m : findings.measurements)
    if (m.batch != m.asked_batch)
      table.notes.push_back(fmt::format("{} in {}: {} images did not fit the memory.",
                                        name_of(m.kind), linescan::name_of(m.precision),
                                        m.asked_batch));
  return table;
}

Table times_table(const Findings& findings) {
  Table table = {
      "Times of a step, ms",
      {"step", "prec", "median", "mean", "deviation", "least", "p10", "p90", "most", "steps"},
      {},
      {}};
  for (const Measurement& m : findings.measurements) {
    const Statistics& s = m.timed.seconds;
    table.rows.push_back({std::string(name_of(m.kind)), std::string(linescan::name_of(m.precision)),
                          ms(s.median), ms(s.mean), ms(s.deviation), ms(s.least), ms(s.p10),
                          ms(s.p90), ms(s.most), std::to_string(s.count)});
  }
  return table;
}

Table curve_table(const Sweep& sweep, const char* title, std::vector<Measurement> Curve::*member,
                  const std::function<std::string(const Measurement&)>& cell) {
  Table table = {title, {"pixels"}, {}, {}};
  for (const Curve& curve : sweep.curves) table.columns.push_back(curve.label);
  for (std::size_t i = 0; i < sweep.sizes.size(); ++i) {
    auto& row = table.rows.emplace_back();
    row.push_back(std::to_string(sweep.sizes[i]));
    for (const Curve& curve : sweep.curves) row.push_back(cell((curve.*member)[i]));
  }
  return table;
}

std::string with_batch(const Measurement& measurement) {
  if (!measurement.fitted() || measurement.batch == measurement.asked_batch)
    return rate(measurement);
  return fmt::format("{} (batch {})", rate(measurement), measurement.batch);
}

}  // namespace

std::vector<Table> throughput_tables(const Findings& findings) {
  if (findings.measurements.empty()) return {};
  return {rates_table(findings), times_table(findings)};
}

std::vector<Table> breakdown_tables(const Findings& findings) {
  if (findings.breakdowns.empty()) return {};
  Table table = {"Breakdown of a step", {"part"}, {}, {}};
  for (const StepBreakdown& step : findings.breakdowns) {
    table.columns.push_back(fmt::format("{}, ms", name_of(step.kind)));
    table.columns.emplace_back("%");
  }
  for (int i = 0; i < kCategories; ++i) {
    std::vector<std::string> row = {std::string(name_of(static_cast<Category>(i)))};
    double sum = 0;
    for (const StepBreakdown& step : findings.breakdowns) {
      sum += step.breakdown.seconds[i];
      row.push_back(ms(step.breakdown.seconds[i]));
      row.push_back(percent(step.breakdown.share(static_cast<Category>(i))));
    }
    if (sum > 0) table.rows.push_back(std::move(row));
  }
  return {table};
}

std::vector<Table> sweep_tables(const Findings& findings) {
  if (!findings.sweep) return {};
  const Sweep& sweep = *findings.sweep;
  std::vector<Table> tables = {
      curve_table(sweep, "Training by image size, img/s", &Curve::training, with_batch),
      curve_table(sweep, "Inference by image size, img/s", &Curve::inference, with_batch),
      curve_table(sweep, "Peak memory of training by image size, MB", &Curve::training,
                  [](const Measurement& m) { return m.fitted() ? mb(m.timed.peak_bytes) : "-"; })};
  for (const Curve& curve : sweep.curves)
    tables[0].notes.push_back(
        fmt::format("{}: {:.2f} million parameters.", curve.label, curve.parameters / 1e6));
  tables[1].notes = sweep.findings;
  return tables;
}

std::string to_text(const Findings& findings) {
  std::string text;
  for (const auto tables : {throughput_tables, breakdown_tables, sweep_tables, ladder_tables,
                            mode_tables, states_tables})
    for (const Table& table : tables(findings)) text += '\n' + to_text(table);
  return text;
}

}  // namespace linescan::lab
