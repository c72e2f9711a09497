#include "linescan/train/checkpoint_folder.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "linescan/base/error.h"
#include "linescan/files/atomic_write.h"
#include "linescan/files/read_file.h"
#include "linescan/files/sha256.h"

namespace linescan {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kState = "state.json";
constexpr std::string_view kPrefix = "step-";

// The step of a folder called step-N, or -1.
int64_t step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix) || name.size() == kPrefix.size() || name.size() > 20) return -1;
  const std::string digits = name.substr(kPrefix.size());
  if (digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::stoll(digits);
}

[[noreturn]] void fail(const char* what, const fs::path& path, const std::error_code& error) {
  throw_error<IoError>("checkpoint: cannot {} {}: {}", what, path.string(), error.message());
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail("rename", from, error);
}

void remove_or_fail(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail("remove", path, error);
}

// A checkpoint must not vanish file by file: a kill in the middle would leave a broken step-N.
void remove_checkpoint(const fs::path& checkpoint) {
  const fs::path doomed = checkpoint.string() + ".tmp";
  rename_or_fail(checkpoint, doomed);
  remove_or_fail(doomed);
}

std::vector<fs::path> list(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    entries.push_back(entry->path());
  if (error) fail("list", folder, error);
  return entries;
}

// The hash that state.json holds of itself: of its text without that entry.
std::string own_hash(json state) {
  state.erase("state_sha256");
  return sha256_hex(as_byte_span(state.dump()));
}

void verify_file(const fs::path& path, const json& entry) {
  const Bytes bytes = read_file(path, "checkpoint");
  const auto expected = entry.at("bytes").get<uint64_t>();
  if (bytes.size() != expected)
    throw_error<InvalidArgument>("checkpoint: {} has {} bytes, expected {}", path.string(),
                                 bytes.size(), expected);
  const std::string hash = sha256_hex(bytes), wanted = entry.at("sha256").get<std::string>();
  if (hash != wanted)
    throw_error<InvalidArgument>("checkpoint: {} has SHA-256 {}, expected {}", path.string(), hash,
                                 wanted);
}

}  // namespace

fs::path checkpoint_path(const fs::path& checkpoints, int64_t step) {
  return checkpoints / fmt::format("{}{}", kPrefix, step);
}

CheckpointWriter::CheckpointWriter(const fs::path& checkpoints, int64_t step)
    : temporary_(checkpoint_path(checkpoints, step).string() + ".tmp"),
      final_(checkpoint_path(checkpoints, step)) {
  remove_or_fail(temporary_);
  std::error_code error;
  fs::create_directories(temporary_, error);
  if (error) fail("create", temporary_, error);
}

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;  // a leftover *.tmp is cleaned at the next start
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

fs::path CheckpointWriter::commit(json state) {
  json& files = state["files"] = json::object();
  for (const fs::path& path : list(temporary_)) {
    const Bytes bytes = read_file(path, "checkpoint");
    files[path.filename().string()] = {{"bytes", bytes.size()}, {"sha256", sha256_hex(bytes)}};
  }
  state["state_sha256"] = own_hash(state);
  write_file_atomically(temporary_ / kState, state.dump(1) + "\n");
  fsync_directory(temporary_);
  rename_or_fail(temporary_, final_);
  temporary_.clear();
  fsync_directory(final_.parent_path());
  return final_;
}

void link_checkpoint(const fs::path& checkpoints, const std::string& name, int64_t step) {
  replace_symlink(checkpoint_path(checkpoints, step).filename(), checkpoints / name);
}

void prune_checkpoints(const fs::path& checkpoints, int64_t keep) {
  std::vector<int64_t> steps, linked;
  for (const fs::path& path : list(checkpoints)) {
    if (fs::is_symlink(path))
      linked.push_back(step_of(fs::read_symlink(path)));
    else if (const int64_t step = step_of(path); step >= 0)
      steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  for (std::size_t i = keep; i < steps.size(); ++i)
    if (std::find(linked.begin(), linked.end(), steps[i]) == linked.end())
      remove_checkpoint(checkpoint_path(checkpoints, steps[i]));
}

void clean_checkpoints(const fs::path& checkpoints, int64_t last_step) {
  for (const fs::path& path : list(checkpoints)) {
    if (path.filename().string().find(".tmp") != std::string::npos)
      remove_or_fail(path);
    else if (step_of(path) > last_step)
      remove_checkpoint(path);
  }
}

fs::path find_checkpoint(const fs::path& path, const std::string& name) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    throw_error<InvalidArgument>("checkpoint: {} is not a folder, expected a run or a checkpoint",
                                 path.string());
  if (fs::exists(path / kState, error)) return path;
  for (const std::string& link : {name, std::string("last")}) {
    const fs::path target = fs::canonical(path / "checkpoints" / link, error);
    if (!error) return target;
  }
  throw_error<InvalidArgument>("checkpoint: {} has neither {} nor checkpoints/{}", path.string(),
                               kState, name);
}

json read_checkpoint_state(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kState;
  const Bytes bytes = read_file(path, "checkpoint");
  const json state = json::parse(as_text(bytes), nullptr, /*allow_exceptions=*/false);
  if (!state.is_object() || !state.contains("state_sha256") || !state.contains("files"))
    throw_error<InvalidArgument>("checkpoint: {} is not the state of a checkpoint", path.string());
  if (const std::string hash = own_hash(state); state["state_sha256"] != hash)
    throw_error<InvalidArgument>("checkpoint: {} has SHA-256 {}, expected {}", path.string(), hash,
                                 state["state_sha256"].dump());
  for (const auto& [name, entry] : state["files"].items()) verify_file(checkpoint / name, entry);
  return state;
}

}  // namespace linescan
