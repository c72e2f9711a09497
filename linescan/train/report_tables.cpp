#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "linescan/train/report_sections.h"
#include "linescan/train/report_text.h"

namespace linescan::report {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

// What machine.json says, in this order and in these words; what else it says comes after.
constexpr std::pair<std::string_view, std::string_view> kMachineFacts[] = {
    {"gpu", "GPU"},
    {"gpu_memory_gb", "GPU memory, GB"},
    {"cpu", "processor"},
    {"cores", "cores"},
    {"threads", "threads used"},
    {"memory_gb", "memory, GB"},
    {"simd", "instruction set"},
    {"os", "system"},
    {"linescan", "Linescan"},
    {"libtorch", "LibTorch"},
    {"compiler", "compiler"},
};

Rows machine_rows(Rows given) {
  Rows rows;
  for (const auto& [key, label] : kMachineFacts) {
    const auto found =
        std::find_if(given.begin(), given.end(), [&](const auto& row) { return row.first == key; });
    if (found == given.end()) continue;
    rows.emplace_back(label, found->second);
    given.erase(found);
  }
  rows.insert(rows.end(), given.begin(), given.end());
  return rows;
}

std::string table(const std::string& title, const Rows& rows) {
  std::string out = "<div class=\"facts\">";
  if (!title.empty()) out += fmt::format("<h3>{}</h3>", escape_html(title));
  out += "<table><tbody>";
  for (const auto& [name, value] : rows)
    fmt::format_to(std::back_inserter(out), "<tr><th>{}</th><td>{}</td></tr>", escape_html(name),
                   escape_html(value));
  return out + "</tbody></table></div>";
}

// One table for each part of the file: "model.dims" stands in "model" as "dims".
std::string config_tables(const Table& config) {
  std::vector<std::string> order;
  std::map<std::string, Rows> parts;
  for (const auto& [key, value] : config.rows) {
    const std::size_t dot = key.find('.');
    const std::string part = dot == std::string::npos ? "run" : key.substr(0, dot);
    if (!parts.contains(part)) order.push_back(part);
    parts[part].emplace_back(dot == std::string::npos ? key : key.substr(dot + 1), value);
  }
  std::string out = "<div class=\"columns\">";
  for (const std::string& part : order) out += table(part, parts[part]);
  return out + "</div>";
}

}  // namespace

std::string tables_section(const RunData& run) {
  const Table& config = run.config;
  std::string out = section("Configuration",
                            config.note.empty() ? "As in config.toml, from which the run can be "
                                                  "repeated."
                                                : "",
                            config.note.empty() ? config_tables(config) : missing(config.note));
  return out + machine_section(run.machine);
}

std::string machine_section(const Table& machine) {
  const bool known = machine.note.empty() && !machine.rows.empty();
  return section("Machine", "",
                 known ? table("", machine_rows(machine.rows))
                       : missing(machine.note.empty() ? "machine.json is empty." : machine.note));
}

}  // namespace linescan::report
