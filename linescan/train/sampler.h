// The order in which training images are seen: a fresh permutation every epoch, known from
// (seed, epoch) alone, cut into full batches. The last partial batch of an epoch is left out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace linescan {

// A permutation of [0, count) that depends on (seed, epoch) only.
std::vector<int64_t> epoch_permutation(int64_t count, uint64_t seed, int64_t epoch);

// Where the sampler stands: the next batch is batch `batch` of epoch `epoch`.
struct SamplerPosition {
  int64_t epoch = 0;
  int64_t batch = 0;
  friend bool operator==(const SamplerPosition&, const SamplerPosition&) = default;
};

class Sampler {
 public:
  // Throws InvalidArgument where a batch does not fit into the `count` images.
  Sampler(int64_t count, int64_t batch_size, uint64_t seed);

  int64_t batches_per_epoch() const { return batches_per_epoch_; }
  // Where next() will read; after the last batch of an epoch this is the start of the next one.
  SamplerPosition position() const { return position_; }
  void seek(SamplerPosition position);

  // Image numbers of the next batch, valid until the next call, and one step forward.
  std::span<const int64_t> next();

 private:
  int64_t count_, batch_size_, batches_per_epoch_;
  uint64_t seed_;
  SamplerPosition position_;
  int64_t shuffled_epoch_ = -1;  // the epoch whose permutation order_ holds
  std::vector<int64_t> order_;
};

}  // namespace linescan
