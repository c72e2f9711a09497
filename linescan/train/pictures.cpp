#include "linescan/train/pictures.h"

#include <algorithm>
#include <cctype>

#include "linescan/base/error.h"
#include "linescan/files/image_resize.h"

namespace linescan {

namespace fs = std::filesystem;

namespace {

bool has_picture_suffix(const fs::path& path) {
  std::string suffix = path.extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  return suffix == ".png" || suffix == ".jpg" || suffix == ".jpeg";
}

}  // namespace

Image image_of(const ImageSet& images, int64_t index) {
  Image picture{images.height, images.width, images.channels, {}};
  const uint8_t* planes = images.image(index);  // [channels, height, width]
  const int64_t area = images.height * images.width;
  for (int64_t i = 0; i < area; ++i)
    for (int64_t channel = 0; channel < images.channels; ++channel)
      picture.pixels.push_back(planes[channel * area + i]);
  return picture;
}

void append_picture(ImageSet* images, const Image& picture) {
  Image fitted = images->channels == 1 ? to_gray(picture) : to_rgb(picture);
  if (fitted.height != images->height || fitted.width != images->width)
    fitted = resize(fitted, images->height, images->width, ResizeFilter::kBilinear);
  const int64_t area = images->height * images->width;
  for (int64_t channel = 0; channel < images->channels; ++channel)
    for (int64_t i = 0; i < area; ++i)
      images->pixels.push_back(fitted.pixels[i * images->channels + channel]);
  images->labels.push_back(0);
  ++images->count;
}

std::vector<fs::path> picture_files(std::span<const std::string> paths) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::path path : paths) {
    if (!fs::exists(path, error))
      throw_error<InvalidArgument>("image: {} does not exist", path.string());
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    const std::size_t before = files.size();
    for (fs::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error))
      if (has_picture_suffix(entry->path())) files.push_back(entry->path());
    if (error)
      throw_error<InvalidArgument>("image: cannot list {}: {}", path.string(), error.message());
    if (files.size() == before)
      throw_error<InvalidArgument>("image: folder {} has no .png, .jpg or .jpeg", path.string());
    std::sort(files.begin() + before, files.end());
  }
  return files;
}

}  // namespace linescan
