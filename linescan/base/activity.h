// What this process is doing, for whoever must explain why it stands still: the module of a network that
// runs, and the operator that was started last with its plan.
//
//   const ModuleRunning module("layers.0");  // nested: "layers.0.blocks.1.op"
//   const OperatorRunning running(plan);  // a plan has kOperator and to_string(), called when asked
//   activity();                                              // from any thread
//
// A record costs a lock that nobody else wants and a copy of some hundred bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace linescan {

struct Activity {
  std::string module;       // the innermost that runs; empty outside of networks
  std::string op, plan;     // empty: none was started yet
  bool op_running = false;  // false: it has returned; on a GPU: it has been put into the queue
  double op_seconds = 0;    // since it was started
  int64_t ops = 0;          // started so far
  int64_t modules = 0;      // entered so far
};

// Of all threads: whatever was recorded last.
Activity activity();

// Where this thread is: the names of its running modules, joined by dots.
std::string_view running_module();
// The innermost module that the latest exception has left on this thread; empty if there was none since
// a module was last entered.
std::string_view failed_module();

class ModuleRunning {
 public:
  explicit ModuleRunning(std::string_view name);
  ~ModuleRunning();
  ModuleRunning(const ModuleRunning&) = delete;
  ModuleRunning& operator=(const ModuleRunning&) = delete;

 private:
  std::size_t length_before_;
  int exceptions_before_;
};

class OperatorRunning {
 public:
  template <class Plan>
  explicit OperatorRunning(const Plan& plan)
      : number_(start(Plan::kOperator, &plan, sizeof(Plan), [](const void* copy) {
          return to_string(*static_cast<const Plan*>(copy));
        })) {
    static_assert(std::is_trivially_copyable_v<Plan> && sizeof(Plan) <= kMostBytes);
  }
  ~OperatorRunning();
  OperatorRunning(const OperatorRunning&) = delete;
  OperatorRunning& operator=(const OperatorRunning&) = delete;

  static constexpr std::size_t kMostBytes = 512;  // of a plan

 private:
  static int64_t start(const char* name, const void* plan, std::size_t bytes,
                       std::string (*describe)(const void*));
  int64_t number_;
};

}  // namespace linescan
