// A data set and a network small enough to train in a test, and a folder that cleans up after it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "linescan/train/config.h"

namespace linescan::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "linescan-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string idx_bytes(const std::vector<int64_t>& sizes, const std::string& data) {
  std::string bytes = {0, 0, 8, static_cast<char>(sizes.size())};
  for (int64_t size : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift);
  return bytes + data;
}

inline constexpr int64_t kTinySide = 12;
inline constexpr int64_t kTinyClasses = 4;

// Image i is of class i % 4: one bright quadrant on a dim pattern that differs from image to image.
inline void write_tiny_split(const std::filesystem::path& folder, const std::string& prefix,
                             int64_t count) {
  std::string pixels, labels;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t label = i % kTinyClasses;
    labels += static_cast<char>(label);
    for (int64_t y = 0; y < kTinySide; ++y)
      for (int64_t x = 0; x < kTinySide; ++x) {
        const bool bright = y / (kTinySide / 2) == label / 2 && x / (kTinySide / 2) == label % 2;
        pixels += static_cast<char>((bright ? 180 : 20) + (i * 7 + y * 3 + x * 5) % 60);
      }
  }
  write_text(folder / (prefix + "-images-idx3-ubyte"),
             idx_bytes({count, kTinySide, kTinySide}, pixels));
  write_text(folder / (prefix + "-labels-idx1-ubyte"), idx_bytes({count}, labels));
}

// 144 images in the training file, of which 12 will be held out, and 24 test images.
inline std::filesystem::path write_tiny_data(const std::filesystem::path& parent) {
  const std::filesystem::path folder = parent / "tiny";
  std::filesystem::create_directories(folder);
  write_tiny_split(folder, "train", 144);
  write_tiny_split(folder, "t10k", 24);
  return folder;
}

// Options of a network that takes a few milliseconds a step: everything random is switched on.
inline Assignments tiny_options(const std::filesystem::path& data) {
  return {{"data", data.string()}, {"dims", "8"},     {"depths", "1,1"}, {"stem_stride", "2"},
          {"drop_path", "0.3"},    {"batch", "8"},    {"epochs", "2"},   {"threads", "1"},
          {"log_every", "3"},      {"warmup", "0.1"}, {"lr", "0.01"},    {"ema", "0.9"}};
}

}  // namespace linescan::testing
