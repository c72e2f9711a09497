// The folder of checkpoints of a run, and how a checkpoint gets into it whole or not at all.
//
//   checkpoints/step-400/   model.safetensors, optimizer.safetensors, ..., state.json
//   checkpoints/last        link to the newest; checkpoints/best: to the most accurate
//
// A checkpoint is written as step-N.tmp, its files and itself flushed to the disk, and renamed;
// links move after that. A process killed at any moment leaves the previous checkpoint in force and
// at most some *.tmp behind. A checkpoint is never changed: state.json lists size and SHA-256 of
// every file, and of itself, and reading verifies all of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace linescan {

// checkpoints/step-N
std::filesystem::path checkpoint_path(const std::filesystem::path& checkpoints, int64_t step);

class CheckpointWriter {
 public:
  // Makes the empty step-N.tmp. Throws IoError.
  CheckpointWriter(const std::filesystem::path& checkpoints, int64_t step);
  ~CheckpointWriter();  // removes what was not committed
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Where the files go, each already flushed to the disk by whoever writes it.
  const std::filesystem::path& folder() const { return temporary_; }

  // Adds state.json with `state` and the list of files, and renames. Returns checkpoints/step-N.
  // Throws IoError.
  std::filesystem::path commit(nlohmann::json state);

 private:
  std::filesystem::path temporary_, final_;
};

// Lets checkpoints/<name> point to the checkpoint of `step`.
void link_checkpoint(const std::filesystem::path& checkpoints, const std::string& name,
                     int64_t step);

// Removes all but the `keep` newest checkpoints and those that `last` and `best` point to.
void prune_checkpoints(const std::filesystem::path& checkpoints, int64_t keep);

// Removes what a killed process left behind (*.tmp*) and the checkpoints of steps after `last_step`,
// which a run that goes on from there will write anew.
void clean_checkpoints(const std::filesystem::path& checkpoints, int64_t last_step);

// The checkpoint meant by `path`: the folder itself if it has a state.json, else what
// path/checkpoints/<name> points to, with links resolved; for name "best" also `last` will do.
// Throws InvalidArgument if there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path, const std::string& name);

// state.json, after all files of the checkpoint have been compared with it. Throws InvalidArgument
// naming the file that is missing, truncated or changed.
nlohmann::json read_checkpoint_state(const std::filesystem::path& checkpoint);

}  // namespace linescan
