// Whatever the text, the reader throws InvalidArgument or gives options whose keys are all distinct.
#include <cstdlib>
#include <set>

#include "linescan/base/error.h"
#include "linescan/files/toml.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto options =
        linescan::parse_toml_options({reinterpret_cast<const char*>(data), size}, "fuzz");
    std::set<std::string> keys;
    for (const auto& [key, text] : options)
      if (!keys.insert(key).second) std::abort();
  } catch (const linescan::InvalidArgument&) {
  }
  return 0;
}
