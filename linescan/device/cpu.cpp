#include "linescan/device/cpu.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace linescan {
namespace {

// The text behind `key` and its separator in a file of "key: value" or "key=value" lines.
std::string find_value(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t begin = line.find_first_not_of(" \t:=\"", key.size());
    const std::size_t end = line.find_last_not_of("\" ");
    if (begin != std::string::npos && end >= begin) return line.substr(begin, end - begin + 1);
  }
  return "";
}

// The number that starts the value, in kibibytes; 0 if there is none.
int64_t find_kibibytes(const char* path, const std::string& key) {
  const std::string value = find_value(path, key);
  int64_t number = 0;
  for (char digit : value) {
    if (digit < '0' || digit > '9') break;
    number = number * 10 + (digit - '0');
  }
  return number * 1024;
}

int64_t system_value(int name) { return std::max<int64_t>(0, sysconf(name)); }

Cpu read_cpu() {
  Cpu cpu;
  if (const std::string model = find_value("/proc/cpuinfo", "model name"); !model.empty())
    cpu.model = model;
  if (const std::string system = find_value("/etc/os-release", "PRETTY_NAME"); !system.empty())
    cpu.system = system;
  cpu_set_t allowed;
  cpu.cores = sched_getaffinity(0, sizeof(allowed), &allowed) == 0
                  ? CPU_COUNT(&allowed)
                  : system_value(_SC_NPROCESSORS_ONLN);
  cpu.memory_bytes = find_kibibytes("/proc/meminfo", "MemTotal");
  cpu.l1_bytes = system_value(_SC_LEVEL1_DCACHE_SIZE);
  cpu.l2_bytes = system_value(_SC_LEVEL2_CACHE_SIZE);
  cpu.l3_bytes = system_value(_SC_LEVEL3_CACHE_SIZE);
  return cpu;
}

}  // namespace

const Cpu& cpu() {
  static const Cpu cached = read_cpu();
  return cached;
}

int64_t peak_memory() { return find_kibibytes("/proc/self/status", "VmHWM"); }

void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace linescan
