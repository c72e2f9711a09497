// A data set for training: images as bytes, split into training, held-out and test images.
//
// Held-out images choose the best checkpoint; they are a twelfth of the training file (at most
// 5 000), the same share of every class, picked by a hash of the image number that no seed changes.
// The network never trains on them, and test images never choose anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "linescan/train/image_set.h"

namespace linescan {

struct Dataset {
  std::vector<std::string> classes;  // names
  Normalisation normalisation;
  ImageSet train, held_out, test;
};

inline constexpr std::string_view kFashionMnist = "fashion-mnist";

// The folder of a data set known by name; a name with a slash, or of a folder that exists, is the
// folder itself. Throws InvalidArgument: unknown name, or package not installed.
std::filesystem::path dataset_folder(const std::string& name_or_folder);

// Reads the four IDX files of the data set, for fashion-mnist verified by SHA-256. Of the training
// images that are not held out, `limit_train` are kept (0: all), spread over the file.
// Throws InvalidArgument for unreadable files, for labels without two images of some class, and for a label so
// large that fewer than half of the classes up to it occur.
Dataset load_dataset(const std::string& name_or_folder, int64_t limit_train = 0);

}  // namespace linescan
