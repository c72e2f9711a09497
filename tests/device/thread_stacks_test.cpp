#include "linescan/device/thread_stacks.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace linescan {
namespace {

// A thread that waits for good, until it is released.
class Sleeper {
 public:
  explicit Sleeper(bool deaf = false)
      : thread_([this, deaf] {
          pthread_setname_np(pthread_self(), "sleeper");
          if (deaf) {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, nullptr);
          }
          std::unique_lock lock(mutex_);
          asleep_ = true;
          wake_.wait(lock, [this] { return released_; });
        }) {
    while (!asleep_) std::this_thread::yield();
  }
  ~Sleeper() {
    {
      const std::lock_guard lock(mutex_);
      released_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> asleep_{false};
  bool released_ = false;
  std::thread thread_;
};

const ThreadStack& named(const std::vector<ThreadStack>& threads, const std::string& name) {
  return *std::find_if(threads.begin(), threads.end(),
                       [&](const ThreadStack& thread) { return thread.name == name; });
}

TEST(ThreadStacks, NamesWhereEveryThreadIs) {
  const Sleeper sleeper;
  const std::vector<ThreadStack> threads = thread_stacks();
  ASSERT_EQ(threads.size(), 2u);
  EXPECT_EQ(threads[0].id, ::getpid());
  EXPECT_TRUE(threads[0].asks);
  EXPECT_FALSE(threads[0].frames.empty());
  const ThreadStack& other = named(threads, "sleeper");
  EXPECT_FALSE(other.asks);
  EXPECT_TRUE(std::any_of(other.frames.begin(), other.frames.end(), [](const std::string& frame) {
    return frame.find("pthread_cond") != std::string::npos;
  })) << to_string(threads);
  // The innermost frame is the thread's own, not that of the signal's handler.
  EXPECT_EQ(other.frames[0].find("linescan::"), std::string::npos) << other.frames[0];
  EXPECT_NE(to_string(threads).find("(sleeper), "), std::string::npos);
}

TEST(ThreadStacks, AThreadThatDoesNotAnswerIsLeftOut) {
  const Sleeper deaf(/*deaf=*/true), other;
  for (int round = 0; round < 2; ++round) {
    const std::vector<ThreadStack> threads = thread_stacks();
    ASSERT_EQ(threads.size(), 3u);
    EXPECT_EQ(std::count_if(threads.begin(), threads.end(),
                            [](const ThreadStack& thread) { return thread.frames.empty(); }),
              1);
    EXPECT_NE(to_string(threads).find("did not answer"), std::string::npos);
  }
}

TEST(ThreadStacks, AnswersMayBeAskedForAgainAndAgain) {
  const Sleeper a, b;
  for (int i = 0; i < 200; ++i)
    for (const ThreadStack& thread : thread_stacks()) EXPECT_FALSE(thread.frames.empty());
}

}  // namespace
}  // namespace linescan
