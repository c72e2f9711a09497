#include "linescan/files/idx_folder.h"

#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "linescan/base/error.h"

namespace linescan {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 4> kNames = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                               "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

// Paths of the four files, in the order of kNames.
std::vector<fs::path> locate(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    throw_error<InvalidArgument>("data: {} is not a folder, expected one with the files {}",
                                 folder.string(), fmt::join(kNames, ", "));
  std::vector<fs::path> found;
  std::vector<std::string> missing;
  for (const char* name : kNames) {
    const fs::path plain = folder / name;
    const fs::path packed = folder / (std::string(name) + ".gz");
    if (fs::exists(plain, ignored))
      found.push_back(plain);
    else if (fs::exists(packed, ignored))
      found.push_back(packed);
    else
      missing.push_back(name);
  }
  if (!missing.empty())
    throw_error<InvalidArgument>("data: folder {} lacks {} (plain or with .gz)", folder.string(),
                                 fmt::join(missing, ", "));
  return found;
}

IdxArray read(const fs::path& path, std::size_t dimensions, const std::string& expected_hash) {
  IdxArray array = read_idx(path, {.with_sha256 = !expected_hash.empty()});
  if (array.sizes.size() != dimensions)
    throw_error<InvalidArgument>("idx: {} has {} dimensions, expected {}", path.string(),
                                 array.sizes.size(), dimensions);
  if (array.sha256 != expected_hash)
    throw_error<InvalidArgument>("idx: {} has SHA-256 {} when unpacked, expected {}", path.string(),
                                 array.sha256, expected_hash);
  return array;
}

IdxSplit read_split(const fs::path& images, const fs::path& labels, const std::string& images_hash,
                    const std::string& labels_hash) {
  IdxSplit split{read(images, 3, images_hash), read(labels, 1, labels_hash)};
  if (split.images.data.empty())
    throw_error<InvalidArgument>("data: {} has no images: its sizes are {}", images.string(),
                                 fmt::join(split.images.sizes, " x "));
  if (split.images.sizes[0] != split.labels.sizes[0])
    throw_error<InvalidArgument>("data: {} has {} images, but {} has {} labels", images.string(),
                                 split.images.sizes[0], labels.string(), split.labels.sizes[0]);
  return split;
}

}  // namespace

const IdxHashes& fashion_mnist_hashes() {
  static const IdxHashes hashes{
      .train_images = "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
      .train_labels = "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
      .test_images = "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
      .test_labels = "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"};
  return hashes;
}

IdxFolder load_idx_folder(const fs::path& folder, const std::optional<IdxHashes>& expected) {
  const std::vector<fs::path> paths = locate(folder);
  const IdxHashes hashes = expected.value_or(IdxHashes{});
  IdxFolder data{read_split(paths[0], paths[1], hashes.train_images, hashes.train_labels),
                 read_split(paths[2], paths[3], hashes.test_images, hashes.test_labels)};
  const auto& train = data.train.images.sizes;
  const auto& test = data.test.images.sizes;
  if (train[1] != test[1] || train[2] != test[2])
    throw_error<InvalidArgument>("data: {} has images of {} x {}, but {} of {} x {}",
                                 paths[0].string(), train[1], train[2], paths[2].string(), test[1],
                                 test[2]);
  return data;
}

}  // namespace linescan
