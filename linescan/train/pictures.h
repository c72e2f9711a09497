// Between pictures in files and the image sets that networks are fed with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "linescan/files/image.h"
#include "linescan/train/image_set.h"

namespace linescan {

// Image `index` as a picture of one or three channels.
Image image_of(const ImageSet& images, int64_t index);

// Appends a picture, converted to the set's channels and resized to its size. The label is 0.
void append_picture(ImageSet* images, const Image& picture);

// A file stands for itself, a folder for the PNG and JPEG files directly in it, sorted by name.
// Throws InvalidArgument for a path that does not exist and for a folder without pictures.
std::vector<std::filesystem::path> picture_files(std::span<const std::string> paths);

}  // namespace linescan
