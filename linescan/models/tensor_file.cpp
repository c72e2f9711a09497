#include "linescan/models/tensor_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cstring>

#include "linescan/base/error.h"

namespace linescan {
namespace {

struct TypeName {
  const char* name;
  at::ScalarType type;
};

constexpr TypeName kTypes[] = {{"F64", at::kDouble},    {"F32", at::kFloat}, {"F16", at::kHalf},
                               {"BF16", at::kBFloat16}, {"I64", at::kLong},  {"I32", at::kInt},
                               {"I16", at::kShort},     {"I8", at::kChar},   {"U8", at::kByte},
                               {"BOOL", at::kBool}};

}  // namespace

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::getDtypeNames(tensor.scalar_type()).first,
                     fmt::join(tensor.sizes(), ", "));
}

at::Tensor to_tensor(const SafetensorsEntry& entry) {
  for (const TypeName& known : kTypes) {
    if (entry.dtype != known.name) continue;
    at::Tensor tensor = at::empty(entry.shape, known.type);
    if (entry.size > 0) std::memcpy(tensor.data_ptr(), entry.data, entry.size);
    return tensor;
  }
  throw_error<InvalidArgument>("safetensors: type {} has no counterpart in Torch", entry.dtype);
}

std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::read(path);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : file.entries()) tensors.emplace(name, to_tensor(entry));
  return tensors;
}

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const SafetensorsMetadata& metadata) {
  std::vector<at::Tensor> held;  // the rows below point into these
  std::vector<SafetensorsTensor> rows;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor& plain = held.emplace_back(tensor.detach().cpu().contiguous());
    const char* type = nullptr;
    for (const TypeName& known : kTypes)
      if (known.type == plain.scalar_type()) type = known.name;
    if (!type)
      throw_error<InvalidArgument>("safetensors: tensor {} has type {}, which the format lacks",
                                   name, c10::getDtypeNames(plain.scalar_type()).first);
    rows.push_back({name, type, plain.sizes().vec(),
                    static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
  }
  write_safetensors(path, rows, metadata);
}

}  // namespace linescan
