// After a step as much memory is in use as before it; and how torn the free memory is.

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>
#include <malloc.h>
#include <torch/torch.h>

#include "linescan/base/units.h"
#include "linescan/binding/gpu_runtime.h"
#include "linescan/device/process.h"
#include "linescan/train/doctor/checks.h"

namespace linescan {
namespace {

constexpr std::size_t kWarmUp = 2;            // steps in which libraries allocate what they keep
constexpr std::size_t kFewest = kWarmUp + 2;  // steps that growth shows in
constexpr double kTornShare = 0.5;            // of what was reserved
constexpr int64_t kLeastTorn = 1 << 30;       // bytes that are worth a word

// Bytes of tensors on the CPU that this thread has made and not given back, to the byte.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, std::size_t, std::size_t,
                         c10::Device device) override {
    if (device.is_cpu()) bytes_ += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// Free bytes that the allocator cannot give back: between tensors on a GPU, in the heap on the CPU.
struct Tear {
  int64_t free = 0, reserved = 0;
  bool bad() const {
    return free > kLeastTorn &&
           static_cast<double>(free) > kTornShare * static_cast<double>(reserved);
  }
};

Tear tear_of(const Compute& compute) {
  if (compute.on_gpu()) {
    const GpuRuntime::Memory memory = gpu_runtime().memory(compute.device);
    return {memory.reserved - memory.allocated, memory.reserved};
  }
  const struct mallinfo2 heap = ::mallinfo2();
  return {static_cast<int64_t>(heap.fordblks), static_cast<int64_t>(heap.arena + heap.hblkhd)};
}

}  // namespace

Finding check_memory(const Patient& patient) {
  const Compute& compute = patient.compute();
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard report(c10::DebugInfoKind::PROFILER_STATE, live);
  const auto in_use = [&] {
    return compute.on_gpu() ? gpu_runtime().memory(compute.device).allocated : live->bytes();
  };
  Trial trial(patient);
  std::vector<int64_t> after;
  int64_t kept = 0;  // the first step whose graph outlives it
  for (int64_t i = 0; i < static_cast<int64_t>(patient.batches().size()); ++i) {
    trial.run(i);
    after.push_back(in_use());
    if (trial.graph_kept() && kept == 0) kept = i;
  }
  const Tear tear = tear_of(compute);
  std::string measured = fmt::format(
      "{} steps; {:.1f} MB of tensors after the last, {:.0f} MB in the process; {:.0f} of {:.0f} "
      "MB reserved are free",
      after.size(), megabytes(after.back()), megabytes(resident_memory()), megabytes(tear.free),
      megabytes(tear.reserved));
  if (after.size() < kFewest) {
    const bool few_wanted = patient.wanted_batches() < static_cast<int64_t>(kFewest);
    return {"memory", Grade::kSkip,
            fmt::format("{}; too few {} to see growth", measured, few_wanted ? "steps" : "batches"),
            few_wanted ? fmt::format("Take at least --steps {} for this check.", kFewest)
                       : "Take a smaller --batch for this check."};
  }

  bool grows = true;
  for (std::size_t i = kWarmUp + 1; i < after.size(); ++i) grows &= after[i] > after[i - 1];
  const int64_t steps = static_cast<int64_t>(after.size() - kWarmUp) - 1;
  const int64_t growth = (after.back() - after[kWarmUp]) / steps;
  if (kept > 0)
    return {
        "memory", Grade::kFail,
        fmt::format("the graph of step {} is still alive after it, as those of all steps since: "
                    "{} bytes more a step; {}",
                    kept, std::max<int64_t>(0, growth), measured),
        "Something keeps a loss or logits with their graph: store loss.item() or loss.detach()."};
  if (grows)
    return {"memory", growth > 1'000'000 ? Grade::kFail : Grade::kWarn,
            fmt::format("every step keeps {} bytes; {}", growth, measured),
            "Look for tensors that are put into a list or a member in every step."};
  if (tear.bad())
    return {"memory", Grade::kWarn, measured,
            "Much is reserved and little of it used: batches of one size help, and on a GPU "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."};
  return {"memory", Grade::kPass, measured + "; no step leaves anything behind"};
}

}  // namespace linescan
