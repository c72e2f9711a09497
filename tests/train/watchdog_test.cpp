#include "linescan/train/watchdog.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

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
  const std::optional<double> seconds = kennel.dog.end();
  ASSERT_TRUE(seconds);
  EXPECT_GT(*seconds, 0.15);
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
