// What watches over the loop of trainer.cpp.

#include <fmt/format.h>

#include <algorithm>

#include "linescan/base/activity.h"
#include "linescan/base/error.h"
#include "linescan/files/atomic_write.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/first_line.h"
#include "linescan/train/hang_report.h"
#include "linescan/train/machine.h"
#include "linescan/train/trainer.h"
#include "linescan/train/unused.h"

namespace linescan {

namespace fs = std::filesystem;

void Trainer::start_watchdog() {
  dog_.reset();
  if (const std::optional<WatchdogSettings> settings = parse_watchdog(config_.recipe.watchdog))
    dog_ = std::make_unique<Watchdog>(*settings, [this](const Hang& hang) { report_hang(hang); });
}

// On the watchdog's thread: of this object it may use what does not change while the run goes on.
void Trainer::report_hang(const Hang& hang) const {
  HangNotice notice{
      .line = hang_line(hang), .report = {}, .stop = config_.recipe.on_hang == "stop"};
  std::string name = hang.what;
  std::replace(name.begin(), name.end(), ' ', '-');
  try {
    const fs::path report = run_ / ("hang-" + name + ".txt");
    const fs::path run = fs::exists(run_ / "config.toml") ? run_ : fs::path();
    write_file_atomically(report,
                          hang_report(hang, {find_checkpoint(run_, "last"), gpu_probe_, run}));
    notice.report = report;
  } catch (const Error&) {  // a full disk may be the reason of the hang
  }
  if (hooks_.hang) hooks_.hang(notice);
}

// Work that was reported and has gone on after all is worth a line.
void Trainer::stop_watching() {
  if (!dog_) return;
  if (const std::optional<Watchdog::LateWork> late = dog_->end(); late && hooks_.message)
    hooks_.message(fmt::format("{} has gone on after {:.1f} s", late->what, late->seconds));
}

void Trainer::report_out_of_memory(const std::exception& error) const {
  const std::string_view module = failed_module();
  throw_error<DeviceError>(
      "train: step {} needs more memory than there is, in {}: {}; {}; a batch smaller than {} "
      "needs less; the last good checkpoint is {}",
      state_.step + 1, module.empty() ? "the batch or the update" : module, first_line(error),
      describe_memory(compute_), config_.recipe.batch, find_checkpoint(run_, "last").string());
}

// What cannot change from step to step is looked at once.
void Trainer::check_first_step() {
  const std::vector<std::string> unused = unused_parameters(*network_.module);
  if (unused.empty()) return;
  const std::string text = fmt::format("{} of {} parameters get no gradient: {}", unused.size(),
                                       network_.module->parameters().size(), name_some(unused));
  if (config_.recipe.fail_on_unused)
    throw_error<Error>("train: step {}: {}; the last good checkpoint is {}", state_.step + 1, text,
                       find_checkpoint(run_, "last").string());
  if (hooks_.message) hooks_.message("warning: " + text);
}

}  // namespace linescan
