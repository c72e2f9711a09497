// Torch tensors to and from safetensors files.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "linescan/files/safetensors.h"

namespace linescan {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// "float32 [2, 3]"
std::string describe(const at::Tensor& tensor);

// A copy of one entry, on the CPU. Throws InvalidArgument for a type that Torch does not have.
at::Tensor to_tensor(const SafetensorsEntry& entry);

// Every tensor of a file. Throws InvalidArgument as SafetensorsFile::read does.
std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& path);

// Writes tensors of any device and layout, atomically. Throws InvalidArgument for a type that the
// format does not have, IoError if the system refuses.
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const SafetensorsMetadata& metadata = {});

}  // namespace linescan
