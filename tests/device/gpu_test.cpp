#include "linescan/device/gpu.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "linescan/base/error.h"
#include "linescan/device/gpu_driver.h"

namespace linescan {
namespace {

GpuReading read_fake(const std::string& driver) {
  return read_gpus((std::string(LINESCAN_TEST_DRIVERS) + "/" + driver + "/libcuda.so.1").c_str());
}

void expect_refused(std::string_view name, std::string_view message) {
  try {
    find_gpu(name);
    FAIL() << name << " was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string_view(error.what()).find(message), std::string_view::npos) << error.what();
  }
}

TEST(Gpu, IsReadFromTheDriver) {
  const GpuReading reading = read_fake("two_gpus");
  EXPECT_EQ(reading.why_none, "");
  EXPECT_EQ(reading.cuda_version, 13000);
  ASSERT_EQ(reading.gpus.size(), 2);
  const Gpu& first = reading.gpus[0];
  EXPECT_EQ(first.name, "Test GPU 0");
  EXPECT_EQ(first.major * 10 + first.minor, 90);
  EXPECT_EQ(first.multiprocessors, 132);
  EXPECT_EQ(first.shared_per_block, 227 * 1024);
  EXPECT_EQ(first.shared_per_multiprocessor, 228 * 1024);
  EXPECT_EQ(first.threads_per_multiprocessor, 2048);
  EXPECT_EQ(first.blocks_per_multiprocessor, 32);
  EXPECT_EQ(first.l2_bytes, 50 << 20);
  EXPECT_EQ(first.memory_bytes, int64_t{80} << 30);
  EXPECT_NEAR(first.memory_bytes_per_second, 3.35e12, 0.01e12);
  EXPECT_EQ(first.clock_hz, 1.98e9);
  EXPECT_EQ(reading.gpus[1].name, "Test GPU 1");
  EXPECT_EQ(reading.gpus[1].major, 12);
}

TEST(Gpu, AMachineWithoutOneSaysWhy) {
  EXPECT_EQ(read_gpus("libnosuchdriver.so.1").why_none,
            "no NVIDIA driver: libnosuchdriver.so.1 not found");
  EXPECT_EQ(read_fake("broken").why_none,
            "the NVIDIA driver does not work: cuInit says CUDA_ERROR_UNKNOWN (999)");
  EXPECT_TRUE(read_fake("old").why_none.ends_with("libcuda.so.1 has no cuDeviceGetAttribute"));
  EXPECT_EQ(read_fake("no_device").why_none, "the NVIDIA driver finds no GPU");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(read_fake("no_device").why_none,
            "the NVIDIA driver shows no GPU, and CUDA_VISIBLE_DEVICES is ''");
  unsetenv("CUDA_VISIBLE_DEVICES");

  const std::string text = testing::TempDir() + "libcuda_text.so.1";
  std::ofstream(text) << "not a library";
  EXPECT_TRUE(read_gpus(text.c_str())
                  .why_none.starts_with("the NVIDIA driver's library cannot be loaded: "));
  EXPECT_EQ(gpus().empty(), !why_no_gpu().empty());
}

TEST(Gpu, KnownOnesAreComplete) {
  EXPECT_EQ(known_gpus().size(), 9);
  for (const Gpu& gpu : known_gpus()) {
    EXPECT_EQ(find_gpu(gpu.name), gpu);
    EXPECT_GT(gpu.multiprocessors, 0) << gpu.name;
    EXPECT_GE(gpu.shared_per_block, 96 << 10) << gpu.name;
    EXPECT_LE(gpu.shared_per_multiprocessor - gpu.shared_per_block, 1 << 10) << gpu.name;
    EXPECT_GT(gpu.memory_bytes_per_second, 1e11) << gpu.name;
    EXPECT_GT(gpu.specials_per_second(), 1e11) << gpu.name;
  }
  EXPECT_EQ(find_gpu("RTX3090").name, "rtx3090");
  expect_refused("h1000", "unknown device 'h1000'; did you mean 'h100'? (known: cuda, v100, ");
  expect_refused("cuda:99", gpus().empty() ? why_no_gpu() : "expected cuda:0 to cuda:");
  expect_refused("cuda:x", "device 'cuda:x': ");
}

TEST(Gpu, CodeRunsOnItsGenerationAndPtxOnEveryLaterOne) {
  const BuiltFor release = {{"80", "86", "89", "90a", "100", "120"}, {"80", "120"}};
  EXPECT_EQ(code_for(find_gpu("a100"), release).text, "machine code of sm_80");
  EXPECT_EQ(code_for(find_gpu("orin"), release).text, "machine code of sm_86");
  EXPECT_EQ(code_for(find_gpu("rtx4090"), release).text, "machine code of sm_89");
  EXPECT_EQ(code_for(find_gpu("h200"), release).text, "machine code of sm_90a");
  EXPECT_EQ(code_for(find_gpu("b200"), release).text, "machine code of sm_100");
  EXPECT_EQ(code_for(find_gpu("v100"), release).text,
            "no code for compute capability 7.0, which CUDA 13 no longer knows; this build has "
            "sm_80, sm_86, sm_89, sm_90a, sm_100, sm_120, compute_80, compute_120");
  EXPECT_FALSE(code_for(find_gpu("v100"), release).runs);

  Gpu later = find_gpu("b200");
  later.major = 13;
  EXPECT_EQ(code_for(later, release).text, "PTX of compute_120, compiled by the driver");
  later.major = 11;
  EXPECT_EQ(code_for(later, release).text, "PTX of compute_80, compiled by the driver");
  later.major = 10;
  later.minor = 3;
  EXPECT_EQ(code_for(later, release).text, "machine code of sm_100");

  // What is made for one architecture alone goes nowhere else.
  EXPECT_FALSE(code_for(later, {{"90a", "100a"}, {"90a"}}).runs);
  EXPECT_FALSE(code_for(find_gpu("a100"), {{"86"}, {}}).runs);
  EXPECT_EQ(code_for(find_gpu("a100"), {}).text, "none: this build has no CUDA code");
}

TEST(Gpu, CountsTheBlocksOfAMultiprocessor) {
  const Gpu& h100 = find_gpu("h100");
  EXPECT_EQ(blocks_on_multiprocessor(h100, 256, 0), 8);           // 2048 threads
  EXPECT_EQ(blocks_on_multiprocessor(h100, 32, 0), 32);           // at most 32 blocks
  EXPECT_EQ(blocks_on_multiprocessor(h100, 256, 227 * 1024), 1);  // all of the shared memory
  EXPECT_EQ(blocks_on_multiprocessor(h100, 256, 113 * 1024), 2);  // two times 113 + 1 KiB
  EXPECT_EQ(blocks_on_multiprocessor(h100, 256, 114 * 1024), 1);
  EXPECT_EQ(blocks_on_multiprocessor(h100, 256, 228 * 1024), 0);
  EXPECT_EQ(blocks_on_multiprocessor(find_gpu("v100"), 1024, 48 * 1024), 2);
}

}  // namespace
}  // namespace linescan
