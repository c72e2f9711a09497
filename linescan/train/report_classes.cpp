#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "linescan/train/report_sections.h"
#include "linescan/train/report_text.h"
#include "linescan/train/svg.h"

namespace linescan::report {
namespace {

constexpr std::size_t kMostMatrixClasses = 40;    // a larger matrix has cells too small to see
constexpr std::size_t kMostLabelledClasses = 16;  // a larger one has cells too small for numbers
constexpr std::size_t kMostTableRows = 20;
constexpr std::size_t kMostConfusions = 6;
constexpr std::size_t kMostLetters = 18;  // of a class name beside the matrix

struct ClassFigures {
  std::size_t index = 0;
  int64_t images = 0;     // truly of this class
  int64_t predicted = 0;  // taken for this class
  double recall = kAbsent;
  double precision = kAbsent;
};

std::vector<ClassFigures> figures_of(const std::vector<std::vector<int64_t>>& confusion) {
  std::vector<ClassFigures> figures(confusion.size());
  for (std::size_t row = 0; row < confusion.size(); ++row)
    for (std::size_t column = 0; column < confusion.size(); ++column) {
      figures[row].images += confusion[row][column];
      figures[column].predicted += confusion[row][column];
    }
  for (std::size_t i = 0; i < figures.size(); ++i) {
    figures[i].index = i;
    const auto right = static_cast<double>(confusion[i][i]);
    if (figures[i].images > 0) figures[i].recall = right / figures[i].images;
    if (figures[i].predicted > 0) figures[i].precision = right / figures[i].predicted;
  }
  return figures;
}

std::string matrix(const Evaluation& evaluation, const std::vector<ClassFigures>& figures) {
  const std::size_t classes = evaluation.confusion.size();
  HeatMap map;
  map.label = "Confusion matrix";
  map.row_title = "true class";
  map.column_title = "predicted class";
  map.cells.resize(classes);
  for (std::size_t row = 0; row < classes; ++row) {
    map.rows.push_back(shorten(evaluation.classes[row], kMostLetters));
    for (std::size_t column = 0; column < classes; ++column) {
      HeatCell cell;
      const int64_t count = evaluation.confusion[row][column];
      const double share =
          figures[row].images > 0 ? static_cast<double>(count) / figures[row].images : 0;
      cell.expected = row == column;
      // Errors are rare; the root lets one in a hundred be seen, and a third is full colour.
      cell.strength = cell.expected ? 0.9 * share : std::min(1.0, std::sqrt(share / 0.33));
      cell.hint = fmt::format("{} taken for {}: {} of {} ({})", evaluation.classes[row],
                              evaluation.classes[column], count_text(count),
                              count_text(figures[row].images), percent_text(share));
      if (classes <= kMostLabelledClasses && count > 0) {
        cell.text = count_text(count);
        cell.detail = percent_text(share);
      }
      map.cells[row].push_back(std::move(cell));
    }
  }
  map.columns = map.rows;
  return fmt::format("<figure class=\"matrix{}\">{}</figure>",
                     classes > kMostLabelledClasses ? " dense" : "", heat_map(map));
}

std::string class_table(const Evaluation& evaluation, std::vector<ClassFigures> figures) {
  const bool all = figures.size() <= kMostTableRows;
  if (!all) {
    const auto recall = [](const ClassFigures& f) {
      return std::isfinite(f.recall) ? f.recall : 2;
    };
    std::stable_sort(
        figures.begin(), figures.end(),
        [&](const ClassFigures& a, const ClassFigures& b) { return recall(a) < recall(b); });
    figures.resize(kMostTableRows);
  }
  std::string out = fmt::format(
      "<h3>{}</h3><table class=\"classes\"><thead><tr><th>class</th><th class=\"wide\"></th>"
      "<th><i class=\"key fill\"></i>recall</th><th><i class=\"key marker\"></i>precision</th></tr>"
      "</thead><tbody>",
      all ? "Each class" : fmt::format("The {} weakest classes", figures.size()));
  for (const ClassFigures& f : figures)
    fmt::format_to(std::back_inserter(out),
                   "<tr><th>{}</th><td class=\"wide\">{}</td><td>{}</td><td>{}</td></tr>",
                   escape_html(evaluation.classes[f.index]), bar(f.recall, f.precision),
                   percent_text(f.recall), percent_text(f.precision));
  return out + "</tbody></table>";
}

std::string confusion_list(const Evaluation& evaluation, const std::vector<ClassFigures>& figures) {
  struct Confusion {
    int64_t count;
    std::size_t label, predicted;
  };
  std::vector<Confusion> confusions;
  for (std::size_t row = 0; row < figures.size(); ++row)
    for (std::size_t column = 0; column < figures.size(); ++column)
      if (row != column && evaluation.confusion[row][column] > 0)
        confusions.push_back({evaluation.confusion[row][column], row, column});
  if (confusions.empty()) return "";
  std::stable_sort(confusions.begin(), confusions.end(),
                   [](const Confusion& a, const Confusion& b) { return a.count > b.count; });
  if (confusions.size() > kMostConfusions) confusions.resize(kMostConfusions);
  std::string out = "<h3>Most frequent confusions</h3><ol class=\"confusions\">";
  for (const Confusion& c : confusions)
    fmt::format_to(std::back_inserter(out),
                   "<li><span>{} <i>taken for</i> {}</span><b>{}</b><small>{}</small></li>",
                   escape_html(evaluation.classes[c.label]),
                   escape_html(evaluation.classes[c.predicted]), count_text(c.count),
                   percent_text(static_cast<double>(c.count) / figures[c.label].images));
  return out + "</ol>";
}

}  // namespace

std::string classes_section(const RunData& run) {
  constexpr const char* kTitle = "Class by class";
  const Evaluation& evaluation = run.evaluation;
  if (!evaluation.note.empty()) return section(kTitle, "", missing(evaluation.note));
  if (evaluation.confusion.empty())
    return section(kTitle, "", missing("The evaluation has no confusion matrix."));
  const std::vector<ClassFigures> figures = figures_of(evaluation.confusion);
  const bool small = figures.size() <= kMostMatrixClasses;
  std::string body = fmt::format("<div class=\"{}\">", small ? "split" : "single");
  if (small) body += matrix(evaluation, figures);
  body += "<div>" + class_table(evaluation, figures) + confusion_list(evaluation, figures) +
          "</div></div>";
  return section(
      kTitle,
      "Test images. Recall is the share of a class that is found, precision the share of "
      "answers that are right; percentages in the matrix are shares of a row.",
      body);
}

}  // namespace linescan::report
