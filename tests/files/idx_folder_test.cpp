#include "linescan/files/idx_folder.h"

#include "linescan/files/sha256.h"
#include "tests/files/packed.h"
#include "tests/files/support.h"

namespace linescan::test {
namespace {

// A good folder of 3 + 2 images of 2 x 2; tests then spoil one file.
class IdxFolderTest : public testing::Test {
 protected:
  const std::string train_images_ = idx_file({3, 2, 2}, "aaaabbbbcccc");
  const std::string train_labels_ = idx_file({3}, "\1\2\3");
  const std::string test_images_ = idx_file({2, 2, 2}, "ddddeeee");
  const std::string test_labels_ = idx_file({2}, "\4\5");
  const TemporaryFolder folder_;

  IdxFolderTest() {
    spill(folder_ / "train-images-idx3-ubyte", train_images_);
    spill(folder_ / "train-labels-idx1-ubyte.gz", gzip(train_labels_));
    spill(folder_ / "t10k-images-idx3-ubyte.gz", gzip(test_images_));
    spill(folder_ / "t10k-labels-idx1-ubyte", test_labels_);
  }

  IdxHashes hashes() const {
    return {sha256_hex(as_byte_span(train_images_)), sha256_hex(as_byte_span(train_labels_)),
            sha256_hex(as_byte_span(test_images_)), sha256_hex(as_byte_span(test_labels_))};
  }

  void expect_refused(std::initializer_list<std::string> parts) {
    expect_error<InvalidArgument>([&] { load_idx_folder(folder_.path()); }, parts);
  }
};

TEST_F(IdxFolderTest, ReadsPlainAndPackedSideBySide) {
  const IdxFolder data = load_idx_folder(folder_.path(), hashes());
  EXPECT_EQ(data.train.images.sizes, (std::vector<int64_t>{3, 2, 2}));
  EXPECT_EQ(data.train.labels.data, (std::vector<uint8_t>{1, 2, 3}));
  EXPECT_EQ(data.test.images.data[7], 'e');
  EXPECT_EQ(data.test.labels.data, (std::vector<uint8_t>{4, 5}));
}

TEST_F(IdxFolderTest, PlainFilesComeFirst) {
  spill(folder_ / "t10k-labels-idx1-ubyte.gz", "not read");
  EXPECT_EQ(load_idx_folder(folder_.path()).test.labels.data[1], 5);
}

TEST_F(IdxFolderTest, AllMissingFilesAreListed) {
  std::filesystem::remove(folder_ / "train-labels-idx1-ubyte.gz");
  std::filesystem::remove(folder_ / "t10k-labels-idx1-ubyte");
  expect_refused(
      {folder_.path().string() + " lacks train-labels-idx1-ubyte, t10k-labels-idx1-ubyte"});
}

TEST_F(IdxFolderTest, NoFolder) {
  expect_error<InvalidArgument>([&] { load_idx_folder(folder_ / "none"); },
                                {"none is not a folder", "train-images-idx3-ubyte"});
  expect_error<InvalidArgument>([&] { load_idx_folder(folder_ / "t10k-labels-idx1-ubyte"); },
                                {"is not a folder"});
}

TEST_F(IdxFolderTest, CountsMustAgree) {
  spill(folder_ / "t10k-labels-idx1-ubyte", idx_file({3}, "\1\2\3"));
  expect_refused({"t10k-images-idx3-ubyte.gz has 2 images", "t10k-labels-idx1-ubyte has 3 labels"});
}

TEST_F(IdxFolderTest, DimensionsMustFit) {
  spill(folder_ / "train-images-idx3-ubyte", idx_file({3}, "abc"));
  expect_refused({"train-images-idx3-ubyte has 1 dimensions, expected 3"});
}

TEST_F(IdxFolderTest, EmptySetsAreRefused) {
  spill(folder_ / "train-images-idx3-ubyte", idx_file({0, 2, 2}, ""));
  expect_refused({"train-images-idx3-ubyte has no images", "0 x 2 x 2"});
}

TEST_F(IdxFolderTest, TrainAndTestImagesHaveOneSize) {
  spill(folder_ / "train-images-idx3-ubyte", idx_file({3, 1, 4}, "aaaabbbbcccc"));
  expect_refused({"train-images-idx3-ubyte has images of 1 x 4", "of 2 x 2"});
}

TEST_F(IdxFolderTest, WrongHashNamesFileAndBothHashes) {
  IdxHashes wrong = hashes();
  wrong.test_labels[0] = wrong.test_labels[0] == '0' ? '1' : '0';
  expect_error<InvalidArgument>(
      [&] { load_idx_folder(folder_.path(), wrong); },
      {(folder_ / "t10k-labels-idx1-ubyte").string(), "SHA-256 " + hashes().test_labels,
       "expected " + wrong.test_labels});
}

TEST(FashionMnist, PublishedFilesHaveTheListedHashes) {
  const std::filesystem::path folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::is_directory(folder)) GTEST_SKIP() << "no " << folder;
  const IdxFolder data = load_idx_folder(folder, fashion_mnist_hashes());
  EXPECT_EQ(data.train.images.sizes, (std::vector<int64_t>{60000, 28, 28}));
  EXPECT_EQ(data.test.labels.sizes, (std::vector<int64_t>{10000}));
}

}  // namespace
}  // namespace linescan::test
