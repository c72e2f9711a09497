// What a network costs, counted from its configuration alone: nothing is built or run.
#pragma once

#include <cstdint>
#include <vector>

#include "linescan/models/networks/plain_config.h"
#include "linescan/models/networks/vmamba_config.h"

namespace linescan {

struct Cost {
  int64_t parameters = 0;
  // One image, forward, in the convention of the VMamba publication: a product or convolution counts
  // its multiplications, a scan 9 per state, channel, position and route and 1 more per channel,
  // position and route, a layer norm 5 an element, a batch norm 2, the average pool 1, an attention one
  // a channel and pair of positions for the weights and one for the sum; activations, sums and gates
  // are free.
  int64_t multiply_adds = 0;
  std::vector<StageShape> stages;
};

// For an image of height x width. Throws InvalidArgument: configuration or size out of range.
Cost count_cost(const VMambaConfig& config, int64_t height, int64_t width);
Cost count_cost(const PlainConfig& config, int64_t height, int64_t width);

}  // namespace linescan
