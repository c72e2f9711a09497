#include "linescan/train/metrics.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "linescan/base/error.h"
#include "linescan/base/units.h"
#include "linescan/files/atomic_write.h"

namespace linescan {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// The lines of an older part of the run that still hold when it goes on.
std::string lines_until(const fs::path& path, int64_t last_step, bool evaluation_due) {
  std::string kept, line;
  std::ifstream file(path);
  while (std::getline(file, line)) {
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) continue;
    const bool repeated = evaluation_due && object.value("kind", "") == "eval";
    if (object.value("step", last_step + 1) + (repeated ? 1 : 0) <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(const fs::path& run, int64_t last_step, bool evaluation_due)
    : path_(run / "metrics.jsonl"), events_(run) {
  write_file_atomically(path_, lines_until(path_, last_step, evaluation_due));
  file_.open(path_, std::ios::app);
}

void MetricsLog::write(const TrainMetrics& metrics) {
  json line = {{"kind", "train"},
               {"step", metrics.step},
               {"epoch", metrics.epoch},
               {"loss", metrics.loss},
               {"accuracy", metrics.accuracy},
               {"lr", metrics.lr},
               {"images_per_s", metrics.images_per_s},
               {"grad_norm", metrics.grad_norm},
               {"seconds", metrics.seconds}};
  std::vector<Scalar> scalars = {{"train/loss", metrics.loss},
                                 {"train/accuracy", metrics.accuracy},
                                 {"train/lr", metrics.lr},
                                 {"train/grad_norm", metrics.grad_norm},
                                 {"speed/images_per_s", metrics.images_per_s}};
  if (metrics.memory_bytes) {
    line["memory_bytes"] = *metrics.memory_bytes;
    scalars.push_back({"machine/memory_gb", gigabytes(*metrics.memory_bytes)});
  }
  write_line(line);
  events_.add_scalars(metrics.step, scalars);
}

void MetricsLog::write(const HeldOutMetrics& metrics) {
  json line = {{"kind", "eval"},           {"step", metrics.step},
               {"epoch", metrics.epoch},   {"seconds", metrics.seconds},
               {"val_loss", metrics.loss}, {"val_top1", metrics.top1},
               {"val_top5", metrics.top5}};
  std::vector<Scalar> scalars = {{"held_out/loss", metrics.loss},
                                 {"held_out/top1", metrics.top1},
                                 {"held_out/top5", metrics.top5}};
  if (metrics.ema_top1) {
    line["ema_val_top1"] = *metrics.ema_top1;
    scalars.push_back({"held_out/ema_top1", *metrics.ema_top1});
  }
  write_line(line);
  events_.add_scalars(metrics.step, scalars);
}

void MetricsLog::write_line(const json& line) {
  file_ << line.dump() << '\n' << std::flush;
  if (!file_)
    throw_error<IoError>("metrics: cannot write {}: {}", path_.string(), std::strerror(errno));
}

}  // namespace linescan
