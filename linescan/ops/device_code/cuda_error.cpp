#include "linescan/ops/device_code/cuda_error.h"

#include "linescan/base/error.h"

namespace linescan {

void throw_cuda_error(const char* what, const char* name, const char* message, const char* file,
                      int line) {
  throw_error<DeviceError>("{}: {} ({}) at {}:{}", what, message, name, file, line);
}

void throw_too_many_blocks(const char* what, std::int64_t blocks) {
  throw_error<Unsupported>("{}: {} blocks, a GPU takes fewer than 2^31 at a time", what, blocks);
}

}  // namespace linescan
