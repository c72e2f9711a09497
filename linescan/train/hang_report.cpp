#include "linescan/train/hang_report.h"

#include <fmt/core.h>
#include <unistd.h>

#include <future>
#include <memory>

#include "linescan/base/activity.h"
#include "linescan/base/units.h"
#include "linescan/device/cpu.h"
#include "linescan/device/process.h"
#include "linescan/device/thread_stacks.h"

namespace linescan {
namespace {

constexpr std::chrono::seconds kPatience{2};

std::string operator_line(const Activity& now) {
  if (now.op.empty()) return "none was started";
  return fmt::format(
      "{}, started {:.4g} s ago, {}; number {} of this process", now.op, now.op_seconds,
      now.op_running ? "has not returned" : "has returned or is in the GPU's queue", now.ops);
}

std::string last_step_line(const std::optional<StepStatistics>& last) {
  if (!last) return "none";
  return fmt::format("step {}: loss {:.6g}, gradient norm {:.6g}, learning rate {:.3g}", last->step,
                     last->loss, last->norm, last->lr);
}

std::string memory_line() {
  return fmt::format("{:.0f} MB in use, {:.0f} MB at most so far, {:.0f} MB still free",
                     megabytes(resident_memory()), megabytes(peak_memory()),
                     megabytes(available_memory()));
}

}  // namespace

std::optional<std::string> ask_patiently(std::function<std::string()> ask) {
  const auto promise = std::make_shared<std::promise<std::string>>();
  std::future<std::string> answer = promise->get_future();
  std::thread([promise, ask = std::move(ask)] {
    try {
      promise->set_value(ask());
    } catch (const std::exception& error) {
      promise->set_value(error.what());
    }
  }).detach();
  if (answer.wait_for(kPatience) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

std::string hang_line(const Hang& hang) {
  const Activity now = activity();
  std::string line = fmt::format("{} has been at work for {:.4g} s, the limit is {:.4g} s",
                                 hang.what, hang.seconds, hang.limit);
  if (!now.module.empty()) line += "; module " + now.module;
  if (now.op_running) line += "; operator " + now.op;
  return line;
}

std::string hang_report(const Hang& hang, const HangContext& context) {
  const Activity now = activity();
  const std::string gpu =
      context.gpu ? ask_patiently(context.gpu).value_or("the driver does not answer") : "not used";
  std::string text = hang_line(hang) + "\n\n";
  const auto add = [&](const char* name, const std::string& value) {
    text += fmt::format("{:<16}{}\n", name, value);
  };
  add("process", std::to_string(::getpid()));
  add("median step", hang.median > 0 ? fmt::format("{:.4g} s", hang.median) : "too few steps");
  add("module", now.module.empty() ? "none: not in the forward pass" : now.module);
  add("operator", operator_line(now));
  if (!now.plan.empty()) add("its plan", now.plan);
  add("GPU", gpu);
  add("memory", memory_line());
  add("last step", last_step_line(hang.last_step));
  add("checkpoint", context.checkpoint.empty() ? "none" : context.checkpoint.string());
  text +=
      "\n"
      "What to do: the stacks below say where the threads are. Threads in a wait for the device\n"
      "and a queue that is not empty: a kernel does not end, the operator above is the first\n"
      "suspect. A thread in read, poll or a lock: data, another process or a deadlock.\n";
  if (!context.run.empty())
    text += fmt::format(
        "'linescan doctor --run {0}' finds the module;\n"
        "'linescan train --run {0} --resume' goes on from the checkpoint.\n",
        context.run.string());
  return text + '\n' + to_string(thread_stacks());
}

}  // namespace linescan
