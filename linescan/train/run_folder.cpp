#include "linescan/train/run_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "linescan/base/error.h"
#include "linescan/files/atomic_write.h"

namespace linescan {

namespace fs = std::filesystem;

namespace {

// False if the name is taken already; decided by the system, so two runs cannot share a folder.
bool make_folder(const fs::path& folder) {
  std::error_code error;
  const bool made = fs::create_directory(folder, error);
  if (error && error != std::errc::file_exists)
    throw_error<IoError>("run: cannot create {}: {}", folder.string(), error.message());
  return made && !error;
}

void make_parents(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_error<IoError>("run: cannot create {}: {}", folder.string(), error.message());
}

}  // namespace

void create_run_folder(const fs::path& run) {
  // "runs/7/" has an empty last part; its parent would be the folder itself.
  const fs::path folder = fs::absolute(run.has_filename() ? run : run.parent_path());
  make_parents(folder.parent_path());
  if (!make_folder(folder))
    throw_error<InvalidArgument>("run: {} exists; --resume goes on with it, or name another folder",
                                 run.string());
}

fs::path create_numbered_run_folder(const fs::path& runs) {
  make_parents(runs);
  int64_t last = 0;
  for (const auto& entry : fs::directory_iterator(runs)) {
    const std::string name = entry.path().filename().string();
    if (name.size() <= 9 && name.find_first_not_of("0123456789") == std::string::npos)
      last = std::max<int64_t>(last, std::stoll(name));
  }
  for (;;)
    if (const fs::path run = runs / fmt::format("{:03}", ++last); make_folder(run)) return run;
}

void write_json_file(const fs::path& path, const nlohmann::json& document) {
  write_file_atomically(path, document.dump(1) + "\n");
}

}  // namespace linescan
