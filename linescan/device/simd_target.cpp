#include "linescan/device/simd_target.h"

#include "linescan/device/simd_targets.h"
// After simd_targets.h, which selects what Highway compiles for.
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <mutex>

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"
#include "linescan/device/environment.h"

namespace linescan {
namespace {

// Before anything was forced: what the machine can run. Highway answers with the forced target
// afterwards.
const std::vector<int64_t>& runnable_targets() {
  static const std::vector<int64_t> targets = [] {
    std::vector<int64_t> found = hwy::SupportedAndGeneratedTargets();
    std::sort(found.begin(), found.end());  // smaller bits are better targets
    return found;
  }();
  return targets;
}

void choose(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::once_flag environment_read;

void force(std::string_view name, std::string_view who) {
  for (int64_t target : runnable_targets())
    if (name == hwy::TargetName(target)) return choose(target);
  throw InvalidArgument(fmt::format("{}: ", who) +
                        unknown_name("instruction set", name, simd_targets()));
}

}  // namespace

std::vector<std::string> simd_targets() {
  std::vector<std::string> names;
  for (int64_t target : runnable_targets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

void ensure_simd_target() {
  std::call_once(environment_read, [] {
    if (const auto name = environment(kSimdVariable))
      force(*name, kSimdVariable);
    else
      choose(runnable_targets().front());
  });
}

std::string simd_target() {
  ensure_simd_target();
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(supported & -supported);
}

void force_simd_target(std::string_view name) {
  ensure_simd_target();
  force(name, "force_simd_target");
}

}  // namespace linescan
