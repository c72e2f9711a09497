#include "linescan/ops/device_code/cuda_error.h"

#include "linescan/base/error.h"

namespace linescan {

void throw_cuda_error(const char* what, const char* name, const char* message,
                      std::source_location where) {
  throw_error<DeviceError>("{}: {} ({}) at {}:{}", what, message, name, where.file_name(),
                           where.line());
}

}  // namespace linescan
