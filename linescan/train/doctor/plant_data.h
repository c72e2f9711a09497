// A data set and a network that take milliseconds, for planted faults.
#pragma once

#include <filesystem>

#include "linescan/train/config.h"

namespace linescan {

// Writes the four IDX files of a set of 12 x 12 images in four classes, each a bright quadrant, into
// `folder`, which must exist. Returns what trains a network of two blocks on them, 8 images a step, 6
// steps an epoch.
Assignments make_plant_data(const std::filesystem::path& folder);

// The file with the training images.
std::filesystem::path plant_images(const std::filesystem::path& folder);

}  // namespace linescan
