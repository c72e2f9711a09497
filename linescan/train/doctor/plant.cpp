#include "linescan/train/doctor/plant.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <nlohmann/json.hpp>
#include <utility>

#include "linescan/base/error.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/doctor/checks.h"
#include "linescan/train/doctor/faults.h"
#include "linescan/train/doctor/plant_data.h"
#include "linescan/train/machine.h"
#include "linescan/train/run_folder.h"
#include "linescan/train/trainer.h"

namespace linescan {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGoodSteps = 4;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "linescan-plant-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw_error<IoError>("doctor: cannot create a folder in {}",
                           fs::temp_directory_path().string());
    path_ = name;
  }
  ~TemporaryFolder() {
    if (kept_) return;
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  fs::path path_;
  bool kept_ = false;
};

// As on a disk that is full but for `bytes`: no file of this process may grow beyond them.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);  // the write fails instead
    const rlimit small = {bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit old_ = {};
  void (*old_handler_)(int) = SIG_DFL;
};

// Trains for a few steps, as a signal would end it, so that there is a checkpoint to be kept.
void train_well(const RunConfig& config, const Task& task, const fs::path& run) {
  std::atomic<int> stop{0};
  TrainingHooks hooks;
  hooks.stop_signal = &stop;
  hooks.progress = [&](const ProgressFacts& facts) { stop = facts.step >= kGoodSteps ? 1 : 0; };
  Trainer trainer(config, task, hooks);
  create_run_folder(run);
  trainer.start(run);
  trainer.run();
}

Finding checkpoint_finding(const fs::path& run) {
  try {
    const fs::path last = find_checkpoint(run, "last");
    const auto state = read_checkpoint_state(last);
    return {"checkpoint", Grade::kPass,
            fmt::format("{} is intact, its {} files have their hashes; --resume goes on from it",
                        last.filename().string(), state["files"].size())};
  } catch (const Error& error) {
    return {"checkpoint", Grade::kFail, error.what(), "This should never happen: report it."};
  }
}

std::string with_code(int code) { return code > 0 ? fmt::format(" (exit code {})", code) : ""; }

// Goes on with the run under the fault.
class Planted {
 public:
  Planted(const PlantSettings& settings, TemporaryFolder& folder, const fs::path& run,
          Ground& ground)
      : settings_(settings), folder_(folder), run_(run), ground_(ground) {}

  // What training says.
  Finding train(const RunConfig& config, const Assignments& options, const Poison& poison) {
    std::string warning;
    TrainingHooks hooks;
    hooks.message = [&](const std::string& text) {
      if (text.starts_with("warning: ")) warning = text;
    };
    hooks.hang = [&](const HangNotice& notice) { hear_of_hang(notice, config); };
    try {
      RunConfig copy = config;
      const std::unique_ptr<Task> good = make_task(&copy, &options);
      const PlantedTask task(*good, poison);
      Trainer trainer(copy, task, hooks);
      trainer.resume(run_);
      trainer.run();
    } catch (const std::exception& error) {
      if (!hang_.measured.empty()) return hang_;
      return {"training", Grade::kFail,
              fmt::format("ends: {}{}", error.what(),
                          with_code(settings_.exit_code ? settings_.exit_code(error) : 0)),
              "This is what 'linescan train' says."};
    }
    if (!warning.empty())
      return {"training", Grade::kWarn, "goes on: " + warning,
              "This is what 'linescan train' says."};
    return {"training", Grade::kFail, "did not notice the fault", "Report it."};
  }

 private:
  void hear_of_hang(const HangNotice& notice, const RunConfig& config) {
    const bool reported = fs::exists(notice.report);
    if (reported) folder_.keep();  // the report is worth a look
    hang_ = {"training", Grade::kFail,
             fmt::format("stands still: {}; {}{}", notice.line,
                         reported ? "see " + notice.report.string() : "no report could be written",
                         with_code(settings_.hang_code)),
             "This is what 'linescan train' says before it stops."};
    // Sleepers can be woken; a kernel that loops ends with the process only.
    if (config.recipe.device != "cpu" && settings_.doctor.hang)
      settings_.doctor.hang({{hang_, checkpoint_finding(run_)}});
    ground_.bed.wake_all();
  }

  const PlantSettings& settings_;
  TemporaryFolder& folder_;
  fs::path run_;
  Ground& ground_;
  Finding hang_;
};

}  // namespace

Checkup run_plant(const std::string& fault, const PlantSettings& settings) {
  checks_named(settings.doctor.only);  // refuses an unknown one before anything is trained
  TemporaryFolder folder;
  const fs::path run = folder.path() / "run";
  const Assignments options = make_plant_data(folder.path());
  Ground ground;
  Planting planting;
  planting.config = make_config(options);
  const std::unique_ptr<Task> good = make_task(&planting.config, &options);
  plant_fault(fault, planting, ground);
  open_compute(planting.config.recipe.device);  // before LibTorch looks for GPUs by itself
  set_threads(planting.config.recipe);
  {
    RunConfig config = planting.config;
    config.recipe.lr = Recipe().lr;
    train_well(config, *good, run);
  }

  const ModuleWatch watch(planting.modules);  // the first: all others see what it has made
  Checkup checkup;
  const auto add = [&](const Finding& finding) {
    checkup.findings.push_back(finding);
    if (settings.doctor.found) settings.doctor.found(finding);
  };
  if (planting.cut_data)
    fs::resize_file(plant_images(folder.path()), fs::file_size(plant_images(folder.path())) - 1);
  {
    std::optional<FullDisk> disk;
    if (planting.full_disk) disk.emplace(2048);
    add(Planted(settings, folder, run, ground).train(planting.config, options, planting.poison));
  }
  add(checkpoint_finding(run));

  DoctorSettings doctor = settings.doctor;
  doctor.examination.folder = folder.path();
  doctor.hang = [&](const Checkup& so_far) {
    Checkup all = checkup;
    all.findings.insert(all.findings.end(), so_far.findings.begin(), so_far.findings.end());
    if (settings.doctor.hang) settings.doctor.hang(all);
    ground.bed.wake_all();
  };
  ground.bed.make();
  const Checkup found = [&] {
    std::optional<FullDisk> disk;
    if (planting.full_disk) disk.emplace(2048);
    if (planting.cut_data) return examine(options, doctor);
    return examine(planting.config, PlantedTask(*good, planting.poison), doctor);
  }();
  checkup.findings.insert(checkup.findings.end(), found.findings.begin(), found.findings.end());
  return checkup;
}

}  // namespace linescan
