#include "linescan/base/activity.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>

namespace linescan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostPath = 256;  // longer paths are cut off: they are for reading

struct Path {
  std::array<char, kMostPath> text;
  std::size_t length = 0;

  std::string_view view() const { return {text.data(), length}; }
  void append(std::string_view more) {
    const std::size_t count = std::min(more.size(), kMostPath - length);
    std::memcpy(text.data() + length, more.data(), count);
    length += count;
  }
};

struct Record {
  std::mutex mutex;
  Path path;
  int64_t modules = 0;

  const char* op = nullptr;
  std::string (*describe)(const void*) = nullptr;
  alignas(std::max_align_t) std::array<std::byte, OperatorRunning::kMostBytes> plan;
  Clock::time_point started;
  int64_t ops = 0;
  bool running = false;
};

// Never destroyed: a thread may still be at work when the process ends.
Record& record() {
  static Record& only = *new Record;
  return only;
}

thread_local Path here, failed;

void publish(bool entered) {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  all.path.length = 0;
  all.path.append(here.view());
  all.modules += entered;
}

}  // namespace

std::string_view running_module() { return here.view(); }

std::string_view failed_module() { return failed.view(); }

ModuleRunning::ModuleRunning(std::string_view name)
    : length_before_(here.length), exceptions_before_(std::uncaught_exceptions()) {
  failed.length = 0;
  if (here.length > 0) here.append(".");
  here.append(name);
  publish(/*entered=*/true);
}

ModuleRunning::~ModuleRunning() {
  if (std::uncaught_exceptions() > exceptions_before_ && failed.length == 0) failed = here;
  here.length = length_before_;
  publish(/*entered=*/false);
}

int64_t OperatorRunning::start(const char* name, const void* plan, std::size_t bytes,
                               std::string (*describe)(const void*)) {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  all.op = name;
  all.describe = describe;
  std::memcpy(all.plan.data(), plan, bytes);
  all.started = Clock::now();
  all.running = true;
  return ++all.ops;
}

OperatorRunning::~OperatorRunning() {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  if (all.ops == number_) all.running = false;  // else another thread has started one since
}

Activity activity() {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  Activity now;
  now.module = all.path.view();
  now.ops = all.ops;
  now.modules = all.modules;
  if (all.op == nullptr) return now;
  now.op = all.op;
  now.plan = all.describe(all.plan.data());
  now.op_running = all.running;
  now.op_seconds = std::chrono::duration<double>(Clock::now() - all.started).count();
  return now;
}

}  // namespace linescan
