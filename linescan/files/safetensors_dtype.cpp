#include "linescan/files/safetensors_dtype.h"

#include <fmt/ranges.h>

#include <array>

#include "linescan/base/error.h"
#include "linescan/files/quote_text.h"
#include "linescan/files/safetensors.h"

namespace linescan {
namespace {

struct ElementType {
  const char* name;
  int64_t size;
};
constexpr std::array<ElementType, 10> kTypes = {{{"F64", 8},
                                                 {"F32", 4},
                                                 {"F16", 2},
                                                 {"BF16", 2},
                                                 {"I64", 8},
                                                 {"I32", 4},
                                                 {"I16", 2},
                                                 {"I8", 1},
                                                 {"U8", 1},
                                                 {"BOOL", 1}}};

std::string known_types() {
  std::string text;
  for (const ElementType& type : kTypes)
    text += fmt::format("{}{}", text.empty() ? "" : " ", type.name);
  return text;
}

}  // namespace

int64_t safetensors_element_size(std::string_view dtype) {
  for (const ElementType& type : kTypes)
    if (dtype == type.name) return type.size;
  return 0;
}

int64_t safetensors_byte_size(std::string_view who, std::string_view dtype,
                              std::span<const int64_t> shape) {
  int64_t bytes = safetensors_element_size(dtype);
  if (bytes == 0)
    throw_error<InvalidArgument>("{} has type {}, expected one of {}", who, quote_text(dtype),
                                 known_types());
  constexpr std::size_t kMaxDimensions = 32;  // also keeps the messages below short
  if (shape.size() > kMaxDimensions)
    throw_error<InvalidArgument>("{} has {} dimensions, expected at most {}", who, shape.size(),
                                 kMaxDimensions);
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0)
      throw_error<InvalidArgument>("{} has shape [{}], expected sizes of 0 or more", who,
                                   fmt::join(shape, ", "));
    empty = empty || size == 0;
  }
  for (const int64_t size : shape)
    if (!empty && __builtin_mul_overflow(bytes, size, &bytes))
      throw_error<InvalidArgument>("{} has shape [{}], expected less than 2^63 bytes", who,
                                   fmt::join(shape, ", "));
  return empty ? 0 : bytes;
}

std::string safetensors_type_text(std::string_view dtype, std::span<const int64_t> shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

}  // namespace linescan
