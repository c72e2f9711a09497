// The synthetic sequences: what they ask can be answered from what they show, and nothing else can.

#include "linescan/train/sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "linescan/base/error.h"
#include "tests/support/messages.h"

namespace linescan {
namespace {

std::vector<TokenSequence> draw(std::string_view task, const SequenceConfig& config,
                                int64_t count) {
  std::vector<TokenSequence> sequences;
  for (int64_t i = 0; i < count; ++i)
    sequences.push_back(make_sequence(task, config, Stream::kSequences, 1, 0, i));
  return sequences;
}

int64_t asked(const TokenSequence& sequence) {
  return std::ranges::count_if(sequence.labels, [](int64_t l) { return l != kNothingAsked; });
}

TEST(Recall, EveryKeyIsAskedForOnceAndItsValueIsTheAnswer) {
  const SequenceConfig config;
  for (const TokenSequence& s : draw(kRecall, config, 200)) {
    ASSERT_EQ(s.tokens.size(), 128u);
    ASSERT_EQ(s.labels.size(), 128u);
    std::map<int64_t, int64_t> pairs;
    for (int64_t i = 0; i < config.items; ++i) {
      EXPECT_TRUE(s.tokens[2 * i] >= 1 && s.tokens[2 * i] < 32);
      EXPECT_TRUE(s.tokens[2 * i + 1] >= 32 && s.tokens[2 * i + 1] < 64);
      pairs[s.tokens[2 * i]] = s.tokens[2 * i + 1];
    }
    EXPECT_EQ(pairs.size(), 8u);  // different keys
    EXPECT_EQ(asked(s), 8);
    for (int64_t t = 0; t < 128; ++t) {
      if (s.labels[t] == kNothingAsked) continue;
      EXPECT_GE(t, 16);
      ASSERT_TRUE(pairs.contains(s.tokens[t]));
      EXPECT_EQ(s.labels[t], pairs[s.tokens[t]]);
      EXPECT_EQ(s.tokens[t + 1], s.labels[t]);
      pairs.erase(s.tokens[t]);
    }
  }
}

TEST(Copying, ItemsAreAskedForInTheirOrderBehindTheMark) {
  const SequenceConfig config{.vocabulary = 9, .length = 30, .items = 5};
  for (const TokenSequence& s : draw(kCopying, config, 200)) {
    std::vector<int64_t> items;
    for (int64_t t = 0; t < 25; ++t) {
      EXPECT_NE(s.tokens[t], 1);
      EXPECT_EQ(s.labels[t], kNothingAsked);
      if (s.tokens[t] != 0) items.push_back(s.tokens[t]);
    }
    ASSERT_EQ(items.size(), 5u);
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(s.labels[25 + i], items[i]);
      EXPECT_EQ(s.tokens[25 + i], i == 0 ? 1 : items[i - 1]);
    }
  }
}

TEST(Sequences, UseAllTokensAndAllPlaces) {
  for (const std::string_view task : {kRecall, kCopying}) {
    const SequenceConfig config{.vocabulary = 12, .length = 20, .items = 3};
    std::set<int64_t> tokens, places;
    for (const TokenSequence& s : draw(task, config, 500)) {
      tokens.insert(s.tokens.begin(), s.tokens.end());
      for (int64_t t = 0; t < 20; ++t)
        if (s.tokens[t] != 0) places.insert(t);
    }
    EXPECT_EQ(tokens.size(), 12u) << task;
    EXPECT_EQ(places.size(), 20u) << task;
  }
}

TEST(Sequences, DependOnSeedEpochNumberAndStreamAlone) {
  const SequenceConfig config;
  const auto tokens = [&](Stream stream, uint64_t seed, int64_t epoch, int64_t number) {
    return make_sequence(kRecall, config, stream, seed, epoch, number).tokens;
  };
  const auto one = tokens(Stream::kSequences, 1, 2, 3);
  EXPECT_EQ(tokens(Stream::kSequences, 1, 2, 3), one);
  EXPECT_NE(tokens(Stream::kTestSequences, 1, 2, 3), one);
  EXPECT_NE(tokens(Stream::kSequences, 2, 2, 3), one);
  EXPECT_NE(tokens(Stream::kSequences, 1, 3, 3), one);
  EXPECT_NE(tokens(Stream::kSequences, 1, 2, 4), one);
}

TEST(Sequences, TheSmallestFit) {
  const SequenceConfig recall{.vocabulary = 8, .length = 12, .items = 3};
  EXPECT_NO_THROW(recall.validate(kRecall));
  EXPECT_EQ(asked(draw(kRecall, recall, 1)[0]), 3);
  const SequenceConfig copying{.vocabulary = 3, .length = 6, .items = 3};
  EXPECT_NO_THROW(copying.validate(kCopying));
  EXPECT_EQ(asked(draw(kCopying, copying, 1)[0]), 3);
}

TEST(Sequences, NameWhatDoesNotFit) {
  const auto message = [](std::string_view task, const SequenceConfig& config) {
    return testing::refusal_of([&] { config.validate(task); });
  };
  EXPECT_EQ(message(kRecall, {.vocabulary = 17}),
            "option vocabulary is 17, expected 18 to 1048576 for recall");
  EXPECT_EQ(message(kRecall, {.length = 31}),
            "option length is 31, expected 32 to 1048576 for recall");
  EXPECT_EQ(message(kCopying, {.length = 15}),
            "option length is 15, expected 16 to 1048576 for copying");
  EXPECT_EQ(message(kCopying, {.vocabulary = 2}),
            "option vocabulary is 2, expected 3 to 1048576 for copying");
  EXPECT_EQ(message(kCopying, {.items = 0}),
            "option items is 0, expected 1 to 1048576 for copying");
}

}  // namespace
}  // namespace linescan
