// Sizes of tensors in safetensors files, shared by reader and writer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace linescan {

// Bytes of a tensor of this type and shape. Throws InvalidArgument that begins with `who` ("file x:
// tensor y"): unknown type, more than 32 dimensions, negative size, more than 2^63 - 1 bytes.
int64_t safetensors_byte_size(std::string_view who, std::string_view dtype,
                              std::span<const int64_t> shape);

// "F32 [2, 3]"
std::string safetensors_type_text(std::string_view dtype, std::span<const int64_t> shape);

}  // namespace linescan
