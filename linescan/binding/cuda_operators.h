// The CUDA kernels of the operators live in a library of their own, liblinescan_torch_cuda.so, so
// that a program starts, and the CPU is used, where there is no driver and none of CUDA's libraries.
#pragma once

namespace linescan {

// Loads that library, which registers its kernels with PyTorch; once, later calls do nothing. It also brings
// PyTorch's own CUDA half into the process, so that it must come before anything that asks for CUDA: the
// first CUDA tensor, but also the first backward() on the CPU. What LibTorch was told then it remembers.
// Throws Unsupported: a build without CUDA, no GPU, or a library that cannot be loaded.
void load_cuda_operators();

}  // namespace linescan
