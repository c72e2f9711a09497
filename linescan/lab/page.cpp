// The page of a laboratory run: what was measured, drawn.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "linescan/lab/findings.h"
#include "linescan/lab/page_charts.h"
#include "linescan/lab/page_style.h"
#include "linescan/train/report_page.h"
#include "linescan/train/report_text.h"
#include "linescan/train/svg.h"

namespace linescan::lab {
namespace {

using report::Point;
using report::Scale;
using report::Series;

std::string tables_html(const std::vector<Table>& tables) {
  std::string html;
  for (const Table& table : tables)
    html += fmt::format("<h3 class=\"over\">{}</h3>{}", report::escape_html(table.title),
                        to_html(table));
  return html;
}

std::string curve_chart(const Sweep& sweep, const char* title, const char* unit,
                        std::vector<Measurement> Curve::*member,
                        const std::function<double(const Measurement&)>& value) {
  std::vector<Series> all;
  for (const Curve& curve : sweep.curves) {
    Series series = series_of(curve.label, all.size());
    for (const Measurement& measurement : curve.*member)
      if (measurement.fitted())
        series.points.push_back({static_cast<double>(measurement.size), value(measurement)});
    all.push_back(std::move(series));
  }
  return drawn(title, unit, "height and width in pixels", scale_through(sweep.sizes),
               std::move(all));
}

std::string headline(const Findings& findings) {
  std::string facts;
  for (const Measurement& m : findings.measurements)
    facts += fmt::format("<div><dt>{}, {}</dt><dd>{} images/s</dd></div>", name_of(m.kind),
                         linescan::name_of(m.precision),
                         m.fitted() ? report::value_text(m.images_per_second()) : "–");
  const auto training =
      std::find_if(findings.measurements.begin(), findings.measurements.end(),
                   [](const Measurement& m) { return m.kind != StepKind::kInference; });
  std::string main = "<p class=\"big\">–</p>";
  if (training != findings.measurements.end() && training->fitted())
    main = fmt::format(
        "<p class=\"big\">{}<span> images/s</span></p><p><b>{}</b> in {}, batch {}, spread {}</p>",
        report::value_text(training->images_per_second()), name_of(training->kind),
        linescan::name_of(training->precision), training->batch,
        training->timed.seconds.count > 1
            ? "±" + report::percent_text(training->timed.seconds.variation())
            : "not known");
  return report::masthead(
             "throughput", findings.model,
             fmt::format("{} × {} pixels <i>·</i> {} parameters <i>·</i> {}", findings.size,
                         findings.size,
                         report::short_count_text(static_cast<double>(findings.parameters)),
                         report::escape_html(describe(findings.compute)))) +
         fmt::format(
             "<section class=\"headline\"><div class=\"main\">{}</div><dl>{}</dl></section>\n",
             main, facts);
}

std::string breakdown_section(const Findings& findings) {
  std::string body;
  for (const StepBreakdown& step : findings.breakdowns) body += bar_of(step);
  return report::section("Where a step's time goes",
                         "One step, recorded operator by operator; the rest is activations, sums, "
                         "the loss and what lies between operators.",
                         body + tables_html(breakdown_tables(findings)));
}

std::string sweep_section(const Findings& findings) {
  const Sweep& sweep = *findings.sweep;
  const auto rate = [](const Measurement& m) { return m.images_per_second(); };
  const auto memory = [](const Measurement& m) {
    return static_cast<double>(m.timed.peak_bytes) / 1e6;
  };
  std::string body = "<div class=\"pair\">";
  body += curve_chart(sweep, "Training", "images per second", &Curve::training, rate);
  body += curve_chart(sweep, "Inference", "images per second", &Curve::inference, rate);
  body += curve_chart(sweep, "Memory of training", "MB at most", &Curve::training, memory);
  body += curve_chart(sweep, "Pixels", "training, million per second", &Curve::training,
                      [](const Measurement& m) { return m.pixels_per_second() / 1e6; });
  body += "</div>";
  return report::section("Throughput and image size",
                         "Each rival's depth and width are those that bring its number of "
                         "parameters nearest to the model's.",
                         body + tables_html(sweep_tables(findings)));
}

std::string ladder_section(const Findings& findings) {
  const std::vector<RungResult>& ladder = findings.ladder;
  const auto over_first = [&](const RungResult& result) {
    const bool both = result.training.fitted() && ladder.front().training.fitted();
    return both ? result.training.images_per_second() / ladder.front().training.images_per_second()
                : 0.0;
  };
  double most = 1;
  for (const RungResult& result : ladder) {
    const double paper = result.rung.paper_training / ladder.front().rung.paper_training;
    for (const double speedup : {over_first(result), paper})
      if (std::isfinite(speedup)) most = std::max(most, speedup);
  }
  std::string rows;
  for (const RungResult& result : ladder) {
    const double ours = over_first(result);
    const double paper = result.rung.paper_training / ladder.front().rung.paper_training;
    rows += fmt::format(
        "<tr><th>{}</th><td>{}</td><td class=\"wide\">{}</td><td>{}</td><td>{}</td></tr>",
        report::escape_html(result.rung.step), report::escape_html(result.rung.change),
        report::bar(ours / most, paper / most), ours > 0 ? report::value_text(ours) : "–",
        std::isfinite(paper) ? report::value_text(paper) : "–");
  }
  const std::string picture = fmt::format(
      "<h3 class=\"over\">Training over vanilla <i class=\"key fill\"></i><small>here</small> "
      "<i class=\"key marker\"></i><small>as published, A100</small></h3><div class=\"scroll\">"
      "<table class=\"classes ladder\"><thead><tr><th>step</th><th>what is new</th><th></th>"
      "<th>here</th><th>published</th></tr></thead><tbody>{}</tbody></table></div>",
      rows);
  std::vector<Table> tables = ladder_tables(findings);
  for (Table& table : tables)  // what is new in a step is in the picture
    table.notes.erase(table.notes.begin(), table.notes.begin() + std::ssize(ladder));
  return report::section("Acceleration ladder", "", picture + tables_html(tables));
}

std::string modes_section(const Findings& findings) {
  const ScanModes& modes = *findings.modes;
  std::vector<Series> all;
  for (const ModeResult& mode : modes.modes) {
    Series series = series_of(mode.mode, all.size());
    for (std::size_t i = 0; i < mode.rates.size(); ++i)
      series.points.push_back({static_cast<double>(i + 1), mode.rates[i]});
    all.push_back(std::move(series));
  }
  const Scale rounds = report::tight_scale(1, std::max(2, modes.rounds), 7, 1);
  const bool any = std::any_of(modes.modes.begin(), modes.modes.end(),
                               [](const ModeResult& mode) { return !mode.rates.empty(); });
  const std::string chart =
      !any ? ""
           : "<div class=\"single\">" +
                 drawn("Training by round", "images per second", "round", rounds, std::move(all)) +
                 "</div>";
  return report::section("Scan modes", "Every round times all modes in turn.",
                         chart + tables_html(mode_tables(findings)));
}

std::string states_section(const Findings& findings) {
  const StatesCost& cost = *findings.states;
  std::vector<int64_t> counts;
  std::vector<Series> times = {series_of("forward", 0), series_of("forward and backward", 1)};
  std::vector<Series> occupancy = {series_of("forward", 0), series_of("backward", 1)};
  for (const StatesRow& row : cost.rows) {
    const auto x = static_cast<double>(row.states);
    counts.push_back(row.states);
    if (row.forward.measured()) times[0].points.push_back({x, row.forward.seconds.median * 1e3});
    if (row.training.measured()) times[1].points.push_back({x, row.training.seconds.median * 1e3});
    occupancy[0].points.push_back({x, 100 * row.planned_forward.occupancy});
    occupancy[1].points.push_back({x, 100 * row.planned_backward.occupancy});
  }
  if (counts.empty()) return "";
  const Scale x = doubling_scale(counts);
  std::string body = "<div class=\"pair\">";
  body += drawn("Time of the scan", "ms", "states", x, std::move(times));
  body += drawn("Occupancy as planned", fmt::format("%, {}", cost.planned_for), "states", x,
                std::move(occupancy));
  body += "</div>";
  return report::section("Number of states", "", body + tables_html(states_tables(findings)));
}

std::string machine_section(const Findings& findings) {
  report::Table table;
  for (const auto& [key, value] : findings.machine.items())
    table.rows.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  return report::machine_section(table);
}

}  // namespace

std::string page_of(const Findings& findings) {
  std::string body = headline(findings);
  body += report::section(
      "How fast it is",
      fmt::format("One batch stays on the device; steps to warm up: {}, timed: {}; no data are "
                  "loaded{}.",
                  findings.protocol.warmup, findings.protocol.repetitions,
                  findings.protocol.graph ? "; steps are recorded as a CUDA graph" : ""),
      tables_html(throughput_tables(findings)));
  if (!findings.breakdowns.empty()) body += breakdown_section(findings);
  if (findings.sweep) body += sweep_section(findings);
  if (!findings.ladder.empty()) body += ladder_section(findings);
  if (findings.modes) body += modes_section(findings);
  if (findings.states) body += states_section(findings);
  body += machine_section(findings);
  return report::html_page(findings.model + " throughput", body, kPageStyle);
}

}  // namespace linescan::lab
