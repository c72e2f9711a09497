// Weights of a module in safetensors files, strictly: every tensor must be there, none may be left.
#pragma once

#include <torch/torch.h>

#include <filesystem>

namespace linescan {

// Fills parameters and buffers. Accepted beside the module's own names and shapes:
//   names of older published files (patch_embed.proj, ln_1, self_attention, norm, head),
//   1x1 convolution weights [out, in, 1, 1] for linear ones and back,
//   position embeddings of another grid (resized bicubically), other floating-point types.
// If anything else is missing, unexpected, or of a wrong shape or type, throws one InvalidArgument
// that names it, up to five of a kind, and changes nothing.
void load_weights(torch::nn::Module& module, const std::filesystem::path& path);

// Writes parameters and buffers under their names. Throws IoError.
void save_weights(const torch::nn::Module& module, const std::filesystem::path& path);

}  // namespace linescan
