#include "linescan/device/thread_stacks.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/core.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>

namespace linescan {
namespace {

namespace fs = std::filesystem;

constexpr int kMostFrames = 64;
constexpr int kHandlerFrames = 2;  // the handler, and the system's way back from it
constexpr int64_t kPatienceNs = 200'000'000;

pid_t this_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

// What the handler, which may not allocate or lock, shares with the thread that asks.
struct Question {
  std::atomic<pid_t> asked{0};  // 0: nobody, an answer that comes now is too late
  std::array<void*, kMostFrames> addresses;
  int count = 0;
  sem_t answered;
};
Question question;

void answer(int) {
  const int error = errno;
  pid_t me = this_thread();
  if (question.asked.compare_exchange_strong(me, 0)) {
    question.count = ::backtrace(question.addresses.data(), kMostFrames);
    ::sem_post(&question.answered);
  }
  errno = error;
}

// SIGRTMIN is a function call: glibc keeps the first ones for itself.
int signal_number() { return SIGRTMIN + 3; }

void install() {
  ::sem_init(&question.answered, 0, 0);
  ::backtrace(question.addresses.data(), 1);  // loads the unwinder, which allocates
  struct sigaction action = {};
  action.sa_handler = answer;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal_number(), &action, nullptr);
}

bool wait_for_answer() {
  timespec until;
  ::clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += kPatienceNs;
  until.tv_sec += until.tv_nsec / 1'000'000'000;
  until.tv_nsec %= 1'000'000'000;
  int result = 0;
  while ((result = ::sem_timedwait(&question.answered, &until)) != 0 && errno == EINTR) {
  }
  return result == 0;
}

std::string demangled(const char* name) {
  constexpr std::size_t kMostLetters = 120;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  std::string text = status == 0 ? readable.get() : name;
  if (text.size() > kMostLetters) text = text.substr(0, kMostLetters) + "...";
  return text;
}

std::string describe(void* address) {
  Dl_info info = {};
  // A return address is behind its call, which may be the last instruction of a function.
  const char* at = static_cast<const char*>(address) - 1;
  if (::dladdr(at, &info) == 0) return fmt::format("{}", address);
  const std::string file = fs::path(info.dli_fname).filename().string();
  if (info.dli_sname == nullptr)
    return fmt::format("{:#x} in {}", at - static_cast<const char*>(info.dli_fbase), file);
  return fmt::format("{} + {:#x} in {}", demangled(info.dli_sname),
                     at - static_cast<const char*>(info.dli_saddr), file);
}

std::string first_line(const fs::path& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

// The letter behind the name in brackets, which may contain brackets itself.
char state_letter(const std::string& stat) {
  const std::size_t bracket = stat.rfind(')');
  return bracket != std::string::npos && bracket + 2 < stat.size() ? stat[bracket + 2] : '?';
}

std::vector<std::string> frames_of(int count, int skip) {
  std::vector<std::string> frames;
  for (int i = skip; i < count; ++i) frames.push_back(describe(question.addresses[i]));
  return frames;
}

ThreadStack look_at(pid_t thread, const fs::path& folder) {
  ThreadStack stack;
  stack.id = thread;
  stack.name = first_line(folder / "comm");
  stack.state = thread_state_in_words(state_letter(first_line(folder / "stat")));
  if (thread == this_thread()) {
    stack.asks = true;
    stack.frames = frames_of(::backtrace(question.addresses.data(), kMostFrames), 1);
    return stack;
  }
  question.asked = thread;
  if (::syscall(SYS_tgkill, ::getpid(), thread, signal_number()) != 0) {
    question.asked = 0;
    return stack;
  }
  // Whoever sets `asked` to 0 first decides: an answer that has begun is waited for.
  pid_t expected = thread;
  if (wait_for_answer() ||
      (!question.asked.compare_exchange_strong(expected, 0) && wait_for_answer()))
    stack.frames = frames_of(question.count, kHandlerFrames);
  return stack;
}

}  // namespace

std::string thread_state_in_words(char letter) {
  switch (letter) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "waiting for a device";
    case 'T':
    case 't':
      return "stopped";
    case 'Z':
    case 'X':
      return "dead";
    default:
      return "unknown";
  }
}

std::vector<ThreadStack> thread_stacks() {
  static std::mutex mutex;
  static std::once_flag once;
  const std::lock_guard lock(mutex);
  std::call_once(once, install);
  std::vector<std::pair<pid_t, fs::path>> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/self/task", error))
    all.emplace_back(std::atoi(entry.path().filename().c_str()), entry.path());
  std::sort(all.begin(), all.end());
  std::vector<ThreadStack> stacks;
  for (const auto& [thread, folder] : all) stacks.push_back(look_at(thread, folder));
  return stacks;
}

std::string to_string(const std::vector<ThreadStack>& threads) {
  std::string text;
  for (const ThreadStack& thread : threads) {
    text += fmt::format("thread {} ({}), {}{}\n", thread.id, thread.name, thread.state,
                        thread.asks ? ", wrote this report" : "");
    for (const std::string& frame : thread.frames) text += "    " + frame + '\n';
    if (thread.frames.empty()) text += "    did not answer\n";
  }
  return text;
}

}  // namespace linescan
