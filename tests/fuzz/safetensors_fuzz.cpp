// Whatever the bytes, the reader throws InvalidArgument or gives tensors that lie inside the file.
#include <cstdlib>

#include "linescan/base/error.h"
#include "linescan/files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    const auto file = linescan::SafetensorsFile::parse({bytes, bytes + size}, "fuzz");
    std::size_t covered = 0;
    unsigned sum = 0;
    for (const auto& [name, entry] : file.entries()) {
      covered += entry.size;
      for (std::size_t i = 0; i < entry.size; ++i) sum += static_cast<unsigned>(entry.data[i]);
    }
    if (covered > size || sum > 255 * covered) std::abort();
  } catch (const linescan::InvalidArgument&) {
  }
  return 0;
}
