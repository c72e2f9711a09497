#include "linescan/train/doctor/doctor.h"

#include <fmt/format.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "linescan/base/activity.h"
#include "linescan/base/error.h"
#include "linescan/models/memory_errors.h"
#include "linescan/models/module_watch.h"
#include "linescan/train/doctor/checks.h"
#include "linescan/train/first_line.h"
#include "linescan/train/machine.h"

namespace linescan {
namespace {

// What has been found so far, which the watchdog's thread may have to tell.
class Notes {
 public:
  explicit Notes(const DoctorSettings& settings) : settings_(settings) {}

  void add(const Finding& finding) {
    {
      const std::lock_guard lock(mutex_);
      checkup_.findings.push_back(finding);
    }
    if (settings_.found) settings_.found(finding);
  }
  void begin(const std::string& check) {
    const std::lock_guard lock(mutex_);
    running_ = check;
  }
  // The findings and, for the check that runs, that it stands still.
  Checkup with_hang(const Hang& hang) const {
    const std::lock_guard lock(mutex_);
    Checkup checkup = checkup_;
    const Activity now = activity();
    const std::string where =
        now.module.empty() ? "outside of the forward pass" : "in " + now.module;
    checkup.findings.push_back(
        {running_, Grade::kFail,
         fmt::format("stands still {}: {:.1f} s without a module's end, the limit is {:.1f} s{}",
                     where, hang.seconds, hang.limit, now.op_running ? "; operator " + now.op : ""),
         "Look at that module: a lock, a wait for another process, a kernel that does not end. "
         "'linescan train' writes the stacks of all threads down when it hangs."});
    return checkup;
  }
  Checkup checkup() const {
    const std::lock_guard lock(mutex_);
    return checkup_;
  }

 private:
  const DoctorSettings& settings_;
  mutable std::mutex mutex_;
  Checkup checkup_;
  std::string running_;
};

// The notes, and the watchdog that tells them when something stands still.
class Vigil {
 public:
  Vigil(const Recipe& recipe, const DoctorSettings& settings) : notes_(settings) {
    if (const std::optional<WatchdogSettings> patience = patience_of(recipe))
      dog_.emplace(*patience, [this, &settings](const Hang& hang) {
        if (settings.hang) settings.hang(notes_.with_hang(hang));
      });
  }
  // Something has come to its end, and the next thing begins.
  void beat(Watchdog::Work work = Watchdog::Work::kOther) {
    if (dog_) dog_->begin("module", ++beats_, work);
  }
  Notes& notes() { return notes_; }

 private:
  Notes notes_;
  int64_t beats_ = 0;
  std::optional<Watchdog> dog_;  // the last member: it uses the others
};

constexpr char kData[] = "data";  // what is done before the checks

Finding finding_of(const char* check, const std::exception& error) {
  const std::string module(failed_module());
  const std::string where = module.empty() ? "" : module + ": ";
  if (is_out_of_memory(error))
    return {check, Grade::kFail, where + "needs more memory than there is: " + first_line(error),
            "A smaller --batch, --precision bf16, or --set use_checkpoint=true."};
  return {check, Grade::kFail, where + first_line(error),
          "A step cannot be computed; 'bisection' says from which module on."};
}

void run_check(const Check& check, const Patient& patient, Notes& notes) {
  notes.begin(check.name);
  try {
    notes.add(check.run(patient));
  } catch (const std::exception& error) {
    notes.add(finding_of(check.name, error));
  }
}

Checkup examine_watched(const RunConfig& config, const Task& task, const DoctorSettings& settings,
                        Vigil& vigil) {
  const std::vector<Check> wanted = checks_named(settings.only);
  const ModuleWatch watch(seen_by([&](const std::string&, const at::Tensor&) { vigil.beat(); }));
  vigil.notes().begin(kData);
  vigil.beat(Watchdog::Work::kSlow);  // a device that is opened
  const Patient patient(config, task, settings.examination, [&] { vigil.beat(); });
  for (const Check& check : wanted) {
    vigil.beat();
    run_check(check, patient, vigil.notes());
  }
  return vigil.notes().checkup();
}

// Reading files takes as long as it takes where others use the disk too.
std::unique_ptr<Task> make_task_watched(RunConfig* config, const Assignments& options,
                                        Vigil& vigil) {
  vigil.notes().begin(kData);
  vigil.beat(Watchdog::Work::kSlow);
  const ModuleRunning module(kData);
  return make_task(config, &options);
}

}  // namespace

std::optional<WatchdogSettings> patience_of(const Recipe& recipe) {
  const std::optional<WatchdogSettings> settings = parse_watchdog(recipe.watchdog);
  if (!settings) return std::nullopt;
  return WatchdogSettings{.seconds = settings->seconds > 0 ? settings->seconds : kPatientSeconds};
}

Checkup examine(const RunConfig& config, const Task& task, const DoctorSettings& settings) {
  Vigil vigil(config.recipe, settings);
  return examine_watched(config, task, settings, vigil);
}

Checkup examine(const Assignments& options, const DoctorSettings& settings) {
  RunConfig config = make_config(options);
  checks_named(settings.only);  // refuses an unknown one before data are read
  Vigil vigil(config.recipe, settings);
  std::unique_ptr<Task> task;
  try {
    task = make_task_watched(&config, options, vigil);
  } catch (const InvalidArgument& error) {
    const Finding finding = {
        kData, Grade::kFail, error.what(),
        "Mend or fetch the files, or name others with --data; the other checks need them."};
    if (settings.found) settings.found(finding);
    return {{finding}};
  }
  set_threads(config.recipe);
  return examine_watched(config, *task, settings, vigil);
}

}  // namespace linescan
