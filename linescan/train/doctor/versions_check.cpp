// Program, LibTorch, driver and GPU fit together.

#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include "linescan/device/gpu.h"
#include "linescan/train/doctor/checks.h"
#include "linescan/train/machine.h"
#include "linescan/version.h"

namespace linescan {
namespace {

std::string targets(const BuiltFor& built) {
  if (built.machine_code.empty() && built.ptx.empty()) return "no kernels for GPUs in this build";
  return fmt::format("kernels for sm_{}{}{}", fmt::join(built.machine_code, ", sm_"),
                     built.ptx.empty() ? "" : " and PTX of ", fmt::join(built.ptx, ", "));
}

std::string cuda_version(long version) {  // as CUDA writes it, 13020 for 13.2
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Whose libraries are loaded for work on a GPU only.
std::string runtime_version(const Compute& compute) {
  if (!compute.on_gpu()) return {};
  return fmt::format("LibTorch's runtime CUDA {}, ", cuda_version(at::Context::versionCUDART()));
}

}  // namespace

Finding check_versions(const Patient& patient) {
  std::string measured = fmt::format("linescan {}, LibTorch {}, {}, {}", kVersion, TORCH_VERSION,
                                     instruction_sets(), targets(built_for()));
  if (gpus().empty())
    return {"versions", Grade::kPass, fmt::format("{}; {}", measured, why_no_gpu())};
  const auto index = patient.compute().on_gpu() ? patient.compute().device.index() : 0;
  const Gpu& gpu = gpus().at(index);
  const CodeAnswer code = code_for(gpu);
  measured += fmt::format("; {} ({}.{}), {}driver for CUDA {}: {}", gpu.name, gpu.major, gpu.minor,
                          runtime_version(patient.compute()), cuda_version(driver_cuda_version()),
                          code.text);
  if (!patient.compute().on_gpu())
    return {"versions", code.runs ? Grade::kWarn : Grade::kPass, measured,
            code.runs ? "A GPU is there and not used: --device cuda." : ""};
  if (!code.runs)
    return {"versions", Grade::kFail, measured,
            "Build with LINESCAN_CUDA_ARCHITECTURES for this GPU (docs/cuda.md)."};
  return {"versions", Grade::kPass, measured};
}

}  // namespace linescan
