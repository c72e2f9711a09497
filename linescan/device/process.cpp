#include "linescan/device/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

namespace linescan {
namespace {

// The number at the start of a file, or -1: absent, or "max".
int64_t number_in(const char* path) {
  int64_t number = -1;
  return std::ifstream(path) >> number ? number : -1;
}

int64_t meminfo_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("MemAvailable:")) return std::stoll(line.substr(13)) * 1024;
  return 0;
}

}  // namespace

int64_t resident_memory() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t available_memory() {
  const int64_t machine = meminfo_available();
  for (const auto& [limit_file, use_file] :
       {std::pair("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        std::pair("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                  "/sys/fs/cgroup/memory/memory.usage_in_bytes")}) {
    const int64_t limit = number_in(limit_file), used = number_in(use_file);
    if (limit > 0 && used >= 0) return std::min(machine, std::max<int64_t>(0, limit - used));
  }
  return machine;
}

int64_t open_files() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  // One of them is the listing itself.
  return error ? 0 : std::distance(begin(files), end(files)) - 1;
}

int64_t open_file_limit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
  return static_cast<int64_t>(
      std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()));
}

}  // namespace linescan
