#include "linescan/train/doctor/plant_data.h"

#include <string>

#include "linescan/files/atomic_write.h"

namespace linescan {
namespace {

constexpr int64_t kSide = 12, kClasses = 4;

// The head of an IDX file of unsigned bytes.
std::string idx_head(const std::vector<int64_t>& sizes) {
  std::string head = {0, 0, 8, static_cast<char>(sizes.size())};
  for (const int64_t size : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) head += static_cast<char>(size >> shift & 0xff);
  return head;
}

char pixel(int64_t image, int64_t y, int64_t x) {
  const int64_t label = image % kClasses;
  const bool bright = (y >= kSide / 2) == (label >= 2) && (x >= kSide / 2) == (label % 2 == 1);
  return static_cast<char>((bright ? 170 : 30) + (image * 13 + y * 5 + x * 11) % 50);
}

void write_split(const std::filesystem::path& folder, const std::string& prefix, int64_t images) {
  std::string pixels = idx_head({images, kSide, kSide}), labels = idx_head({images});
  for (int64_t image = 0; image < images; ++image) {
    labels += static_cast<char>(image % kClasses);
    for (int64_t y = 0; y < kSide; ++y)
      for (int64_t x = 0; x < kSide; ++x) pixels += pixel(image, y, x);
  }
  write_file_atomically(folder / (prefix + "-images-idx3-ubyte"), pixels);
  write_file_atomically(folder / (prefix + "-labels-idx1-ubyte"), labels);
}

}  // namespace

Assignments make_plant_data(const std::filesystem::path& folder) {
  write_split(folder, "train", 72);
  write_split(folder, "t10k", 16);
  return {{"data", folder.string()},
          {"dims", "8"},
          {"depths", "1,1"},
          {"stem_stride", "2"},
          {"drop_path", "0"},
          {"batch", "8"},
          {"epochs", "3"},
          {"limit_train", "48"},
          {"log_every", "3"},
          {"warmup", "0"},
          {"ema", "0"},
          {"flip", "false"},
          {"shift", "0"},
          {"threads", "1"},
          {"on_hang", "continue"}};
}

std::filesystem::path plant_images(const std::filesystem::path& folder) {
  return folder / "train-images-idx3-ubyte";
}

}  // namespace linescan
