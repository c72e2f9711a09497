// The GPUs of this machine, and descriptions of well-known ones to plan for. Read once through the
// driver, cached, never throws; no GPU is an answer, not an error. Needs no CUDA toolkit: a build
// without CUDA kernels sees the GPUs as well.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace linescan {

struct Gpu {
  std::string name;              // "NVIDIA H100 80GB HBM3"; of a built-in one "h100"
  int major = 0, minor = 0;      // compute capability
  int64_t multiprocessors = 0;   // SMs
  int64_t shared_per_block = 0;  // bytes that a block may have at most, after opting in
  int64_t shared_per_multiprocessor = 0;
  int64_t threads_per_multiprocessor = 0;
  int64_t blocks_per_multiprocessor = 0;
  int64_t registers_per_multiprocessor = 0;  // of 32 bits
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  double memory_bytes_per_second = 0;  // the data sheet's or the driver's figure; 0 if unknown
  double clock_hz = 0;                 // of the SMs, boosted

  // Exponentials and logarithms a second: 16 a clock and SM on every architecture planned for.
  double specials_per_second() const {
    return 16 * clock_hz * static_cast<double>(multiprocessors);
  }
  bool operator==(const Gpu&) const = default;
};

// In the driver's order, which is PyTorch's; empty if there is none.
const std::vector<Gpu>& gpus();

// Why gpus() is empty ("no NVIDIA driver: libcuda.so.1 not found", ...); empty text if it is not.
const std::string& why_no_gpu();

// The newest CUDA that the driver can run, as major * 1000 + minor * 10: 13000 is 13.0; 0 without a
// driver.
int driver_cuda_version();

// Descriptions from the vendor's data sheets, for plans without the device: v100, a100, rtx3090,
// rtx4090, l4, h100, h200, b200, orin.
const std::vector<Gpu>& known_gpus();

// The built-in description of that name, or number N of this machine for "cuda" and "cuda:N".
// Throws InvalidArgument that lists the names.
const Gpu& find_gpu(std::string_view name);

// What the kernels of this build were compiled for, as nvcc names it without prefix: "80", "90a".
// Machine code runs on its own generation; PTX, which the driver compiles, on every later device.
// Both are empty in a build without CUDA.
struct BuiltFor {
  std::vector<std::string> machine_code, ptx;
};
const BuiltFor& built_for();

// Whether such kernels can run on the device, and through what: "machine code of sm_90a",
// "PTX of compute_80, compiled by the driver", or "no code for compute capability 7.0 ...".
struct CodeAnswer {
  bool runs;
  std::string text;
};
CodeAnswer code_for(const Gpu& gpu, const BuiltFor& built = built_for());

// How many blocks of that many threads and bytes of shared memory an SM holds at once, if registers
// do not forbid it; 0 if not even one fits.
int64_t blocks_on_multiprocessor(const Gpu& gpu, int64_t threads, int64_t shared_bytes);

}  // namespace linescan
