#include "linescan/train/batch.h"

#include <algorithm>

#include "linescan/train/counter_hash.h"

namespace linescan {

Placement draw_placement(const Augmentation& augmentation, uint64_t seed, int64_t epoch,
                         int64_t index) {
  const uint64_t bits = counter_hash(Stream::kAugment, seed, epoch, index);
  const int64_t choices = 2 * augmentation.shift + 1;
  Placement placement;
  placement.flip = augmentation.flip && (bits & 1) != 0;
  // Shifts come from bits 1..31 and 32..63: below 2^31 choices the bias is not worth a second hash.
  placement.down = bounded(static_cast<uint32_t>(bits) & ~1u, choices) - augmentation.shift;
  placement.right = bounded(static_cast<uint32_t>(bits >> 32), choices) - augmentation.shift;
  return placement;
}

BatchAssembler::BatchAssembler(const Normalisation& normalisation) {
  for (int value = 0; value < 256; ++value)
    normalised_[value] =
        static_cast<float>((value / 255.0 - normalisation.mean) / normalisation.deviation);
}

void BatchAssembler::plain(const ImageSet& images, std::span<const int64_t> indices,
                           float* out) const {
  for (int64_t index : indices) {
    plain(images, index, 1, out);
    out += images.image_bytes();
  }
}

void BatchAssembler::plain(const ImageSet& images, int64_t first, int64_t count, float* out) const {
  const uint8_t* pixels = images.image(first);
  for (int64_t i = 0; i < count * images.image_bytes(); ++i) out[i] = normalised_[pixels[i]];
}

void BatchAssembler::augmented(const ImageSet& images, std::span<const int64_t> indices,
                               const Augmentation& augmentation, uint64_t seed, int64_t epoch,
                               float* out) const {
  for (int64_t index : indices) {
    place(images, index, draw_placement(augmentation, seed, epoch, index), out);
    out += images.image_bytes();
  }
}

void BatchAssembler::place(const ImageSet& images, int64_t index, const Placement& placement,
                           float* out) const {
  const int64_t height = images.height, width = images.width;
  const float edge = normalised_[0];
  // Columns [begin, end) of the result come from the image, the others are edge.
  const int64_t begin = std::clamp<int64_t>(placement.right, 0, width);
  const int64_t end = std::clamp<int64_t>(width + placement.right, 0, width);
  const uint8_t* pixels = images.image(index);
  for (int64_t channel = 0; channel < images.channels; ++channel) {
    for (int64_t y = 0; y < height; ++y, out += width) {
      const int64_t from = y - placement.down;
      if (from < 0 || from >= height) {
        std::fill(out, out + width, edge);
        continue;
      }
      const uint8_t* row = pixels + (channel * height + from) * width;
      std::fill(out, out + begin, edge);
      if (placement.flip) {
        for (int64_t x = begin; x < end; ++x)
          out[x] = normalised_[row[width - 1 - (x - placement.right)]];
      } else {
        for (int64_t x = begin; x < end; ++x) out[x] = normalised_[row[x - placement.right]];
      }
      std::fill(out + end, out + width, edge);
    }
  }
}

}  // namespace linescan
