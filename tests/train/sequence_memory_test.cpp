#include "linescan/train/sequence_memory.h"

#include <gtest/gtest.h>

#include <string>

#include "linescan/base/error.h"

namespace linescan {
namespace {

constexpr int64_t kGiga = 1'000'000'000;

RunConfig sequences(int64_t length, const char* device = "cpu") {
  return make_config({{"task", "recall"}, {"length", std::to_string(length)}, {"device", device}});
}

TEST(SequenceMemory, IsNearWhatWasMeasured) {
  // Peaks of steps of 4 and of 12 sequences of 1024 tokens, their difference divided by the tokens.
  const auto near = [](const Assignments& changes, double measured) {
    Assignments options = {{"task", "recall"}};
    options.insert(options.end(), changes.begin(), changes.end());
    const double estimate = sequence_bytes_per_token(make_config(options));
    EXPECT_GE(estimate, measured) << changes.at(0).first;
    EXPECT_LE(estimate, measured / 0.75) << changes.at(0).first;
  };
  near({{"length", "1024"}}, 32423.5);
  near({{"layers", "6"}}, 76968.0);
  near({{"vocabulary", "4096"}}, 103187.0);
  near({{"hidden", "256"}}, 57295.5);
  near({{"head_dim", "64"}}, 79493.5);
  near({{"expand_v", "4"}}, 68557.0);
  near({{"mlp_ratio", "0"}}, 23226.5);
  near({{"short_conv", "false"}}, 24753.5);
  near({{"precision", "bf16"}}, 24758.5);
}

TEST(SequenceMemory, RefusesWhatDoesNotFitAndSaysWhatDoes) {
  EXPECT_NO_THROW(expect_sequences_fit(sequences(128), kGiga));
  EXPECT_NO_THROW(expect_sequences_fit(sequences(1'000'000), 0));              // nobody knows
  EXPECT_NO_THROW(expect_sequences_fit(sequences(1'000'000, "cuda"), kGiga));  // not of this memory
  std::string message;
  try {
    expect_sequences_fit(sequences(1'000'000), 10 * kGiga);
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  const std::string before = "expected a length of at most ";
  const std::size_t at = message.find(before);
  ASSERT_NE(at, std::string::npos) << message;
  EXPECT_NE(message.find("options batch and length are 64 and 1000000: such a step"),
            std::string::npos);
  EXPECT_EQ(message.find("batch of"), std::string::npos) << message;  // not even one of this length
  const int64_t fits = std::stoll(message.substr(at + before.size()));
  EXPECT_NO_THROW(expect_sequences_fit(sequences(fits), 10 * kGiga));
  EXPECT_THROW(expect_sequences_fit(sequences(fits + 1), 10 * kGiga), InvalidArgument);
  try {
    expect_sequences_fit(sequences(100'000), 10 * kGiga);
    FAIL();
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  const std::string batch = "or a batch of at most ";
  const int64_t few = std::stoll(message.substr(message.find(batch) + batch.size()));
  RunConfig smaller = sequences(100'000);
  smaller.recipe.batch = few;
  EXPECT_NO_THROW(expect_sequences_fit(smaller, 10 * kGiga));
}

}  // namespace
}  // namespace linescan
