// Whatever the bytes, the decoders throw InvalidArgument or give a picture that survives its own
// encoding. Limits are small here, so that the fuzzer spends its time in code, not in memory.
#include <cstdlib>

#include "linescan/base/error.h"
#include "linescan/files/image.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace linescan;
  const ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const Image image = decode_image(bytes, "fuzz", {.side = 1024, .pixels = 1 << 14});
    const Image again = decode_image(encode_png(image), "again");
    if (again.height != image.height || again.width != image.width ||
        again.channels != image.channels || again.pixels != image.pixels)
      std::abort();
  } catch (const InvalidArgument&) {
  }
  return 0;
}
