#include "linescan/ops/device_code/cuda_error.h"

#include "linescan/base/error.h"

namespace linescan {

void throw_cuda_error(const char* what, const char* name, const char* message, const char* file,
                      int line) {
  throw_error<DeviceError>("{}: {} ({}) at {}:{}", what, message, name, file, line);
}

}  // namespace linescan
