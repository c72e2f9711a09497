// Base64 (RFC 4648, with padding), for pictures inside of JSON and HTML.
#pragma once

#include <algorithm>
#include <string>

#include "linescan/files/bytes.h"

namespace linescan {

inline std::string base64(ByteSpan bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t given = std::min<std::size_t>(3, bytes.size() - i);
    uint32_t group = 0;  // 24 bits
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8 | (j < given ? std::to_integer<uint32_t>(bytes[i + j]) : 0);
    for (std::size_t j = 0; j < 4; ++j)
      text += j <= given ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

}  // namespace linescan
