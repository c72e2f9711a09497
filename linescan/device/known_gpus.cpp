// Figures of the vendor's data sheets and of the CUDA programming guide's table of compute
// capabilities. The data-centre ones are the SXM modules, their clock the highest boost. From 8.0 on
// a block can have all of its SM's shared memory but the 1 KiB that the system keeps.

#include "linescan/device/gpu.h"

namespace linescan {
namespace {

constexpr int64_t kKiB = 1024, kMiB = kKiB * 1024, kGiB = kMiB * 1024;

// What a compute capability fixes.
Gpu generation(int major, int minor, int64_t shared_per_block, int64_t shared_per_multiprocessor,
               int64_t threads, int64_t blocks) {
  Gpu gpu;
  gpu.major = major;
  gpu.minor = minor;
  gpu.shared_per_block = shared_per_block;
  gpu.shared_per_multiprocessor = shared_per_multiprocessor;
  gpu.threads_per_multiprocessor = threads;
  gpu.blocks_per_multiprocessor = blocks;
  gpu.registers_per_multiprocessor = 65536;
  return gpu;
}

// What the product adds.
Gpu product(Gpu gpu, const char* name, int64_t multiprocessors, double clock_hz, int64_t l2_bytes,
            int64_t memory_bytes, double memory_bytes_per_second) {
  gpu.name = name;
  gpu.multiprocessors = multiprocessors;
  gpu.clock_hz = clock_hz;
  gpu.l2_bytes = l2_bytes;
  gpu.memory_bytes = memory_bytes;
  gpu.memory_bytes_per_second = memory_bytes_per_second;
  return gpu;
}

std::vector<Gpu> describe_known() {
  const Gpu volta = generation(7, 0, 96 * kKiB, 96 * kKiB, 2048, 32);
  const Gpu ampere = generation(8, 0, 163 * kKiB, 164 * kKiB, 2048, 32);
  const Gpu ampere_geforce = generation(8, 6, 99 * kKiB, 100 * kKiB, 1536, 16);
  const Gpu ampere_jetson = generation(8, 7, 163 * kKiB, 164 * kKiB, 1536, 16);
  const Gpu ada = generation(8, 9, 99 * kKiB, 100 * kKiB, 1536, 24);
  const Gpu hopper = generation(9, 0, 227 * kKiB, 228 * kKiB, 2048, 32);
  const Gpu blackwell = generation(10, 0, 227 * kKiB, 228 * kKiB, 2048, 32);
  return {
      product(volta, "v100", 80, 1.53e9, 6 * kMiB, 32 * kGiB, 900e9),
      product(ampere, "a100", 108, 1.41e9, 40 * kMiB, 80 * kGiB, 2039e9),
      product(ampere_geforce, "rtx3090", 82, 1.695e9, 6 * kMiB, 24 * kGiB, 936e9),
      product(ada, "rtx4090", 128, 2.52e9, 72 * kMiB, 24 * kGiB, 1008e9),
      product(ada, "l4", 58, 2.04e9, 48 * kMiB, 24 * kGiB, 300e9),
      product(hopper, "h100", 132, 1.98e9, 50 * kMiB, 80 * kGiB, 3350e9),
      product(hopper, "h200", 132, 1.98e9, 60 * kMiB, int64_t{141'000'000'000}, 4800e9),
      product(blackwell, "b200", 148, 1.965e9, 126 * kMiB + 512 * kKiB, int64_t{180'000'000'000},
              7700e9),
      product(ampere_jetson, "orin", 16, 1.3e9, 4 * kMiB, 64 * kGiB, 204.8e9),
  };
}

}  // namespace

const std::vector<Gpu>& known_gpus() {
  static const std::vector<Gpu> known = describe_known();
  return known;
}

}  // namespace linescan
