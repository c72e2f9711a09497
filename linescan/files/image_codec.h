// The decoders behind decode_image, one file each, and what they share.
#pragma once

#include <string>

#include "linescan/files/image.h"

namespace linescan {

Image decode_png(ByteSpan bytes, const std::string& name, const ImageLimits& limits);
Image decode_jpeg(ByteSpan bytes, const std::string& name, const ImageLimits& limits);

// Throws InvalidArgument for a picture without pixels or over a limit.
void check_image_size(int64_t height, int64_t width, const std::string& name,
                      const ImageLimits& limits);

}  // namespace linescan
