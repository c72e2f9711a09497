#include "linescan/train/watchdog.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>

namespace linescan {
namespace {

using namespace std::chrono_literals;

// A watchdog that writes down what it reports.
struct Kennel {
  std::mutex mutex;
  std::vector<Hang> hangs;
  Watchdog dog;

  explicit Kennel(const WatchdogSettings& settings)
      : dog(settings, [this](const Hang& hang) {
          const std::lock_guard lock(mutex);
          hangs.push_back(hang);
        }) {}

  std::size_t count() {
    const std::lock_guard lock(mutex);
    return hangs.size();
  }
  // Waits until so many hangs were reported, a few seconds at most.
  bool reported(std::size_t wanted) {
    for (int i = 0; i < 500 && count() < wanted; ++i) std::this_thread::sleep_for(10ms);
    return count() >= wanted;
  }
};

TEST(Watchdog, ReportsAStepThatStandsStillOnceAndSaysWhatCameBefore) {
  Kennel kennel({.seconds = 0.05});
  kennel.dog.begin("step", 1);
  EXPECT_FALSE(kennel.dog.end());
  kennel.dog.remember({.step = 1, .loss = 2.5, .norm = 0.5, .lr = 1e-3});
  kennel.dog.begin("step", 2);
  ASSERT_TRUE(kennel.reported(1));
  std::this_thread::sleep_for(150ms);
  EXPECT_EQ(kennel.count(), 1u);
  const std::optional<Watchdog::LateWork> late = kennel.dog.end();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->what, "step 2");
  EXPECT_GT(late->seconds, 0.15);
  const Hang hang = kennel.hangs[0];
  EXPECT_EQ(hang.what, "step 2");
  EXPECT_EQ(hang.limit, 0.05);
  EXPECT_GT(hang.seconds, 0.05);
  EXPECT_EQ(hang.last_step->loss, 2.5);
  kennel.dog.begin("step", 3);  // watched like any other
  EXPECT_TRUE(kennel.reported(2));
}

TEST(Watchdog, LeavesQuickStepsAndPausesAlone) {
  Kennel kennel({.seconds = 0.3});
  for (int i = 0; i < 40; ++i) {
    kennel.dog.begin("step", i);
    std::this_thread::sleep_for(10ms);
    kennel.dog.end();
  }
  std::this_thread::sleep_for(400ms);  // nothing has begun
  EXPECT_EQ(kennel.count(), 0u);
}

TEST(Watchdog, WritingFilesMayTakeLonger) {
  Kennel kennel({.seconds = 0.02});
  kennel.dog.begin("checkpoint of step", 7, Watchdog::Work::kSlow);
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(kennel.count(), 0u);
  kennel.dog.begin("evaluation after step", 7, Watchdog::Work::kOther);
  ASSERT_TRUE(kennel.reported(1));
  EXPECT_EQ(kennel.hangs[0].what, "evaluation after step 7");
}

TEST(Watchdog, AProcessThatWasStoppedDoesNotHang) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Kennel kennel({.seconds = 0.6});
    kennel.dog.begin("step", 1);
    std::this_thread::sleep_for(100ms);
    ::raise(SIGSTOP);  // until the parent lets it go on
    std::this_thread::sleep_for(200ms);
    ::_exit(static_cast<int>(kennel.count()));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(1500ms);
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

std::atomic<bool> let_go{false};

void hold(int) {
  for (int i = 0; i < 5000 && !let_go; ++i) ::usleep(1000);
}

// The thread called "watchdog".
pid_t thread_of_the_watchdog() {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    if (name == "watchdog") return std::stoi(thread.path().filename().string());
  }
  return 0;
}

TEST(Watchdog, WorkThatBeginsBeforeTheWatchdogLooksAgainIsWatchedFromNowOn) {
  Kennel kennel({.seconds = 0.2});
  std::this_thread::sleep_for(50ms);  // it naps
  const pid_t thread = thread_of_the_watchdog();
  ASSERT_NE(thread, 0);
  struct sigaction holding = {}, before = {};
  holding.sa_handler = hold;
  ASSERT_EQ(::sigaction(SIGUSR1, &holding, &before), 0);
  ASSERT_EQ(::syscall(SYS_tgkill, ::getpid(), thread, SIGUSR1), 0);
  std::this_thread::sleep_for(3s);  // which it takes for a pause of the process
  kennel.dog.begin("step", 1);
  const auto begun = std::chrono::steady_clock::now();
  let_go = true;
  EXPECT_TRUE(kennel.reported(1));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 2s);  // not in three seconds and a bit
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST(Watchdog, MediansDecideOnceThereAreEnoughSteps) {
  Kennel kennel({.medians = 400});
  EXPECT_EQ(kennel.dog.limit(), Watchdog::kFirstSeconds);
  for (int i = 0; i < 5; ++i) {
    kennel.dog.begin("step", i);
    std::this_thread::sleep_for(100ms);
    kennel.dog.end();
  }
  const double limit = kennel.dog.limit();  // of 0.1 s and what sleeping takes longer
  EXPECT_GE(limit, 40);
  EXPECT_LT(limit, 120);
  for (int i = 0; i < 6; ++i) {  // other work and quick steps
    kennel.dog.begin("evaluation after step", i, Watchdog::Work::kOther);
    kennel.dog.end();
  }
  EXPECT_EQ(kennel.dog.limit(), limit);
  for (int i = 0; i < 6; ++i) {
    kennel.dog.begin("step", i);
    kennel.dog.end();
  }
  EXPECT_EQ(kennel.dog.limit(), Watchdog::kLeastSeconds);
}

}  // namespace
}  // namespace linescan
