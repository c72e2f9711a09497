// Bytes as the file formats see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace linescan {

using ByteSpan = std::span<const std::byte>;
using Bytes = std::vector<std::byte>;

inline ByteSpan as_byte_span(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view as_text(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline const uint8_t* as_uint8(ByteSpan bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

}  // namespace linescan
