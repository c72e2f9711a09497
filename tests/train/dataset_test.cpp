#include "linescan/train/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "linescan/base/error.h"
#include "tests/support/messages.h"
#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

namespace fs = std::filesystem;
using testing::contains;
using testing::TemporaryFolder;

std::string dataset_refusal(const std::string& name) {
  return testing::refusal_of([&] { load_dataset(name); });
}

std::vector<std::string> images_of(const ImageSet& images) {
  std::vector<std::string> all;
  for (int64_t i = 0; i < images.count; ++i)
    all.emplace_back(reinterpret_cast<const char*>(images.image(i)), images.image_bytes());
  return all;
}

// `count` images of two pixels that spell their number; labels as given.
fs::path write_numbered(const fs::path& folder, int64_t count, int64_t (*label)(int64_t)) {
  std::string pixels, labels;
  for (int64_t i = 0; i < count; ++i) {
    pixels += static_cast<char>(i >> 8);
    pixels += static_cast<char>(i);
    labels += static_cast<char>(label(i));
  }
  testing::write_text(folder / "train-images-idx3-ubyte",
                      testing::idx_bytes({count, 1, 2}, pixels));
  testing::write_text(folder / "train-labels-idx1-ubyte", testing::idx_bytes({count}, labels));
  testing::write_text(folder / "t10k-images-idx3-ubyte", testing::idx_bytes({1, 1, 2}, "ab"));
  testing::write_text(folder / "t10k-labels-idx1-ubyte",
                      testing::idx_bytes({1}, std::string(1, '\0')));
  return folder;
}

TEST(Dataset, HoldsOutATwelfthOfEveryClassAndSharesNothing) {
  const TemporaryFolder folder;
  write_numbered(folder.path(), 1200,
                 [](int64_t i) { return i % 10 == 0 ? int64_t{0} : int64_t{1}; });
  const Dataset data = load_dataset(folder.path().string() + "/");
  EXPECT_EQ(data.train.count, 1100);
  EXPECT_EQ(data.held_out.count, 100);
  EXPECT_EQ(std::count(data.held_out.labels.begin(), data.held_out.labels.end(), 0), 10);
  std::set<std::string> all;
  for (const ImageSet* part : {&data.train, &data.held_out})
    for (const std::string& image : images_of(*part)) EXPECT_TRUE(all.insert(image).second);
  EXPECT_EQ(all.size(), 1200u);
}

TEST(Dataset, ImagesKeepTheirLabels) {
  const TemporaryFolder folder;
  write_numbered(folder.path(), 500, [](int64_t i) { return i % 7; });
  const Dataset data = load_dataset(folder.path().string());
  for (const ImageSet* part : {&data.train, &data.held_out})
    for (int64_t i = 0; i < part->count; ++i)
      EXPECT_EQ((part->image(i)[0] * 256 + part->image(i)[1]) % 7, part->labels[i]);
}

TEST(Dataset, HoldsOutAtMostFiveThousand) {
  const TemporaryFolder folder;
  write_numbered(folder.path(), 65000, [](int64_t i) { return i % 2; });
  EXPECT_EQ(load_dataset(folder.path().string()).held_out.count, 5000);
}

TEST(Dataset, LimitKeepsTheHeldOutImages) {
  const TemporaryFolder folder;
  write_numbered(folder.path(), 1200, [](int64_t i) { return i % 2; });
  const Dataset all = load_dataset(folder.path().string());
  const Dataset some = load_dataset(folder.path().string(), 77);
  EXPECT_EQ(some.train.count, 77);
  EXPECT_EQ(images_of(some.held_out), images_of(all.held_out));
  EXPECT_EQ(load_dataset(folder.path().string(), 100000).train.count, all.train.count);
  EXPECT_THROW(load_dataset(folder.path().string(), -1), InvalidArgument);
}

TEST(Dataset, MeasuresItsNormalisation) {
  const TemporaryFolder folder;
  const Dataset data = load_dataset(testing::write_tiny_data(folder.path()).string());
  double sum = 0, squares = 0;
  for (uint8_t pixel : data.train.pixels) sum += pixel / 255.0;
  const double mean = sum / data.train.pixels.size();
  for (uint8_t pixel : data.train.pixels) squares += std::pow(pixel / 255.0 - mean, 2);
  EXPECT_NEAR(data.normalisation.mean, mean, 1e-12);
  EXPECT_NEAR(data.normalisation.deviation, std::sqrt(squares / data.train.pixels.size()), 1e-9);
  EXPECT_EQ(data.classes, (std::vector<std::string>{"0", "1", "2", "3"}));
}

TEST(Dataset, FashionMnistIsCompleteAndVerified) {
  std::error_code ignored;
  if (!fs::exists("/usr/share/datasets/fashion-mnist", ignored))
    GTEST_SKIP() << "package dataset-fashion-mnist is not installed";
  const Dataset data = load_dataset("fashion-mnist");
  EXPECT_EQ(data.train.count, 55000);
  EXPECT_EQ(data.held_out.count, 5000);
  EXPECT_EQ(data.test.count, 10000);
  EXPECT_EQ(data.classes.size(), 10u);
  EXPECT_EQ(data.classes[9], "Ankle boot");
  std::map<int, int> held_out;
  for (uint8_t label : data.held_out.labels) ++held_out[label];
  for (int label = 0; label < 10; ++label) EXPECT_EQ(held_out[label], 500);
}

TEST(Dataset, NamesThePackageToInstall) {
  const TemporaryFolder empty;
  ASSERT_EQ(setenv("LINESCAN_DATA", empty.path().c_str(), 1), 0);
  const std::string message = dataset_refusal("fashion-mnist");
  unsetenv("LINESCAN_DATA");
  EXPECT_TRUE(contains(message, "apt-get install dataset-fashion-mnist")) << message;
}

TEST(Dataset, ADamagedFashionMnistIsNamedByHash) {
  const TemporaryFolder parent;
  const fs::path folder = parent.path() / "fashion-mnist";
  fs::create_directories(folder);
  write_numbered(folder, 24, [](int64_t) { return int64_t{0}; });
  ASSERT_EQ(setenv("LINESCAN_DATA", parent.path().c_str(), 1), 0);
  const std::string message = dataset_refusal("fashion-mnist");
  unsetenv("LINESCAN_DATA");
  EXPECT_TRUE(contains(message, "train-images-idx3-ubyte has SHA-256")) << message;
}

TEST(Dataset, RefusesWhatIsNotThere) {
  EXPECT_TRUE(contains(dataset_refusal("fashion-mnits"), "did you mean 'fashion-mnist'?"));
  const TemporaryFolder folder;
  EXPECT_TRUE(contains(dataset_refusal(folder.path().string()), "lacks train-images-idx3-ubyte"));
}

TEST(Dataset, RefusesTruncatedFiles) {
  const TemporaryFolder folder;
  const fs::path data = testing::write_tiny_data(folder.path());
  fs::resize_file(data / "train-images-idx3-ubyte", 1000);
  const std::string message = dataset_refusal(data.string());
  EXPECT_TRUE(contains(message, "1000") || contains(message, "984")) << message;
}

TEST(Dataset, RefusesALabelFarBehindTheOthers) {
  const TemporaryFolder folder;
  write_numbered(folder.path(), 100, [](int64_t i) { return i == 17 ? int64_t{250} : i % 10; });
  const std::string message = dataset_refusal(folder.path().string());
  EXPECT_TRUE(contains(message, "label 250 at training image 17, expected about 10")) << message;
}

TEST(Dataset, RefusesUnknownTestLabelsAndClassesThatCannotBeSplit) {
  const TemporaryFolder folder;
  write_numbered(folder.path(), 24, [](int64_t) { return int64_t{0}; });
  testing::write_text(folder.path() / "t10k-labels-idx1-ubyte", testing::idx_bytes({1}, "\x05"));
  EXPECT_TRUE(contains(dataset_refusal(folder.path().string()), "label 5"));
  const TemporaryFolder single;
  write_numbered(single.path(), 3, [](int64_t i) { return i; });
  EXPECT_TRUE(contains(dataset_refusal(single.path().string()), "two training images"));
}

}  // namespace
}  // namespace linescan
