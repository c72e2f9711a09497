#include "linescan/lab/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "linescan/train/report_text.h"

namespace linescan::lab {
namespace {

constexpr std::size_t kColumns = 80;

std::vector<std::size_t> widths_of(const Table& table) {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    widths.push_back(table.columns[i].size());
    for (const auto& row : table.rows) widths[i] = std::max(widths[i], row[i].size());
  }
  return widths;
}

std::string line_of(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths,
                    std::size_t gap) {
  std::string line = fmt::format("{:<{}}", cells[0], widths[0]);
  for (std::size_t i = 1; i < cells.size(); ++i)
    line += fmt::format("{:>{}}", cells[i], widths[i] + gap);
  return line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
}

std::string wrapped(const std::string& sentence) {
  std::istringstream words(sentence);
  std::string text, line;
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > kColumns) {
      text += line + '\n';
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return text + line + '\n';
}

}  // namespace

std::string to_text(const Table& table) {
  std::string text = table.title + '\n';
  if (!table.rows.empty()) {
    const std::vector<std::size_t> widths = widths_of(table);
    const std::size_t letters = std::accumulate(widths.begin(), widths.end(), std::size_t{0});
    const std::size_t gap = letters + 2 * (widths.size() - 1) <= kColumns ? 2 : 1;
    text += line_of(table.columns, widths, gap);
    for (const auto& row : table.rows) text += line_of(row, widths, gap);
  }
  for (const std::string& note : table.notes) text += wrapped(note);
  return text;
}

std::string to_html(const Table& table) {
  std::string html;
  if (!table.rows.empty()) {
    html = "<div class=\"scroll\"><table class=\"measured\"><thead><tr>";
    for (const std::string& column : table.columns)
      html += fmt::format("<th>{}</th>", report::escape_html(column));
    html += "</tr></thead><tbody>";
    for (const auto& row : table.rows) {
      html += "<tr>";
      for (const std::string& cell : row)
        html += fmt::format("<td>{}</td>", report::escape_html(cell));
      html += "</tr>";
    }
    html += "</tbody></table></div>";
  }
  for (const std::string& note : table.notes)
    html += fmt::format("<p class=\"note\">{}</p>", report::escape_html(note));
  return html;
}

}  // namespace linescan::lab
