#include "linescan/train/sequences.h"

#include <algorithm>
#include <numeric>

#include "linescan/base/error.h"

namespace linescan {
namespace {

constexpr int64_t kBlank = 0, kMark = 1;
constexpr int64_t kLargest = 1 << 20;

// Numbers of one sequence, one after the other.
class Draws {
 public:
  explicit Draws(uint64_t hash) : hash_(hash) {}
  // In [0, count).
  int64_t below(int64_t count) {
    return bounded(static_cast<uint32_t>(mix_bits(hash_ + ++drawn_) >> 32), count);
  }
  // `count` different numbers of [0, all), in random order.
  std::vector<int64_t> different(int64_t count, int64_t all) {
    std::vector<int64_t> numbers(all);
    std::iota(numbers.begin(), numbers.end(), int64_t{0});
    for (int64_t i = 0; i < count; ++i) std::swap(numbers[i], numbers[i + below(all - i)]);
    numbers.resize(count);
    return numbers;
  }

 private:
  uint64_t hash_, drawn_ = 0;
};

TokenSequence blanks(int64_t length) {
  return {std::vector<int64_t>(length, kBlank), std::vector<int64_t>(length, kNothingAsked)};
}

TokenSequence recall(const SequenceConfig& config, Draws& draws) {
  const int64_t first_value = config.vocabulary / 2, pairs = config.items;
  TokenSequence sequence = blanks(config.length);
  std::vector<int64_t> keys = draws.different(pairs, first_value - 1), values(pairs);
  for (int64_t i = 0; i < pairs; ++i) {
    values[i] = first_value + draws.below(config.vocabulary - first_value);
    sequence.tokens[2 * i] = ++keys[i];  // 0 is the blank
    sequence.tokens[2 * i + 1] = values[i];
  }
  // The rest is cut into places for a key and its value.
  const std::vector<int64_t> places = draws.different(pairs, config.length / 2 - pairs);
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t at = 2 * (pairs + places[i]);
    sequence.tokens[at] = keys[i];
    sequence.tokens[at + 1] = sequence.labels[at] = values[i];
  }
  return sequence;
}

TokenSequence copying(const SequenceConfig& config, Draws& draws) {
  const int64_t items = config.items, mark = config.length - items;
  TokenSequence sequence = blanks(config.length);
  std::vector<int64_t> places = draws.different(items, mark);
  std::sort(places.begin(), places.end());
  sequence.tokens[mark] = kMark;
  for (int64_t i = 0; i < items; ++i) {
    const int64_t token = kMark + 1 + draws.below(config.vocabulary - kMark - 1);
    sequence.tokens[places[i]] = sequence.labels[mark + i] = token;
    if (i + 1 < items) sequence.tokens[mark + i + 1] = token;
  }
  return sequence;
}

void expect_size(const char* name, int64_t value, int64_t smallest, std::string_view task) {
  if (value < smallest || value > kLargest)
    throw_error<InvalidArgument>("option {} is {}, expected {} to {} for {}", name, value, smallest,
                                 kLargest, task);
}

}  // namespace

std::vector<Option> SequenceConfig::options() {
  return {{"vocabulary", &vocabulary, "different tokens"},
          {"length", &length, "tokens of a sequence"},
          {"items", &items, "recall: key-value pairs; copying: tokens to copy"}};
}

void SequenceConfig::validate(std::string_view task) const {
  expect_size("items", items, 1, task);
  if (task == kRecall) {
    expect_size("vocabulary", vocabulary, 2 * (items + 1), task);  // different keys
    expect_size("length", length, 4 * items, task);
  } else {
    expect_size("vocabulary", vocabulary, kMark + 2, task);
    expect_size("length", length, 2 * items, task);
  }
}

TokenSequence make_sequence(std::string_view task, const SequenceConfig& config, Stream stream,
                            uint64_t seed, int64_t epoch, int64_t number) {
  Draws draws(counter_hash(stream, seed, epoch, number));
  return task == kRecall ? recall(config, draws) : copying(config, draws);
}

}  // namespace linescan
