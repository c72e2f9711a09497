#include <fmt/format.h>

#include <functional>

#include "linescan/lab/figures.h"
#include "linescan/lab/findings.h"

namespace linescan::lab {
namespace {

void append(const std::vector<std::string>& more, std::vector<std::string>* all) {
  all->insert(all->end(), more.begin(), more.end());
}

std::vector<std::string> step_of(const Measurement& measurement) {
  return {std::string(name_of(measurement.kind)),
          std::string(linescan::name_of(measurement.precision))};
}

Table rates_table(const Findings& findings) {
  Table table = {
      "Throughput",
      {"step", "prec", "batch", "img/s", "+-%", "MB", "Mpixel/s", "GFLOP/s", "% of peak"},
      {},
      {}};
  for (const Measurement& m : findings.measurements) {
    std::vector<std::string> row = step_of(m);
    if (m.fitted())
      row.insert(row.end(), {std::to_string(m.batch), marked_rate(m), spread(m.timed),
                             mb(m.timed.peak_bytes), figure(m.pixels_per_second() / 1e6),
                             figure(m.flop_per_second() / 1e9), percent(m.share_of_peak())});
    else
      row.insert(row.end(), {"-", kNoMemory, "-", "-", "-", "-", "-"});
    table.rows.push_back(std::move(row));
  }
  for (const Measurement& m : findings.measurements)
    if (m.kind == StepKind::kTraining && m.products_per_second > 0)
      table.notes.push_back(
          fmt::format("Peak in {}: {} GFLOP/s, a large matrix product measured here.",
                      linescan::name_of(m.precision), figure(m.products_per_second / 1e9)));
  for (const Measurement& m : findings.measurements)
    if (m.batch != m.asked_batch)
      table.notes.push_back(
          fmt::format("{} in {}: {} the memory.", name_of(m.kind), linescan::name_of(m.precision),
                      m.fitted() ? fmt::format("{} images did not fit", m.asked_batch)
                                 : "not even one image fits"));
  append(notes_on_spread(findings.measurements), &table.notes);
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
    std::vector<std::string> row = step_of(m);
    if (m.fitted())
      row.insert(row.end(),
                 {ms(s.median), ms(s.mean), s.count > 1 ? ms(s.deviation) : "-", ms(s.least),
                  ms(s.p10), ms(s.p90), ms(s.most), std::to_string(s.count)});
    else
      row.insert(row.end(), {kNoMemory, "-", "-", "-", "-", "-", "-", "-"});
    table.rows.push_back(std::move(row));
  }
  return table;
}

using Cells = std::function<std::vector<std::string>(const Measurement&)>;

// `names`: the columns of a curve behind that of its label.
Table curve_table(const Sweep& sweep, const char* title, std::vector<Measurement> Curve::*member,
                  const std::vector<std::string>& names, const Cells& cells) {
  Table table = {title, {"pixels"}, {}, {}};
  for (const Curve& curve : sweep.curves) {
    table.columns.push_back(curve.label);
    append(names, &table.columns);
  }
  for (std::size_t i = 0; i < sweep.sizes.size(); ++i) {
    auto& row = table.rows.emplace_back();
    row.push_back(std::to_string(sweep.sizes[i]));
    for (const Curve& curve : sweep.curves) append(cells((curve.*member)[i]), &row);
  }
  return table;
}

std::vector<std::string> rate_cells(const Measurement& measurement) {
  std::string cell = marked_rate(measurement);
  if (measurement.fitted() && measurement.batch != measurement.asked_batch)
    cell += fmt::format(" (batch {})", measurement.batch);
  return {cell, measurement.fitted() ? spread(measurement.timed) : "-"};
}

Table rate_table(const Sweep& sweep, const char* title, std::vector<Measurement> Curve::*member) {
  Table table = curve_table(sweep, title, member, {"+-%"}, rate_cells);
  std::vector<Measurement> all;
  for (const Curve& curve : sweep.curves)
    all.insert(all.end(), (curve.*member).begin(), (curve.*member).end());
  table.notes = notes_on_spread(all);
  return table;
}

// Which steps were recorded with fewer images than their rates were measured with.
std::string smaller_batches(const std::vector<StepBreakdown>& steps) {
  std::string text;
  for (const auto& [kind, breakdown] : steps)
    if (breakdown.batch != breakdown.asked_batch)
      text +=
          fmt::format("{} {} {}", text.empty() ? " (batch:" : ",", name_of(kind), breakdown.batch);
  return text.empty() ? text : text + ')';
}

}  // namespace

std::vector<Table> throughput_tables(const Findings& findings) {
  if (findings.measurements.empty()) return {};
  return {rates_table(findings), times_table(findings)};
}

std::vector<Table> breakdown_tables(const Findings& findings) {
  if (findings.breakdowns.empty()) return {};
  const std::string smaller = smaller_batches(findings.breakdowns);
  Table table = {"Breakdown of a step" + smaller, {"part"}, {}, {}};
  if (!smaller.empty())
    table.notes.emplace_back("A recorded step needs more memory: the batch above did not fit.");
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
      rate_table(sweep, "Training by image size, img/s", &Curve::training),
      rate_table(sweep, "Inference by image size, img/s", &Curve::inference),
      curve_table(sweep, "Peak memory of training by image size, MB", &Curve::training, {},
                  [](const Measurement& m) -> std::vector<std::string> {
                    return {m.fitted() ? mb(m.timed.peak_bytes) : "-"};
                  })};
  for (const Curve& curve : sweep.curves)
    tables[0].notes.push_back(
        fmt::format("{}: {:.2f} million parameters.", curve.label, curve.parameters / 1e6));
  append(sweep.findings, &tables[1].notes);
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
