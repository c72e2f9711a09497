// Whatever the bytes, plain or gzip, the reader throws InvalidArgument or gives sizes that multiply
// to the number of elements.
#include <cstdlib>

#include "linescan/base/error.h"
#include "linescan/files/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace linescan;
  const ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const IdxArray array = parse_idx(bytes, "fuzz", {.with_sha256 = true, .longest = 1 << 20});
    int64_t elements = 1;
    for (const int64_t extent : array.sizes) elements *= extent;
    if (elements != static_cast<int64_t>(array.data.size()) || array.sha256.size() != 64)
      std::abort();
  } catch (const InvalidArgument&) {
  }
  return 0;
}
