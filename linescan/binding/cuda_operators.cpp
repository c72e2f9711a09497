#include "linescan/binding/cuda_operators.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "linescan/base/error.h"
#include "linescan/device/gpu.h"

namespace linescan {
namespace {

constexpr const char* kLibrary = "liblinescan_torch_cuda.so";

// Beside the library that this function is in.
std::string library_path() {
  Dl_info here = {};
  if (dladdr(reinterpret_cast<const void*>(&load_cuda_operators), &here) == 0 || !here.dli_fname)
    return kLibrary;
  return std::filesystem::path(here.dli_fname).replace_filename(kLibrary).string();
}

void load() {
  if (built_for().machine_code.empty() && built_for().ptx.empty())
    throw_error<Unsupported>(
        "device cuda: this build has no CUDA kernels; build the preset cuda (docs/cuda.md)");
  if (gpus().empty()) throw_error<Unsupported>("device cuda: {}", why_no_gpu());
  // The version that LibTorch and our kernels are compiled with.
  constexpr int kNeeded = 13000;
  if (const int version = driver_cuda_version(); version < kNeeded)
    throw_error<Unsupported>("device cuda: the driver is for CUDA {}.{}, expected {}.0 or later",
                             version / 1000, version % 1000 / 10, kNeeded / 1000);
  const auto runs = [](const Gpu& gpu) { return code_for(gpu).runs; };
  if (std::none_of(gpus().begin(), gpus().end(), runs))
    throw_error<Unsupported>("device cuda: {}: {}", gpus()[0].name, code_for(gpus()[0]).text);
  // Symbols stay local: nothing but the registration is wanted.
  if (dlopen(library_path().c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
    throw_error<Unsupported>(
        "device cuda: {}; the set-up without GPU lacks libraries of CUDA: run 'tools/setup.sh "
        "cuda'",
        dlerror());
}

}  // namespace

void load_cuda_operators() {
  static std::once_flag loaded;
  std::call_once(loaded, load);  // tried again after a failure
}

}  // namespace linescan
