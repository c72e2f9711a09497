#include "linescan/train/watchdog.h"

#include <fmt/core.h>
#include <pthread.h>

#include <algorithm>
#include <charconv>

#include "linescan/base/error.h"

namespace linescan {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::size_t kRemembered = 64;
constexpr double kLongestNap = 1;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::optional<WatchdogSettings> parse_watchdog(std::string_view text) {
  if (text == "off") return std::nullopt;
  const bool medians = text.ends_with('x');
  const char* end = text.data() + text.size() - medians;
  double number = 0;
  const auto [last, error] = std::from_chars(text.data(), end, number);
  // Shorter than the naps of the thread there is nothing to notice; less than a step always hangs.
  if (error != std::errc() || last != end || !(number >= (medians ? 2 : 0.01)) || number > 1e6)
    throw_error<InvalidArgument>(
        "recipe: watchdog is '{}', expected off, medians of a step (2x or more) or seconds (0.01 "
        "or more)",
        text);
  return medians ? WatchdogSettings{.medians = number} : WatchdogSettings{.seconds = number};
}

Watchdog::Watchdog(const WatchdogSettings& settings, std::function<void(const Hang&)> on_hang)
    : settings_(settings), on_hang_(std::move(on_hang)), thread_([this] { watch(); }) {
  pthread_setname_np(thread_.native_handle(), "watchdog");
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Watchdog::begin(const char* what, int64_t number, Work work) {
  const std::lock_guard lock(mutex_);
  what_ = what;
  number_ = number;
  work_ = work;
  reported_ = false;
  begun_ = Clock::now();
}

std::optional<Watchdog::LateWork> Watchdog::end() {
  const std::lock_guard lock(mutex_);
  if (what_ == nullptr) return std::nullopt;
  const std::string name = reported_ ? name_locked() : std::string();
  what_ = nullptr;
  const double seconds = Seconds(Clock::now() - begun_).count();
  if (work_ == Work::kStep) {
    if (seconds_.size() < kRemembered) seconds_.resize(seconds_.size() + 1);
    seconds_[next_++ % kRemembered] = seconds;
    if (seconds_.size() >= kFewestSteps) median_ = median_of(seconds_);
  }
  return reported_ ? std::optional(LateWork{name, seconds}) : std::nullopt;
}

void Watchdog::remember(const StepStatistics& statistics) {
  const std::lock_guard lock(mutex_);
  last_step_ = statistics;
}

std::string Watchdog::name_locked() const { return fmt::format("{} {}", what_, number_); }

double Watchdog::limit() {
  const std::lock_guard lock(mutex_);
  return limit_locked();
}

double Watchdog::limit_locked() const {
  if (settings_.seconds > 0) return settings_.seconds;
  return median_ > 0 ? std::max(kLeastSeconds, settings_.medians * median_) : kFirstSeconds;
}

double Watchdog::limit_of(Work work) const {
  return work == Work::kSlow ? std::max(limit_locked(), kFirstSeconds) : limit_locked();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  Clock::time_point looked = Clock::now();
  while (!ending_) {
    const double nap = std::clamp(limit_locked() / 20, 1e-3, kLongestNap);
    wake_.wait_for(lock, Seconds(nap), [this] { return ending_; });
    // A process that was stopped for an hour has not been at work for an hour; what it has begun since
    // has begun now.
    const Clock::time_point now = Clock::now();
    if (const double away = Seconds(now - looked).count(); away > nap + kLongestNap)
      begun_ = std::min(begun_ + std::chrono::duration_cast<Clock::duration>(Seconds(away)), now);
    looked = now;
    if (ending_ || what_ == nullptr || reported_) continue;
    const double seconds = Seconds(now - begun_).count(), limit = limit_of(work_);
    if (seconds <= limit) continue;
    reported_ = true;
    const Hang hang{.what = name_locked(),
                    .seconds = seconds,
                    .limit = limit,
                    .median = median_,
                    .last_step = last_step_};
    lock.unlock();  // the work may go on meanwhile
    on_hang_(hang);
    lock.lock();
    looked = Clock::now();
  }
}

}  // namespace linescan
