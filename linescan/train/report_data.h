// The files of a run folder as the report needs them. Any of them may be missing, unfinished or
// damaged: what can be read is read, and a note says what cannot.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace linescan::report {

inline constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

// Lines of metrics.jsonl; absent and null numbers are NaN.
struct TrainRow {
  double step = kAbsent, epoch = kAbsent, loss = kAbsent, accuracy = kAbsent, lr = kAbsent,
         images_per_s = kAbsent, grad_norm = kAbsent, seconds = kAbsent;
};
struct EvalRow {
  double step = kAbsent, epoch = kAbsent, val_loss = kAbsent, val_top1 = kAbsent,
         val_top5 = kAbsent, ema_val_top1 = kAbsent, seconds = kAbsent;
};

struct Metrics {
  std::string note;  // empty: good; otherwise why there is nothing to show. So in all structs here.
  std::vector<TrainRow> train;
  std::vector<EvalRow> evals;
};

struct Summary {
  std::string note;
  std::string model;
  double test_top1 = kAbsent, test_top5 = kAbsent, test_loss = kAbsent, training_seconds = kAbsent,
         images_per_s = kAbsent, steps = kAbsent, epochs = kAbsent, best_val_top1 = kAbsent,
         parameters = kAbsent;
};

struct Mistake {
  int64_t index = 0;
  std::string label;
  std::string predicted;
  double probability = kAbsent;
  std::string png_base64;  // letters of base64 only; empty if the file held anything else
};

struct Evaluation {
  std::string note;
  double top1 = kAbsent, top5 = kAbsent, loss = kAbsent;
  double images = kAbsent;  // or answers about sequences
  std::vector<std::string> classes;
  std::vector<std::vector<int64_t>> confusion;  // [true class][predicted class], square
  std::vector<Mistake> mistakes;                // most confident first
};

struct Table {
  std::string note;
  std::vector<std::pair<std::string, std::string>> rows;
};

struct RunData {
  std::string name;  // of the folder
  Metrics metrics;
  Summary summary;
  Evaluation evaluation;
  Table config;  // flattened: "model.dims" -> "32,64"
  Table machine;

  bool about_images = true;  // or about sequences, which have neither classes nor pictures
};

// Throws InvalidArgument only if `run` is not a folder.
RunData read_run(const std::filesystem::path& run);

}  // namespace linescan::report
