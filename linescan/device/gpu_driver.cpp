#include "linescan/device/gpu_driver.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <cstdlib>
#include <cstring>

namespace linescan {
namespace {

// The part of the driver's interface that is used here; its numbers never change.
using Status = int;  // CUresult, 0: success
constexpr Status kNoDevice = 100;
struct Driver {
  Status (*init)(unsigned flags);
  Status (*version)(int* version);
  Status (*device_count)(int* count);
  Status (*device)(int* device, int ordinal);
  Status (*name)(char* name, int bytes, int device);
  Status (*memory)(std::size_t* bytes, int device);
  Status (*attribute)(int* value, int attribute, int device);
  Status (*error_name)(Status status, const char** name);
};

enum Attribute {
  kClockKilohertz = 13,
  kMultiprocessors = 16,
  kMemoryClockKilohertz = 36,
  kMemoryBusBits = 37,
  kL2Bytes = 38,
  kThreadsPerMultiprocessor = 39,
  kMajor = 75,
  kMinor = 76,
  kSharedPerMultiprocessor = 81,
  kRegistersPerMultiprocessor = 82,
  kSharedPerBlockOptin = 97,
  kBlocksPerMultiprocessor = 106,
};

// Fills the driver's functions; returns the name of the first one that the library lacks.
const char* find_functions(void* library, Driver& driver) {
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    void* address = dlsym(library, name);
    if (address == nullptr && missing == nullptr) missing = name;
    std::memcpy(&function, &address, sizeof(function));
  };
  find(driver.init, "cuInit");
  find(driver.version, "cuDriverGetVersion");
  find(driver.device_count, "cuDeviceGetCount");
  find(driver.device, "cuDeviceGet");
  find(driver.name, "cuDeviceGetName");
  find(driver.memory, "cuDeviceTotalMem_v2");
  find(driver.attribute, "cuDeviceGetAttribute");
  find(driver.error_name, "cuGetErrorName");
  return missing;
}

std::string describe(const Driver& driver, const char* function, Status status) {
  const char* name = nullptr;
  if (driver.error_name(status, &name) != 0 || name == nullptr) name = "unknown error";
  return fmt::format("the NVIDIA driver does not work: {} says {} ({})", function, name, status);
}

// CUDA_VISIBLE_DEVICES is the driver's variable, not ours: it is only quoted.
std::string no_devices() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return "the NVIDIA driver finds no GPU";
  return fmt::format("the NVIDIA driver shows no GPU, and CUDA_VISIBLE_DEVICES is '{}'", visible);
}

// The first call that fails is left in `failure`, as text.
Gpu read_gpu(const Driver& driver, int ordinal, std::string& failure) {
  const auto expect = [&](const char* function, Status status) {
    if (status != 0 && failure.empty()) failure = describe(driver, function, status);
    return status == 0;
  };
  Gpu gpu;
  int device = 0;
  if (!expect("cuDeviceGet", driver.device(&device, ordinal))) return gpu;
  // An attribute that an old driver does not know stays 0.
  const auto attribute = [&](Attribute which) -> int64_t {
    int value = 0;
    return driver.attribute(&value, which, device) == 0 ? value : 0;
  };
  std::array<char, 256> name = {};
  if (expect("cuDeviceGetName", driver.name(name.data(), name.size() - 1, device)))
    gpu.name = name.data();
  std::size_t memory = 0;
  expect("cuDeviceTotalMem", driver.memory(&memory, device));
  gpu.memory_bytes = static_cast<int64_t>(memory);
  gpu.major = static_cast<int>(attribute(kMajor));
  gpu.minor = static_cast<int>(attribute(kMinor));
  gpu.multiprocessors = attribute(kMultiprocessors);
  gpu.shared_per_block = attribute(kSharedPerBlockOptin);
  gpu.shared_per_multiprocessor = attribute(kSharedPerMultiprocessor);
  gpu.threads_per_multiprocessor = attribute(kThreadsPerMultiprocessor);
  gpu.blocks_per_multiprocessor = attribute(kBlocksPerMultiprocessor);
  gpu.registers_per_multiprocessor = attribute(kRegistersPerMultiprocessor);
  gpu.l2_bytes = attribute(kL2Bytes);
  // Two transfers a clock on every type of memory that these devices have.
  gpu.memory_bytes_per_second = 2e3 * static_cast<double>(attribute(kMemoryClockKilohertz)) *
                                static_cast<double>(attribute(kMemoryBusBits)) / 8;
  gpu.clock_hz = 1e3 * static_cast<double>(attribute(kClockKilohertz));
  if (gpu.multiprocessors == 0 && failure.empty())
    failure = "the NVIDIA driver does not work: it tells nothing about its GPU";
  return gpu;
}

}  // namespace

GpuReading read_gpus(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const std::string error = dlerror();
    if (error.find("No such file") != std::string::npos)
      return {{}, fmt::format("no NVIDIA driver: {} not found", library)};
    return {{}, "the NVIDIA driver's library cannot be loaded: " + error};
  }
  Driver driver;
  if (const char* missing = find_functions(handle, driver))
    return {{}, fmt::format("the NVIDIA driver does not work: {} has no {}", library, missing)};
  if (const Status status = driver.init(0); status != 0)
    return {{}, status == kNoDevice ? no_devices() : describe(driver, "cuInit", status)};
  int count = 0;
  if (const Status status = driver.device_count(&count); status != 0)
    return {{}, describe(driver, "cuDeviceGetCount", status)};
  if (count <= 0) return {{}, no_devices()};

  GpuReading reading;
  driver.version(&reading.cuda_version);
  for (int ordinal = 0; ordinal < count; ++ordinal)
    reading.gpus.push_back(read_gpu(driver, ordinal, reading.why_none));
  // Numbers would shift if a broken device were left out: then there is none.
  if (!reading.why_none.empty()) reading.gpus.clear();
  return reading;
}

}  // namespace linescan
