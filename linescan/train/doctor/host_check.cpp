// What is around the training: memory, open files, the disk for checkpoints, and whether steps wait for
// their data.

#include <fmt/format.h>
#include <torch/torch.h>

#include <chrono>
#include <filesystem>

#include "linescan/base/error.h"
#include "linescan/base/units.h"
#include "linescan/device/cpu.h"
#include "linescan/device/process.h"
#include "linescan/files/atomic_write.h"
#include "linescan/train/doctor/checks.h"

namespace linescan {
namespace {

namespace fs = std::filesystem;

constexpr double kMostWaiting = 0.2;    // share of a step that may go by without its data
constexpr double kMostFilesOpen = 0.8;  // of the limit
constexpr double kLittleMemory = 0.05;  // of the machine's

int64_t checkpoint_bytes(const torch::nn::Module& network, bool average) {
  int64_t bytes = 0;
  for (const at::Tensor& parameter : network.parameters())
    bytes += static_cast<int64_t>(parameter.nbytes());
  return bytes * (average ? 4 : 3);  // weights, two moments, their average
}

// Empty if a file of that size can be written there, else what the system says.
std::string try_to_write(const fs::path& folder, int64_t bytes) {
  const fs::path file = folder / ".linescan-doctor";
  try {
    write_file_atomically(file, std::string(static_cast<std::size_t>(bytes), '\0'));
    std::error_code ignored;
    fs::remove(file, ignored);
    return {};
  } catch (const IoError& error) {
    return error.what();
  }
}

// Seconds of the second of two steps: in the first, libraries set themselves up.
double seconds_a_step(const Patient& patient) {
  Trial trial(patient);
  trial.run(0);
  const auto start = std::chrono::steady_clock::now();
  trial.run(patient.batches().size() > 1 ? 1 : 0);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Finding check_host(const Patient& patient) {
  const Network network = patient.fresh_network();
  const int64_t bytes = checkpoint_bytes(*network.module, patient.recipe().ema > 0);
  if (const std::string refusal = try_to_write(patient.folder(), bytes); !refusal.empty())
    return {
        "host", Grade::kFail,
        fmt::format("a checkpoint of {:.1f} MB cannot be written: {}", megabytes(bytes), refusal),
        "Make room, name another folder with --folder (of 'linescan train': --run), or keep fewer "
        "checkpoints (--set keep=1)."};
  const double step = seconds_a_step(patient), batch = patient.seconds_a_batch();
  const double waiting = batch / (batch + step);
  const int64_t files = open_files(), most_files = open_file_limit();
  const int64_t available = available_memory();
  const int64_t threads = at::get_num_threads();
  const std::string measured = fmt::format(
      "{:.1f} GB of memory left; {} of {} files open; a checkpoint of {:.1f} MB can be written; a "
      "batch takes {:.3g} ms and its step {:.3g} ms, {:.1f} % waiting; threads: {}, cores: {}",
      gigabytes(available), files, most_files, megabytes(bytes), 1e3 * batch, 1e3 * step,
      100 * waiting, threads, cpu().cores);
  if (available > 0 &&
      static_cast<double>(available) < kLittleMemory * static_cast<double>(cpu().memory_bytes))
    return {"host", Grade::kWarn, measured,
            "Memory is nearly used up: look at what else runs here, or take a smaller --batch."};
  if (most_files > 0 &&
      static_cast<double>(files) > kMostFilesOpen * static_cast<double>(most_files))
    return {"host", Grade::kWarn, measured, "Few files may still be opened: raise 'ulimit -n'."};
  if (waiting > kMostWaiting)
    return {"host", Grade::kWarn, measured,
            "Steps wait for their data: fewer augmentations, or a larger network, or more cores."};
  if (threads > cpu().cores)
    return {"host", Grade::kWarn, measured,
            "More threads than cores take turns: leave --threads to its default."};
  return {"host", Grade::kPass, measured};
}

}  // namespace linescan
