// Synthetic sequences of tokens that test what a recurrence remembers.
//
// recall: multi-query associative recall (Arora et al. 2023, arXiv:2312.04927). Pairs of a key and a
// value open the sequence; later every key comes once more, somewhere between blanks, and the answer is
// its value:
//
//   k1 v1 k2 v2 ... kn vn  .  .  k2 v2  .  k7 v7  .  .  .  k1 v1  .        v2, v7, v1 are asked for
//
// copying: selective copying (Gu and Dao 2023, arXiv:2312.00752). Items stand between blanks; after the
// mark they are asked for in their order:
//
//   .  a  .  .  b  .  .  .  c  .  |  a  b                                  a, b, c are asked for
//
// Token 0 is the blank. recall: keys are below vocabulary / 2, values from there on. copying: token 1 is
// the mark, items all others. Every sequence is a function of
// task, options, seed, stream, epoch and its number alone.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "linescan/base/options.h"
#include "linescan/train/counter_hash.h"

namespace linescan {

inline constexpr std::string_view kRecall = "recall", kCopying = "copying";

struct SequenceConfig {
  int64_t vocabulary = 64;
  int64_t length = 128;
  int64_t items = 8;  // key-value pairs, or tokens to copy

  std::vector<Option> options();

  // Throws InvalidArgument naming the option, its value and what `task` needs.
  void validate(std::string_view task) const;
};

inline constexpr int64_t kNothingAsked = -100;

struct TokenSequence {
  std::vector<int64_t> tokens;  // [length]
  std::vector<int64_t> labels;  // [length]: the token after each, kNothingAsked where it is open
};

// Sequence `number` of epoch `epoch`; `config` is valid for the task. Each has `items` labels.
TokenSequence make_sequence(std::string_view task, const SequenceConfig& config, Stream stream,
                            uint64_t seed, int64_t epoch, int64_t number);

}  // namespace linescan
