// A data set of the MNIST family: a folder of four IDX files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "linescan/files/idx.h"

namespace linescan {

struct IdxSplit {
  IdxArray images;  // [count, height, width]
  IdxArray labels;  // [count]
};

struct IdxFolder {
  IdxSplit train;
  IdxSplit test;
};

// SHA-256 of the unpacked files, 64 lower-case hexadecimal digits each.
struct IdxHashes {
  std::string train_images;
  std::string train_labels;
  std::string test_images;
  std::string test_labels;
};

// Fashion-MNIST as published (60 000 + 10 000 images of 28 x 28).
const IdxHashes& fashion_mnist_hashes();

// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
// t10k-labels-idx1-ubyte, each plain or (looked for second) with ".gz". Throws InvalidArgument:
// no such folder, missing files (all listed), what read_idx refuses, wrong dimensions, no images,
// image and label counts that differ, train and test images of different size, and, if `expected`
// is given, a content with another hash.
IdxFolder load_idx_folder(const std::filesystem::path& folder,
                          const std::optional<IdxHashes>& expected = std::nullopt);

}  // namespace linescan
