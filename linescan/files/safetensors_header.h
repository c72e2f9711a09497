// The JSON header of a safetensors file, checked on its own; data come in safetensors_read.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "linescan/files/safetensors.h"

namespace linescan {

struct SafetensorsHeader {
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    int64_t begin = 0;  // data_offsets
    int64_t end = 0;
  };
  std::map<std::string, Tensor> tensors;
  SafetensorsMetadata metadata;
};

// Throws InvalidArgument naming `file`: not JSON, an unexpected key or kind of value, a key twice,
// a type or shape that safetensors_byte_size refuses, offsets that do not fit them.
SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& file);

}  // namespace linescan
