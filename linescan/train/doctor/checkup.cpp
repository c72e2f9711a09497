#include "linescan/train/doctor/checkup.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

namespace linescan {
namespace {

constexpr std::size_t kColumns = 80;

// Words in lines that begin with `indent`, the first with `start`. A word that is too long for a line
// has one of its own.
std::string wrapped(const std::string& start, const std::string& indent, const std::string& words) {
  std::string text, line = start;
  bool empty = true;
  std::istringstream stream(words);
  for (std::string word; stream >> word; empty = false) {
    if (!empty && line.size() + 1 + word.size() > kColumns) {
      text += line + '\n';
      line = indent;
      empty = true;
    }
    line += (empty ? "" : " ") + word;
  }
  return text + line + '\n';
}

// One error fails many checks: what was said of an earlier one need not be said again.
const Finding* said_before(const Checkup& checkup, const Finding& finding) {
  for (const Finding& earlier : checkup.findings) {
    if (&earlier == &finding) break;
    if (earlier.grade == finding.grade && earlier.measured == finding.measured &&
        earlier.advice == finding.advice)
      return &earlier;
  }
  return nullptr;
}

}  // namespace

std::string_view name_of(Grade grade) {
  constexpr std::array<std::string_view, 4> kNames = {"pass", "warn", "fail", "skip"};
  return kNames[static_cast<std::size_t>(grade)];
}

bool Checkup::failed() const {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.grade == Grade::kFail; });
}

std::string to_text(const Checkup& checkup) {
  std::string text;
  for (const Finding& finding : checkup.findings) {
    const std::string start = fmt::format("{:<6}{:<12}", name_of(finding.grade), finding.check);
    const std::string indent(start.size(), ' ');
    if (const Finding* earlier = said_before(checkup, finding)) {
      text += wrapped(start, indent, fmt::format("the same as '{}' above", earlier->check));
      continue;
    }
    text += wrapped(start, indent, finding.measured);
    if (!finding.advice.empty()) text += wrapped(indent + "-> ", indent + "   ", finding.advice);
  }
  const auto count = [&](Grade grade) {
    return std::count_if(checkup.findings.begin(), checkup.findings.end(),
                         [&](const Finding& finding) { return finding.grade == grade; });
  };
  return text + fmt::format("\n{} passed, {} to look at, {} failed, {} skipped\n",
                            count(Grade::kPass), count(Grade::kWarn), count(Grade::kFail),
                            count(Grade::kSkip));
}

nlohmann::json to_json(const Checkup& checkup) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Finding& finding : checkup.findings) {
    checks.push_back({{"check", finding.check},
                      {"grade", name_of(finding.grade)},
                      {"measured", finding.measured},
                      {"advice", finding.advice}});
    if (!finding.parameters.empty()) checks.back()["parameters"] = finding.parameters;
  }
  return {{"failed", checkup.failed()}, {"checks", checks}};
}

}  // namespace linescan
