#include "linescan/train/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linescan/base/error.h"
#include "linescan/train/report_data.h"
#include "tests/support/messages.h"
#include "tests/train/report_sample.h"

namespace linescan {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using testing::contains;
using testing::times_in;

class Report : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "linescan-report-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    run_ = pattern;
  }
  void TearDown() override { fs::remove_all(run_); }

  fs::path run_;
};

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Every element is closed, in order, and what stands between "<" and ">" is a tag.
void expect_well_formed(const std::string& page) {
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const std::size_t end = page.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = page.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" \n/", 1));
    if (tag[0] == '!' || name == "meta" || name == "img" || name == "br" || tag.back() == '/')
      continue;
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      ASSERT_EQ("/" + open.back(), tag) << page.substr(at > 200 ? at - 200 : 0, 260);
      open.pop_back();
      continue;
    }
    if (name == "script" || name == "style")  // their text may hold "<"
      at = page.find("</" + name, end) - 1;
    open.push_back(name);
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

TEST_F(Report, SampleRunHasEverySection) {
  write_sample_run(run_);
  write_report(run_);
  const std::string page = read_text(run_ / "report.html");
  expect_well_formed(page);
  for (const char* part : {"91.09<span> %",
                           "99.79\u00a0%",
                           "0.255",
                           "1\u00a0min 58\u00a0s",
                           "1,331 images/s",
                           "413\u00a0k",
                           "10,000 images; 95&nbsp;% interval 90.5–91.6\u00a0%",
                           "vmamba_fashion",
                           "1,240 steps",
                           ">Loss <",
                           ">Accuracy <",
                           ">Learning rate <",
                           ">Throughput <",
                           ">Gradient norm <",
                           "Shirt taken for T-shirt/top: 112 of 1,000 (11.2\u00a0%)",
                           "Most frequent confusions",
                           "Most confident mistakes",
                           "label_smoothing",
                           "32,64,128",
                           "instruction set",
                           "AVX2"})
    EXPECT_TRUE(contains(page, part)) << part;
  EXPECT_EQ(times_in(page, "class=\"missing\""), 0);
  EXPECT_EQ(times_in(page, "<g class=\"cell\">"), 100);
  EXPECT_EQ(times_in(page, "<img class=\"picture\" src=\"data:image/png;base64,iVBORw0KGgo"), 24);
  EXPECT_EQ(times_in(page, "<figure class=\"chart\">"), 5);
}

TEST_F(Report, NeedsNothingButItself) {
  write_sample_run(run_);
  const std::string page = report_page(run_);
  for (const char* part : {"src=\"http", "href=", "url(", "@import", "src=\"/", "<link"})
    EXPECT_FALSE(contains(page, part)) << part;
  EXPECT_TRUE(contains(page, "default-src 'none'"));
}

TEST_F(Report, SameRunSamePage) {
  write_sample_run(run_);
  EXPECT_EQ(report_page(run_), report_page(run_));
}

TEST_F(Report, EmptyFolderSaysWhatIsMissing) {
  write_report(run_);
  const std::string page = read_text(run_ / "report.html");
  expect_well_formed(page);
  for (const char* name :
       {"metrics.jsonl", "summary.json", "evaluation.json", "config.toml", "machine.json"})
    EXPECT_TRUE(contains(page, std::string("This run has no ") + name)) << name;
  EXPECT_TRUE(contains(page, "Not tested yet"));
  EXPECT_FALSE(contains(page, "nan"));
}

TEST_F(Report, RunInProgressShowsValidation) {
  write_sample_run(run_);
  fs::remove(run_ / "summary.json");
  fs::remove(run_ / "evaluation.json");
  const std::string page = report_page(run_);
  expect_well_formed(page);
  EXPECT_TRUE(contains(page, "<b>validation accuracy</b> so far"));
  EXPECT_TRUE(contains(page, "1,240 steps"));
  EXPECT_EQ(times_in(page, "<figure class=\"chart\">"), 5);
}

TEST_F(Report, WhatIsNotAFolderIsRefused) {
  try {
    write_report(run_ / "nowhere");
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_TRUE(contains(error.what(), "nowhere")) << error.what();
  }
}

TEST_F(Report, DamagedFilesAreNamedAndTheRestIsShown) {
  write_sample_run(run_);
  write_text(run_ / "summary.json", "{\"test_top1\": 0.9");
  write_text(run_ / "machine.json", "[1, 2]");
  write_text(run_ / "config.toml", "lr = = 3");
  write_text(run_ / "evaluation.json", R"({"top1": 0.5, "images": 4, "confusion": [[1, 1], [2]]})");
  const std::string page = report_page(run_);
  expect_well_formed(page);
  EXPECT_TRUE(contains(page, "summary.json is not a JSON object"));
  EXPECT_TRUE(contains(page, "machine.json is not a JSON object"));
  EXPECT_TRUE(contains(page, "config.toml:1:"));
  EXPECT_TRUE(contains(page, "not a square table of counts"));
  EXPECT_EQ(times_in(page, "<figure class=\"chart\">"), 5);
}

TEST_F(Report, NothingFromTheFilesBecomesMarkup) {
  const std::string attack = "\"'><script>alert(1)</script>&";
  const fs::path run = run_ / "<b>run & co";
  fs::create_directory(run);
  const json evaluation = {{"top1", 0.5},
                           {"images", 4},
                           {"classes", {attack, "b"}},
                           {"confusion", {{1, 1}, {1, 1}}},
                           {"mistakes",
                            {{{"index", 1},
                              {"label", 0},
                              {"predicted", attack},
                              {"probability", 0.9},
                              {"png_base64", "AAAA\" onerror=\"alert(1)"}}}}};
  write_text(run / "evaluation.json", evaluation.dump());
  write_text(run / "summary.json", json({{"model", attack}, {"steps", 4}}).dump());
  write_text(run / "machine.json", json({{attack, attack}}).dump());
  write_text(run / "config.toml", "name = '''" + attack + "'''");
  const std::string page = report_page(run);
  expect_well_formed(page);
  EXPECT_EQ(times_in(page, "<script>"), 1);
  EXPECT_FALSE(contains(page, "alert(1)<"));
  EXPECT_FALSE(contains(page, "<b>run"));
  EXPECT_FALSE(contains(page, "onerror"));
  EXPECT_TRUE(contains(page, "&lt;script&gt;alert(1)&lt;/script&gt;&amp;"));
}

TEST_F(Report, TornAndForeignLinesArePassedOver) {
  write_text(run_ / "metrics.jsonl",
             "{\"kind\":\"train\",\"step\":1,\"loss\":2.0}\n"
             "\n[1]\n{\"kind\":7,\"step\":1}\n{\"kind\":\"other\",\"step\":9}\n"
             "{\"kind\":\"train\",\"loss\":9.0}\n"
             "{\"kind\":\"train\",\"step\":2,\"loss\":null,\"lr\":\"high\"}\n"
             "{\"kind\":\"train\",\"step\":3,\"loss\":1e999}\n"
             "{\"kind\":\"train\",\"step\":4,\"loss\":1.0}\n"
             "{\"kind\":\"train\",\"step\":5,\"lo");
  const report::Metrics metrics = report::read_run(run_).metrics;
  ASSERT_EQ(metrics.train.size(), 3u);
  EXPECT_EQ(metrics.train[0].loss, 2.0);
  EXPECT_TRUE(std::isnan(metrics.train[1].loss));
  EXPECT_TRUE(std::isnan(metrics.train[1].lr));
  EXPECT_EQ(metrics.train[2].step, 4);
  const std::string page = report_page(run_);
  expect_well_formed(page);
  EXPECT_FALSE(contains(page, "nan"));
  EXPECT_FALSE(contains(page, "inf,"));
}

TEST_F(Report, StepsToldTwiceAfterAResumeCountOnce) {
  write_text(run_ / "metrics.jsonl",
             "{\"kind\":\"train\",\"step\":10,\"loss\":3}\n"
             "{\"kind\":\"train\",\"step\":20,\"loss\":2}\n"
             "{\"kind\":\"train\",\"step\":30,\"loss\":1}\n"
             "{\"kind\":\"train\",\"step\":20,\"loss\":5}\n");
  const report::Metrics metrics = report::read_run(run_).metrics;
  ASSERT_EQ(metrics.train.size(), 2u);
  EXPECT_EQ(metrics.train[1].step, 20);
  EXPECT_EQ(metrics.train[1].loss, 5);
}

TEST_F(Report, HugeRunsGiveSmallPages) {
  std::string lines;
  for (int step = 1; step <= 50000; ++step)
    lines += json({{"kind", "train"}, {"step", step}, {"loss", 1.0 / step}, {"grad_norm", step}})
                 .dump() +
             "\n";
  write_text(run_ / "metrics.jsonl", lines);
  const std::string page = report_page(run_);
  expect_well_formed(page);
  EXPECT_LT(page.size(), 150000u);
  EXPECT_TRUE(contains(page, ">50k</text>"));
}

TEST_F(Report, ManyClassesShowTheWeakest) {
  json confusion = json::array();
  for (int row = 0; row < 100; ++row) {
    confusion.push_back(std::vector<int>(100, 0));
    confusion[row][row] = 50 + row % 50;
    confusion[row][(row + 1) % 100] = 50 - row % 50;
  }
  write_text(run_ / "evaluation.json", json({{"top1", 0.7}, {"confusion", confusion}}).dump());
  const std::string page = report_page(run_);
  expect_well_formed(page);
  EXPECT_TRUE(contains(page, "The 20 weakest classes"));
  EXPECT_TRUE(contains(page, "class 50"));
  EXPECT_EQ(times_in(page, "class=\"cell\""), 0);
}

TEST_F(Report, ClassWithoutImagesHasNoRecall) {
  const json evaluation = {{"classes", {"a", "b"}}, {"confusion", {{3, 0}, {0, 0}}}};
  write_text(run_ / "evaluation.json", evaluation.dump());
  const std::string page = report_page(run_);
  expect_well_formed(page);
  EXPECT_TRUE(contains(page, "<td>–</td><td>–</td>"));
  EXPECT_FALSE(contains(page, "nan"));
}

}  // namespace
}  // namespace linescan
