#include "linescan/train/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"
#include "linescan/device/environment.h"
#include "linescan/files/idx_folder.h"
#include "linescan/train/counter_hash.h"

namespace linescan {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kHeldOutShare = 12;  // one image in so many
constexpr int64_t kMostHeldOut = 5000;

const std::vector<std::string>& fashion_classes() {
  static const std::vector<std::string> names = {"T-shirt/top", "Trouser",   "Pullover", "Dress",
                                                 "Coat",        "Sandal",    "Shirt",    "Sneaker",
                                                 "Bag",         "Ankle boot"};
  return names;
}

ImageSet image_set(IdxSplit split) {
  ImageSet images;
  images.count = split.images.sizes[0];
  images.height = split.images.sizes[1];
  images.width = split.images.sizes[2];
  images.pixels = std::move(split.images.data);
  images.labels = std::move(split.labels.data);
  return images;
}

ImageSet subset(const ImageSet& images, std::span<const int64_t> indices) {
  ImageSet chosen;
  chosen.count = static_cast<int64_t>(indices.size());
  chosen.channels = images.channels;
  chosen.height = images.height;
  chosen.width = images.width;
  chosen.pixels.reserve(indices.size() * images.image_bytes());
  for (int64_t index : indices) {
    const uint8_t* image = images.image(index);
    chosen.pixels.insert(chosen.pixels.end(), image, image + images.image_bytes());
    chosen.labels.push_back(images.labels[index]);
  }
  return chosen;
}

// The `count` of `indices` with the smallest hashes, in their old order; the others stay behind.
std::vector<int64_t> pick(std::vector<int64_t>* indices, int64_t count, Stream stream) {
  std::vector<int64_t> chosen = *indices;
  const auto earlier = [&](int64_t a, int64_t b) {
    return std::pair(counter_hash(stream, 0, 0, a), a) <
           std::pair(counter_hash(stream, 0, 0, b), b);
  };
  std::nth_element(chosen.begin(), chosen.begin() + count, chosen.end(), earlier);
  chosen.resize(count);
  std::sort(chosen.begin(), chosen.end());
  std::vector<int64_t> rest;
  std::set_difference(indices->begin(), indices->end(), chosen.begin(), chosen.end(),
                      std::back_inserter(rest));
  *indices = std::move(rest);
  return chosen;
}

// Numbers of the held-out images; `indices` keeps those of the training images.
std::vector<int64_t> hold_out(const ImageSet& images, int64_t classes,
                              std::vector<int64_t>* indices) {
  const double share = std::min<double>(images.count / kHeldOutShare, kMostHeldOut) / images.count;
  std::vector<std::vector<int64_t>> by_class(classes);
  for (int64_t i = 0; i < images.count; ++i) by_class[images.labels[i]].push_back(i);
  std::vector<int64_t> held_out;
  indices->clear();
  for (std::vector<int64_t>& members : by_class) {
    const auto size = static_cast<int64_t>(members.size());
    const int64_t wanted = std::max<int64_t>(1, std::llround(size * share));
    const std::vector<int64_t> chosen =
        pick(&members, size < 2 ? 0 : std::min(wanted, size - 1), Stream::kHoldOut);
    held_out.insert(held_out.end(), chosen.begin(), chosen.end());
    indices->insert(indices->end(), members.begin(), members.end());
  }
  std::sort(held_out.begin(), held_out.end());
  std::sort(indices->begin(), indices->end());
  return held_out;
}

Normalisation measure(const ImageSet& images) {
  std::array<int64_t, 256> histogram{};
  for (uint8_t pixel : images.pixels) ++histogram[pixel];
  double sum = 0, squares = 0;
  for (int value = 0; value < 256; ++value) {
    sum += histogram[value] * (value / 255.0);
    squares += histogram[value] * (value / 255.0) * (value / 255.0);
  }
  const double mean = sum / images.pixels.size();
  const double deviation = std::sqrt(std::max(0.0, squares / images.pixels.size() - mean * mean));
  return {mean, deviation > 0 ? deviation : 1.0};  // images of one grey value stay what they are
}

// Labels count classes from 0; one that lies far behind all others is a fault of the data.
int64_t count_classes(const ImageSet& images, const fs::path& folder) {
  const auto largest = std::max_element(images.labels.begin(), images.labels.end());
  const int64_t classes = *largest + int64_t{1};
  std::vector<bool> seen(classes);
  for (const uint8_t label : images.labels) seen[label] = true;
  const int64_t used = std::count(seen.begin(), seen.end(), true);
  if (2 * used < classes)
    throw_error<InvalidArgument>(
        "data: {} has label {} at training image {}, expected about {}: {} labels occur among the "
        "training images",
        folder.string(), *largest, largest - images.labels.begin(), used - 1, used);
  return classes;
}

}  // namespace

fs::path dataset_folder(const std::string& name) {
  std::error_code ignored;
  if (name == kFashionMnist) {
    const fs::path folder = environment(kDataVariable).value_or("/usr/share/datasets") + "/" + name;
    if (!fs::is_directory(folder, ignored))
      throw_error<InvalidArgument>(
          "data: {} is not in {}; install it with 'apt-get install dataset-fashion-mnist'", name,
          folder.string());
    return folder;
  }
  if (name.find('/') == std::string::npos && !fs::is_directory(name, ignored)) {
    const std::string known[] = {std::string(kFashionMnist)};
    throw InvalidArgument("data: " + unknown_name("data set", name, known) +
                          "; a folder of four IDX files will do too");
  }
  return name;
}

Dataset load_dataset(const std::string& name, int64_t limit_train) {
  if (limit_train < 0)
    throw_error<InvalidArgument>("data: limit_train is {}, expected 0 or more", limit_train);
  const bool fashion = name == kFashionMnist;
  const fs::path folder = dataset_folder(name);
  IdxFolder files =
      fashion ? load_idx_folder(folder, fashion_mnist_hashes()) : load_idx_folder(folder);
  const ImageSet all = image_set(std::move(files.train));
  Dataset data;
  data.test = image_set(std::move(files.test));
  const int64_t classes = count_classes(all, folder);
  const int64_t test_classes =
      *std::max_element(data.test.labels.begin(), data.test.labels.end()) + 1;
  if (test_classes > classes)
    throw_error<InvalidArgument>("data: {} has label {} among the test images, expected at most {}",
                                 folder.string(), test_classes - 1, classes - 1);

  std::vector<int64_t> indices;
  data.held_out = subset(all, hold_out(all, classes, &indices));
  if (data.held_out.count == 0)
    throw_error<InvalidArgument>(
        "data: no class in {} has two training images, so none can be held out", folder.string());
  if (limit_train > 0 && limit_train < indices.size())
    indices = pick(&indices, limit_train, Stream::kLimit);
  data.train = subset(all, indices);
  data.normalisation = fashion ? Normalisation{0.2860, 0.3530} : measure(data.train);
  if (fashion)
    data.classes = fashion_classes();
  else
    for (int64_t i = 0; i < classes; ++i) data.classes.push_back(std::to_string(i));
  return data;
}

}  // namespace linescan
