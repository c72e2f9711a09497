#include "linescan/device/gpu.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"
#include "linescan/device/gpu_driver.h"

// What cmake/Cuda.cmake has nvcc compile for: "80,90a"; not defined in a build without CUDA.
#ifndef LINESCAN_MACHINE_CODE
#define LINESCAN_MACHINE_CODE ""
#define LINESCAN_PTX ""
#endif

namespace linescan {
namespace {

const GpuReading& reading() {
  static const GpuReading cached = read_gpus("libcuda.so.1");
  return cached;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// "90a" -> 90; what follows the digits limits it: "a" to one compute capability, "f" to one major.
struct Architecture {
  int capability = 0;
  char limit = 0;
};
Architecture parse(std::string_view text) {
  Architecture result;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), result.capability);
  if (error == std::errc() && end != text.data() + text.size()) result.limit = *end;
  return result;
}

bool machine_code_runs(std::string_view name, int capability) {
  const Architecture code = parse(name);
  if (code.limit == 'a') return capability == code.capability;
  return capability / 10 == code.capability / 10 && capability >= code.capability;
}

bool ptx_runs(std::string_view name, int capability) {
  return parse(name).limit != 0 ? machine_code_runs(name, capability)
                                : capability >= parse(name).capability;
}

// The largest one that runs: nearest to the device.
template <class Runs>
const std::string* best(const std::vector<std::string>& names, const Runs& runs) {
  const std::string* found = nullptr;
  for (const std::string& name : names)
    if (runs(name) && (!found || parse(name).capability > parse(*found).capability)) found = &name;
  return found;
}

}  // namespace

const std::vector<Gpu>& gpus() { return reading().gpus; }

const std::string& why_no_gpu() { return reading().why_none; }

int driver_cuda_version() { return reading().cuda_version; }

const Gpu& find_gpu(std::string_view name) {
  const auto same = [](unsigned char a, unsigned char b) {
    return std::tolower(a) == std::tolower(b);
  };
  for (const Gpu& gpu : known_gpus())
    if (std::ranges::equal(gpu.name, name, same)) return gpu;
  if (name == "cuda" || name.starts_with("cuda:")) {
    if (gpus().empty())
      throw_error<InvalidArgument>("device '{}': no GPU here: {}", name, why_no_gpu());
    const std::string_view digits = name.substr(std::min<std::size_t>(5, name.size()));
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    const bool is_number = error == std::errc() && end == digits.data() + digits.size();
    if ((name != "cuda" && !is_number) || number >= gpus().size())
      throw_error<InvalidArgument>("device '{}': expected cuda:0 to cuda:{}", name,
                                   gpus().size() - 1);
    return gpus()[number];
  }
  std::vector<std::string> names = {"cuda"};
  for (const Gpu& gpu : known_gpus()) names.push_back(gpu.name);
  throw InvalidArgument(unknown_name("device", name, names));
}

const BuiltFor& built_for() {
  static const BuiltFor built = {split(LINESCAN_MACHINE_CODE), split(LINESCAN_PTX)};
  return built;
}

CodeAnswer code_for(const Gpu& gpu, const BuiltFor& built) {
  if (built.machine_code.empty() && built.ptx.empty())
    return {false, "none: this build has no CUDA code"};
  const int capability = gpu.major * 10 + gpu.minor;
  if (const auto* name = best(built.machine_code, [&](std::string_view candidate) {
        return machine_code_runs(candidate, capability);
      }))
    return {true, fmt::format("machine code of sm_{}", *name)};
  if (const auto* name = best(
          built.ptx, [&](std::string_view candidate) { return ptx_runs(candidate, capability); }))
    return {true, fmt::format("PTX of compute_{}, compiled by the driver", *name)};
  std::vector<std::string> has;
  for (const std::string& name : built.machine_code) has.push_back("sm_" + name);
  for (const std::string& name : built.ptx) has.push_back("compute_" + name);
  // CUDA 13 dropped everything before Turing.
  return {false, fmt::format("no code for compute capability {}.{}{}; this build has {}", gpu.major,
                             gpu.minor, capability < 75 ? ", which CUDA 13 no longer knows" : "",
                             fmt::join(has, ", "))};
}

int64_t blocks_on_multiprocessor(const Gpu& gpu, int64_t threads, int64_t shared_bytes) {
  if (shared_bytes > gpu.shared_per_block || threads < 1) return 0;
  // What the system keeps of a block's shared memory.
  const int64_t reserved = gpu.shared_per_multiprocessor - gpu.shared_per_block;
  const int64_t warps = (threads + 31) / 32;
  int64_t blocks = gpu.threads_per_multiprocessor / 32 / warps;
  if (gpu.blocks_per_multiprocessor > 0) blocks = std::min(blocks, gpu.blocks_per_multiprocessor);
  if (shared_bytes + reserved > 0)
    blocks = std::min(blocks, gpu.shared_per_multiprocessor / (shared_bytes + reserved));
  return blocks;
}

}  // namespace linescan
