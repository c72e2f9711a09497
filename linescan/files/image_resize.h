// Geometry and colour of 8-bit pictures, bit for bit as Pillow computes them, so that a network
// sees here what it saw in training elsewhere.
#pragma once

#include "linescan/files/image.h"

namespace linescan {

enum class ResizeFilter { kBilinear, kBicubic };

// Resize with antialiasing: the filter is widened by the factor of shrinking. Horizontal pass, then
// vertical, 8 bits between them (Pillow's Image.resize, BILINEAR or BICUBIC; Pillow 13 takes the
// vertical pass first where height shrinks much more than width, all before it never did). Throws
// InvalidArgument for sizes outside 1 .. 16384 or an image whose pixels do not match its sizes.
Image resize(const Image& image, int64_t height, int64_t width, ResizeFilter filter);

// The middle [height, width] of the image; where the margin is odd, the offset margin / 2 is
// rounded to the even number, as torchvision's CenterCrop does. Throws InvalidArgument if the
// image is smaller.
Image center_crop(const Image& image, int64_t height, int64_t width);

// One channel: luma of ITU-R 601 in 16-bit fixed point (Pillow's mode "L"). Gray passes through.
Image to_gray(const Image& image);

// Three channels; gray is repeated.
Image to_rgb(const Image& image);

}  // namespace linescan
