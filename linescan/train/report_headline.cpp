#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "linescan/train/report_sections.h"
#include "linescan/train/report_text.h"

namespace linescan::report {
namespace {

double first_known(double a, double b) { return std::isfinite(a) ? a : b; }

// Wilson's interval: where the true accuracy lies with 95 % confidence, given that `share` of
// `images` independent images were right.
struct Interval {
  double low, high;
};
Interval wilson_interval(double share, double images) {
  constexpr double z = 1.959964;
  const double spread = z * z / images;
  const double center = (share + spread / 2) / (1 + spread);
  const double half =
      z * std::sqrt(share * (1 - share) / images + spread / (4 * images)) / (1 + spread);
  return {center - half, center + half};
}

void append_fact(std::string* out, std::string_view name, const std::string& value) {
  fmt::format_to(std::back_inserter(*out), "<div><dt>{}</dt><dd>{}</dd></div>", name,
                 escape_html(value));
}

// "vmamba_fashion · 12 epochs, 4,680 steps · trained in 1 min 58 s"
std::string subtitle(const RunData& run, double seconds) {
  std::string line = escape_html(run.summary.model);
  const auto add = [&](const std::string& part) {
    if (!line.empty()) line += " <i>·</i> ";
    line += part;
  };
  const bool done = run.summary.note.empty();
  double epochs = run.summary.epochs, steps = run.summary.steps;
  if (!done && !run.metrics.train.empty()) {
    steps = run.metrics.train.back().step;
    epochs = kAbsent;  // of a run that goes on, the steps say it more exactly
  }
  if (std::isfinite(epochs))
    add(fmt::format("{:.3g} {}", epochs, epochs == 1 ? "epoch" : "epochs"));
  if (std::isfinite(steps)) add(fmt::format("{} steps", value_text(steps)));
  if (std::isfinite(seconds))
    add((done ? "trained in " : "training for ") + duration_text(seconds));
  return line;
}

double latest_validation(const RunData& run) {
  for (auto row = run.metrics.evals.rbegin(); row != run.metrics.evals.rend(); ++row)
    if (std::isfinite(row->val_top1)) return row->val_top1;
  return kAbsent;
}

std::string main_figure(const RunData& run, double top1) {
  if (!std::isfinite(top1)) {
    const double validation = latest_validation(run);
    if (!std::isfinite(validation))
      return R"(<div class="main"><p class="big">–</p><p>Not tested yet.</p></div>)";
    return fmt::format(
        R"(<div class="main"><p class="big">{}</p><p><b>validation accuracy</b> so far. )"
        "The test {} have not been looked at yet.</p></div>",
        percent_text(validation), run.about_images ? "images" : "sequences");
  }
  std::string text = fmt::format(
      R"(<div class="main"><p class="big">{:.2f}<span> %</span></p><p><b>test accuracy</b>, top-1)",
      100 * top1);
  const double images = run.evaluation.images;
  if (images >= 1 && top1 >= 0 && top1 <= 1) {
    const Interval interval = wilson_interval(top1, images);
    text += fmt::format("<br>{} {}; 95&nbsp;% interval {:.1f}–{}", value_text(images),
                        run.about_images ? "images" : "answers", 100 * interval.low,
                        percent_text(interval.high));
  }
  return text + "</p></div>";
}

}  // namespace

std::string headline_section(const RunData& run) {
  const Summary& summary = run.summary;
  const Evaluation& evaluation = run.evaluation;
  // The evaluation is what the sections below show, so its figures lead.
  const double top1 = first_known(evaluation.top1, summary.test_top1);
  const double last_seconds =
      run.metrics.train.empty() ? kAbsent : run.metrics.train.back().seconds;
  const double seconds = first_known(summary.training_seconds, last_seconds);
  std::string out = masthead("run report", run.name, subtitle(run, seconds));
  out += fmt::format("<section class=\"headline\">{}<dl>", main_figure(run, top1));
  append_fact(&out, "test accuracy, top-5",
              percent_text(first_known(evaluation.top5, summary.test_top5), 2));
  append_fact(&out, "test loss", value_text(first_known(evaluation.loss, summary.test_loss)));
  append_fact(&out, "best validation", percent_text(summary.best_val_top1, 2));
  append_fact(&out, "training time", duration_text(seconds));
  const bool has_rate = std::isfinite(summary.images_per_s);
  append_fact(&out, "training speed",
              value_text(summary.images_per_s) + (!has_rate          ? ""
                                                  : run.about_images ? " images/s"
                                                                     : " sequences/s"));
  append_fact(&out, "parameters", short_count_text(summary.parameters));
  out += "</dl></section>\n";
  if (!summary.note.empty())
    out += missing(summary.note + " Training goes on, or was stopped before its end.");
  return out;
}

}  // namespace linescan::report
