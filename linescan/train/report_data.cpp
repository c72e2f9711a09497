#include "linescan/train/report_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "linescan/base/error.h"
#include "linescan/files/read_file.h"
#include "linescan/files/toml.h"

namespace linescan::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// More than this is not a file of ours.
constexpr int64_t kLongestFile = int64_t{1} << 30;

// The file's text, or nothing and the reason in `note`.
std::optional<std::string> read_text(const fs::path& path, std::string* note) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    *note = fmt::format("This run has no {} yet.", path.filename().string());
    return std::nullopt;
  }
  try {
    const Bytes bytes = read_file(path, "report", kLongestFile);
    return std::string(as_text(bytes));
  } catch (const Error& error) {
    *note = error.what();
    return std::nullopt;
  }
}

// The file's JSON object, or null and the reason in `note`.
json read_object(const fs::path& path, std::string* note) {
  const std::optional<std::string> text = read_text(path, note);
  if (!text) return nullptr;
  json object = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (object.is_object()) return object;
  *note = fmt::format("{} is not a JSON object.", path.filename().string());
  return nullptr;
}

double number(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : kAbsent;
}

std::string string_or_empty(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Strings as they are, other values as JSON.
std::string text_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// After a crash and a resume, the steps since the last checkpoint come a second time: the later
// telling counts.
template <typename Row>
void append_row(std::vector<Row>* rows, const Row& row) {
  if (!(row.step >= 0)) return;
  while (!rows->empty() && rows->back().step >= row.step) rows->pop_back();
  rows->push_back(row);
}

void append_line(Metrics* metrics, const json& line) {
  const std::string kind = string_or_empty(line, "kind");
  if (kind == "train")
    append_row(&metrics->train,
               TrainRow{number(line, "step"), number(line, "epoch"), number(line, "loss"),
                        number(line, "accuracy"), number(line, "lr"), number(line, "images_per_s"),
                        number(line, "grad_norm"), number(line, "seconds")});
  if (kind == "eval")
    append_row(&metrics->evals,
               EvalRow{number(line, "step"), number(line, "epoch"), number(line, "val_loss"),
                       number(line, "val_top1"), number(line, "val_top5"),
                       number(line, "ema_val_top1"), number(line, "seconds")});
}

Metrics read_metrics(const fs::path& path) {
  Metrics metrics;
  const std::optional<std::string> text = read_text(path, &metrics.note);
  if (!text) return metrics;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    // Training may be writing at this moment, or have been killed while it did: a line that is not
    // JSON is passed over.
    const json line = json::parse(rest.substr(0, end), nullptr, /*allow_exceptions=*/false);
    if (line.is_object()) append_line(&metrics, line);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (metrics.train.empty() && metrics.evals.empty())
    metrics.note = fmt::format("{} has no measurements yet.", path.filename().string());
  return metrics;
}

Summary read_summary(const fs::path& path) {
  Summary summary;
  const json object = read_object(path, &summary.note);
  if (object.is_null()) return summary;
  summary.model = string_or_empty(object, "model");
  summary.test_top1 = number(object, "test_top1");
  summary.test_top5 = number(object, "test_top5");
  summary.test_loss = number(object, "test_loss");
  summary.training_seconds = number(object, "training_seconds");
  summary.images_per_s = number(object, "images_per_s");
  summary.steps = number(object, "steps");
  summary.epochs = number(object, "epochs");
  summary.best_val_top1 = number(object, "best_val_top1");
  summary.parameters = number(object, "parameters");
  return summary;
}

// Reads a square table of counts; false if it is anything else.
bool read_confusion(const json& value, std::vector<std::vector<int64_t>>* confusion) {
  if (!value.is_array()) return false;
  for (const json& row : value) {
    if (!row.is_array() || row.size() != value.size()) return false;
    std::vector<int64_t> counts;
    for (const json& count : row) {
      // Sums of counts below 2^40 stay far from overflow.
      if (!count.is_number_unsigned() || count.get<uint64_t>() > uint64_t{1} << 40) return false;
      counts.push_back(count.get<int64_t>());
    }
    confusion->push_back(std::move(counts));
  }
  return true;
}

bool is_base64(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '+' || c == '/' || c == '=';
  });
}

std::string class_name(const std::vector<std::string>& classes, const json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() < classes.size())
    return classes[value.get<uint64_t>()];
  return text_of(value);
}

std::vector<Mistake> read_mistakes(const json& value, const std::vector<std::string>& classes) {
  std::vector<Mistake> mistakes;
  if (!value.is_array()) return mistakes;
  for (const json& entry : value) {
    if (!entry.is_object()) continue;
    Mistake mistake;
    const json index = entry.value("index", json(0));
    mistake.index = index.is_number_integer() ? index.get<int64_t>() : 0;
    mistake.label = class_name(classes, entry.value("label", json("?")));
    mistake.predicted = class_name(classes, entry.value("predicted", json("?")));
    mistake.probability = number(entry, "probability");
    mistake.png_base64 = string_or_empty(entry, "png_base64");
    if (!is_base64(mistake.png_base64)) mistake.png_base64.clear();
    mistakes.push_back(std::move(mistake));
  }
  const auto rank = [](const Mistake& mistake) {
    return std::isfinite(mistake.probability) ? mistake.probability : -1;  // NaN has no order
  };
  std::stable_sort(mistakes.begin(), mistakes.end(),
                   [&](const Mistake& a, const Mistake& b) { return rank(a) > rank(b); });
  return mistakes;
}

Evaluation read_evaluation(const fs::path& path) {
  Evaluation evaluation;
  const json object = read_object(path, &evaluation.note);
  if (object.is_null()) return evaluation;
  evaluation.top1 = number(object, "top1");
  evaluation.top5 = number(object, "top5");
  evaluation.loss = number(object, "loss");
  evaluation.images = number(object, object.contains("answers") ? "answers" : "images");
  if (!read_confusion(object.value("confusion", json::array()), &evaluation.confusion)) {
    evaluation.confusion.clear();
    evaluation.note = fmt::format("{} has a confusion matrix that is not a square table of counts.",
                                  path.filename().string());
  }
  json classes = object.value("classes", json::array());
  if (!classes.is_array()) classes = json::array();
  for (const json& name : classes) evaluation.classes.push_back(text_of(name));
  for (std::size_t i = classes.size(); i < evaluation.confusion.size(); ++i)
    evaluation.classes.push_back(fmt::format("class {}", i));
  evaluation.mistakes = read_mistakes(object.value("mistakes", json()), evaluation.classes);
  return evaluation;
}

Table read_config(const fs::path& path) {
  Table table;
  if (!read_text(path, &table.note)) return table;
  try {
    table.rows = read_toml_options(path);
    if (table.rows.empty()) table.note = fmt::format("{} is empty.", path.filename().string());
  } catch (const Error& error) {
    table.note = error.what();
  }
  return table;
}

Table read_machine(const fs::path& path) {
  Table table;
  const json object = read_object(path, &table.note);
  if (object.is_null()) return table;
  for (const auto& [key, value] : object.items()) table.rows.emplace_back(key, text_of(value));
  return table;
}

}  // namespace

RunData read_run(const fs::path& run) {
  std::error_code failed;
  if (!fs::is_directory(run, failed))
    throw_error<InvalidArgument>("report: {} is not a folder, expected a run folder", run.string());
  RunData data;
  const fs::path full = fs::weakly_canonical(run, failed);
  data.name = (full.has_filename() ? full : full.parent_path()).filename().string();
  data.metrics = read_metrics(run / "metrics.jsonl");
  data.summary = read_summary(run / "summary.json");
  data.evaluation = read_evaluation(run / "evaluation.json");
  data.config = read_config(run / "config.toml");
  data.machine = read_machine(run / "machine.json");
  for (const auto& [name, value] : data.config.rows)
    if (name == "task") data.about_images = value == "images";
  return data;
}

}  // namespace linescan::report
