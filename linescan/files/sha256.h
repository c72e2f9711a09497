// SHA-256 (FIPS 180-4), for naming data by its content.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "linescan/files/bytes.h"

namespace linescan {

class Sha256 {
 public:
  void update(ByteSpan bytes);

  // 64 lower-case hexadecimal digits of everything given so far. Ends the object's use.
  std::string finish();

 private:
  void absorb(const uint8_t* block);  // [64]

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  std::size_t pending_size_ = 0;
  uint64_t total_ = 0;  // bytes
};

std::string sha256_hex(ByteSpan bytes);

}  // namespace linescan
