#include "tests/train/report_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "linescan/files/image.h"

namespace linescan {
namespace {

using nlohmann::json;

constexpr int kSteps = 1240;
constexpr int kStepsAnEpoch = 429;
constexpr int kLogEvery = 5;

// Rows are true classes; each class has 1000 test images.
constexpr int kConfusion[10][10] = {
    {861, 1, 17, 21, 4, 1, 89, 0, 6, 0},   {2, 977, 0, 15, 3, 0, 2, 0, 1, 0},
    {14, 1, 868, 9, 58, 0, 50, 0, 0, 0},   {15, 6, 9, 919, 25, 0, 25, 0, 1, 0},
    {0, 1, 45, 23, 876, 0, 55, 0, 0, 0},   {0, 0, 0, 0, 0, 976, 0, 17, 1, 6},
    {112, 1, 67, 24, 69, 0, 721, 0, 6, 0}, {0, 0, 0, 0, 0, 9, 0, 972, 0, 19},
    {4, 0, 2, 3, 3, 1, 4, 2, 981, 0},      {0, 0, 0, 0, 0, 6, 1, 35, 0, 958},
};
constexpr const char* kClasses[10] = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                      "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};

// Repeatable noise in [-1, 1) for each number.
double noise(uint64_t number) {
  number = (number + 1) * 0x9E3779B97F4A7C15;
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EB;
  return static_cast<double>((number ^ (number >> 31)) >> 11) * 0x1p-52 - 1;
}

double learning_rate(double progress) {
  constexpr double kPeak = 2e-3, kWarmup = 0.08;
  if (progress < kWarmup) return kPeak * progress / kWarmup;
  const double turn = (progress - kWarmup) / (1 - kWarmup);
  return kPeak * (0.01 + 0.99 * (1 + std::cos(std::numbers::pi * turn)) / 2);
}

double training_loss(double step) {
  return 0.62 + 1.75 * std::exp(-step / 60.0) + 0.35 * std::exp(-step / 500.0);
}
double training_accuracy(double step) {
  return 0.925 - 0.6 * std::exp(-step / 60.0) - 0.22 * std::exp(-step / 420.0);
}

std::string metrics() {
  std::string lines;
  for (int step = kLogEvery; step <= kSteps; step += kLogEvery) {
    const double epoch = static_cast<double>(step) / kStepsAnEpoch;
    const double seconds = 0.0952 * step;
    const bool slow = step / 40 % 9 == 4;  // something else ran on the machine
    json train = {{"kind", "train"},
                  {"step", step},
                  {"epoch", static_cast<int>(epoch)},
                  {"loss", training_loss(step) * (1 + 0.11 * noise(step))},
                  {"accuracy", std::min(1.0, training_accuracy(step) + 0.045 * noise(step + 7))},
                  {"lr", learning_rate(static_cast<double>(step) / kSteps)},
                  {"images_per_s", (slow ? 1210 : 1345) + 45 * noise(step + 13)},
                  {"grad_norm", 1.1 + 3.2 * std::exp(-step / 90.0) + 0.35 * noise(step + 29)},
                  {"seconds", seconds}};
    lines += train.dump() + "\n";
    if (step % 105 != 0 && step != kSteps) continue;
    const double lag = std::max(step - 90, 20);
    json eval = {{"kind", "eval"},
                 {"step", step},
                 {"epoch", static_cast<int>(epoch)},
                 {"seconds", seconds},
                 {"val_loss", training_loss(step) - 0.33 + 0.02 * noise(step + 31)},
                 {"val_top1", training_accuracy(step) - 0.008 + 0.008 * noise(step + 37)},
                 {"val_top5", 0.997},
                 {"ema_val_top1", training_accuracy(lag) - 0.001 + 0.001 * noise(step + 41)}};
    lines += eval.dump() + "\n";
  }
  return lines;
}

std::string base64(const Bytes& bytes) {
  constexpr const char* kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (std::size_t j = i; j < i + 3; ++j)
      group = group << 8 | (j < bytes.size() ? static_cast<uint32_t>(bytes[j]) : 0);
    for (std::size_t j = 0; j < 4; ++j)
      text += i + j <= bytes.size() ? kLetters[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

// A garment of sorts: a body with sleeves of some length.
std::string picture(int number) {
  Image image{28, 28, 1, std::vector<uint8_t>(28 * 28)};
  const double sleeve = 8 + 16 * (noise(number + 3) + 1) / 2, waist = 5 + 2 * noise(number + 5);
  for (int y = 3; y < 26; ++y)
    for (int x = 0; x < 28; ++x) {
      const double off = std::abs(x - 13.5);
      const bool body = off < waist + 1.5 * std::sin(y / 4.0);
      const bool arm = off >= waist && off < 11 && y < sleeve && off < 7 + y / 3.0;
      if (!body && !arm) continue;
      const double shade = (body ? 170 : 140) + 40 * noise(28 * y + x + 1000 * number) + 2 * y;
      image.pixels[28 * y + x] = static_cast<uint8_t>(std::clamp(shade, 0.0, 255.0));
    }
  return base64(encode_png(image));
}

json evaluation() {
  json document = {{"top1", 0.9109},           {"top5", 0.9979},
                   {"loss", 0.2547},           {"images", 10000},
                   {"classes", json::array()}, {"confusion", json::array()},
                   {"mistakes", json::array()}};
  for (const char* name : kClasses) document["classes"].push_back(name);
  for (const auto& row : kConfusion) document["confusion"].push_back(row);
  constexpr int kPairs[][2] = {{6, 0}, {4, 2}, {0, 6}, {2, 4}, {9, 7}, {6, 4},
                               {3, 6}, {5, 7}, {2, 6}, {8, 6}, {7, 9}, {6, 2}};
  for (int i = 0; i < 24; ++i)
    document["mistakes"].push_back({{"index", 407 * i + 12},
                                    {"label", kPairs[i % 12][0]},
                                    {"predicted", kPairs[i % 12][1]},
                                    {"probability", 0.998 - 0.0031 * i},
                                    {"png_base64", picture(i)}});
  return document;
}

constexpr const char* kConfig = R"([data]
name = "fashion-mnist"

[model]
name = "vmamba_fashion"
in_channels = 1
classes = 10
dims = [32, 64, 128]
depths = [1, 2, 1]
stem_stride = 2
states = 1
ssm_ratio = 1.0
mlp_ratio = 4.0
forward_type = "v05_noz"
drop_path = 0.05

[recipe]
minutes = 2.0
batch = 128
lr = 0.002
warmup = 0.08
weight_decay = 0.05
clip = 1.0
label_smoothing = 0.05
ema = 0.995
flip = true
shift = 2
seed = 0
)";

}  // namespace

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
}

void write_sample_run(const std::filesystem::path& run) {
  const json summary = {{"test_top1", 0.9109},
                        {"test_top5", 0.9979},
                        {"test_loss", 0.2547},
                        {"training_seconds", 118.05},
                        {"images_per_s", 1331},
                        {"steps", kSteps},
                        {"epochs", 2.9},
                        {"best_val_top1", 0.9142},
                        {"model", "vmamba_fashion"},
                        {"parameters", 412826}};
  const json machine = {{"cpu", "Example CPU at 2.6 GHz"},
                        {"cores", 2},
                        {"threads", 2},
                        {"memory_gb", 7.8},
                        {"simd", "AVX2"},
                        {"os", "Debian GNU/Linux 12 (bookworm)"},
                        {"linescan", "0.1.0"},
                        {"libtorch", "2.11.0"},
                        {"compiler", "GNU 12.2.0"}};
  write_text(run / "metrics.jsonl", metrics());
  write_text(run / "summary.json", summary.dump(2));
  write_text(run / "evaluation.json", evaluation().dump());
  write_text(run / "config.toml", kConfig);
  write_text(run / "machine.json", machine.dump(2));
}

}  // namespace linescan
