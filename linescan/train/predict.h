// From images to class probabilities.
#pragma once

#include <cstdint>
#include <vector>

#include "linescan/models/compute.h"
#include "linescan/models/networks/image_network.h"
#include "linescan/train/batch.h"
#include "linescan/train/image_set.h"

namespace linescan {

// Log-probabilities [count, classes] of images [first, first + count), without gradients. The
// network, which is on the device of `compute`, is used in the mode that it is in: call eval() first. Throws NotFinite naming the image
// whose logits are NaN or infinite.
std::vector<float> log_probabilities(ImageNetworkImpl& network, const ImageSet& images,
                                     int64_t first, int64_t count, const BatchAssembler& assembler,
                                     const Compute& compute = {});

}  // namespace linescan
