#include "linescan/train/sampler.h"

#include <numeric>
#include <utility>

#include "linescan/base/error.h"
#include "linescan/train/counter_hash.h"

namespace linescan {

std::vector<int64_t> epoch_permutation(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = count - 1; i > 0; --i) {
    const auto bits = static_cast<uint32_t>(counter_hash(Stream::kShuffle, seed, epoch, i) >> 32);
    std::swap(order[i], order[bounded(bits, i + 1)]);
  }
  return order;
}

Sampler::Sampler(int64_t count, int64_t batch_size, uint64_t seed)
    : count_(count), batch_size_(batch_size), seed_(seed) {
  if (batch_size < 1)
    throw_error<InvalidArgument>("train: batch is {}, expected at least 1", batch_size);
  if (batch_size > count)
    throw_error<InvalidArgument>("train: batch is {}, expected at most the {} training examples",
                                 batch_size, count);
  batches_per_epoch_ = count / batch_size;
}

void Sampler::seek(SamplerPosition position) {
  if (position.epoch < 0 || position.batch < 0 || position.batch >= batches_per_epoch_)
    throw_error<InvalidArgument>(
        "train: sampler position is epoch {} batch {}, expected batch < {}", position.epoch,
        position.batch, batches_per_epoch_);
  position_ = position;
}

std::span<const int64_t> Sampler::next() {
  if (shuffled_epoch_ != position_.epoch) {
    order_ = epoch_permutation(count_, seed_, position_.epoch);
    shuffled_epoch_ = position_.epoch;
  }
  const std::span<const int64_t> batch(order_.data() + position_.batch * batch_size_, batch_size_);
  if (++position_.batch == batches_per_epoch_) position_ = {position_.epoch + 1, 0};
  return batch;
}

}  // namespace linescan
