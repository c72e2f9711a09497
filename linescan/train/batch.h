// From bytes to the network's input: normalisation, and the augmentation of training images.
//
// A training image may be mirrored left to right and moved by up to `shift` pixels in both
// directions (what a random crop of the padded image does; black comes in at the edge). The draw is
// a function of (seed, epoch, image number), so it does not depend on order, batch or threads.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "linescan/train/image_set.h"

namespace linescan {

struct Augmentation {
  bool flip = false;
  int64_t shift = 0;  // pixels
};

// What happens to one image.
struct Placement {
  bool flip = false;
  int64_t down = 0;   // pixels, negative: up
  int64_t right = 0;  // applied after the flip
  friend bool operator==(const Placement&, const Placement&) = default;
};

Placement draw_placement(const Augmentation& augmentation, uint64_t seed, int64_t epoch,
                         int64_t index);

class BatchAssembler {
 public:
  explicit BatchAssembler(const Normalisation& normalisation);

  // Images `indices` of `images`, normalised, to out [indices.size(), channels, height, width].
  void plain(const ImageSet& images, std::span<const int64_t> indices, float* out) const;

  // The same for images [first, first + count).
  void plain(const ImageSet& images, int64_t first, int64_t count, float* out) const;

  // The same as the first with each image placed by its own draw.
  void augmented(const ImageSet& images, std::span<const int64_t> indices,
                 const Augmentation& augmentation, uint64_t seed, int64_t epoch, float* out) const;

 private:
  void place(const ImageSet& images, int64_t index, const Placement& placement, float* out) const;

  std::array<float, 256> normalised_;  // of every pixel value
};

}  // namespace linescan
