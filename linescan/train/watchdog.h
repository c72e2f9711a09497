// Notices when a piece of work takes far longer than it should: a thread that looks at the clock.
//
//   Watchdog dog(settings, [](const Hang& hang) { ... });   // called on the watchdog's thread
//   dog.begin("step", 12); ...; dog.end();
//
// begin() and end() take a lock that is free and read the clock; the thread wakes up once a second.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace linescan {

// How the last step went, for the report on the next one.
struct StepStatistics {
  int64_t step = 0;
  double loss = 0, norm = 0, lr = 0;
};

struct Hang {
  std::string what;  // "step 12"
  double seconds = 0, limit = 0;
  double median = 0;  // seconds of the steps before; 0: too few
  std::optional<StepStatistics> last_step;
};

struct WatchdogSettings {
  double medians = 10;  // a step may take so many medians of the steps before it, and kLeastSeconds
  double seconds = 0;   // or so long and no longer, if above 0
};

// "12x": medians, "90": seconds, "off": nothing. Throws InvalidArgument for other texts.
std::optional<WatchdogSettings> parse_watchdog(std::string_view text);

class Watchdog {
 public:
  static constexpr double kLeastSeconds = 30;     // where medians decide: pauses of a busy machine
  static constexpr double kFirstSeconds = 600;    // before there is a median; and of slow work
  static constexpr std::size_t kFewestSteps = 5;  // that make a median

  enum class Work {
    kStep,   // its time counts for the median
    kOther,  // as long as a step may take
    kSlow,   // kFirstSeconds at least: writing files
  };

  // `on_hang` is called once for a piece of work; what it throws ends the process.
  Watchdog(const WatchdogSettings& settings, std::function<void(const Hang&)> on_hang);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // `what` must live as long as the process. Ends what has begun before, without counting it.
  void begin(const char* what, int64_t number, Work work = Work::kStep);
  struct LateWork {
    std::string what;  // "step 12"
    double seconds = 0;
  };
  // The work, if it was reported as a hang and has gone on after all; else nothing.
  std::optional<LateWork> end();
  void remember(const StepStatistics& statistics);

  // What a step may take at present, in seconds.
  double limit();

 private:
  using Clock = std::chrono::steady_clock;

  std::string name_locked() const;
  double limit_locked() const;
  double limit_of(Work work) const;
  void watch();

  WatchdogSettings settings_;
  std::function<void(const Hang&)> on_hang_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  const char* what_ = nullptr;  // null: nothing to watch
  int64_t number_ = 0;
  Work work_ = Work::kStep;
  Clock::time_point begun_;
  bool reported_ = false;
  std::vector<double> seconds_;  // of the latest steps, a ring
  std::size_t next_ = 0;
  double median_ = 0;
  std::optional<StepStatistics> last_step_;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace linescan
