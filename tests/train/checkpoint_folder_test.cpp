#include "linescan/train/checkpoint_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "linescan/base/error.h"
#include "linescan/files/atomic_write.h"
#include "tests/support/messages.h"
#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::contains;
using testing::TemporaryFolder;
using testing::write_text;

std::string checkpoint_refusal(const fs::path& checkpoint) {
  return testing::refusal_of([&] { read_checkpoint_state(checkpoint); });
}

constexpr std::size_t kFileBytes = 300000;

// Writes step-N with one large file and lets `last` point to it, as a run does.
void save(const fs::path& checkpoints, int64_t step) {
  CheckpointWriter writer(checkpoints, step);
  write_file_atomically(writer.folder() / "model.safetensors",
                        std::string(kFileBytes, static_cast<char>('a' + step % 26)));
  writer.commit({{"step", step}});
  link_checkpoint(checkpoints, "last", step);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

// What a newcomer to the folder finds: the state of the last checkpoint, all of it verified.
int64_t last_good_step(const fs::path& run) {
  return read_checkpoint_state(find_checkpoint(run, "last")).at("step");
}

TEST(CheckpointFolder, WritesReadsAndLinks) {
  const TemporaryFolder run;
  const fs::path checkpoints = run.path() / "checkpoints";
  save(checkpoints, 3);
  EXPECT_EQ(last_good_step(run.path()), 3);
  EXPECT_EQ(fs::read_symlink(checkpoints / "last"), "step-3");
  EXPECT_EQ(names_in(checkpoints), (std::set<std::string>{"last", "step-3"}));
  EXPECT_EQ(find_checkpoint(run.path(), "best"), fs::canonical(checkpoints / "step-3"));
  link_checkpoint(checkpoints, "best", 3);
  save(checkpoints, 5);
  EXPECT_EQ(find_checkpoint(run.path(), "best").filename(), "step-3");
  EXPECT_EQ(find_checkpoint(run.path(), "last").filename(), "step-5");
  EXPECT_EQ(find_checkpoint(checkpoints / "step-3", "last"), checkpoints / "step-3");
}

TEST(CheckpointFolder, KeepsTheNewestAndWhatLinksPointTo) {
  const TemporaryFolder run;
  const fs::path checkpoints = run.path() / "checkpoints";
  for (int64_t step : {2, 4, 10, 20, 100}) save(checkpoints, step);
  link_checkpoint(checkpoints, "best", 4);
  prune_checkpoints(checkpoints, 2);
  EXPECT_EQ(names_in(checkpoints),
            (std::set<std::string>{"best", "last", "step-4", "step-20", "step-100"}));
  link_checkpoint(checkpoints, "last", 20);
  prune_checkpoints(checkpoints, 1);
  EXPECT_EQ(names_in(checkpoints),
            (std::set<std::string>{"best", "last", "step-4", "step-20", "step-100"}));
}

TEST(CheckpointFolder, CleansLeftoversAndLaterSteps) {
  const TemporaryFolder run;
  const fs::path checkpoints = run.path() / "checkpoints";
  for (int64_t step : {10, 30}) save(checkpoints, step);
  fs::create_directories(checkpoints / "step-40.tmp" / "deeper");
  write_text(checkpoints / "last.tmp-12-0", "x");
  clean_checkpoints(checkpoints, 10);
  EXPECT_EQ(names_in(checkpoints), (std::set<std::string>{"last", "step-10"}));
}

TEST(CheckpointFolder, AnUncommittedWriterLeavesNothing) {
  const TemporaryFolder run;
  { CheckpointWriter writer(run.path(), 1); }
  EXPECT_TRUE(names_in(run.path()).empty());
}

TEST(CheckpointFolder, NamesTheDamagedFile) {
  const TemporaryFolder run;
  const fs::path checkpoints = run.path() / "checkpoints", step = checkpoints / "step-1";
  const fs::path model = step / "model.safetensors", state = step / "state.json";
  save(checkpoints, 1);
  const std::string good = testing::read_text(model), good_state = testing::read_text(state);

  write_text(model, good.substr(0, 1000));
  EXPECT_TRUE(
      contains(checkpoint_refusal(step), "model.safetensors has 1000 bytes, expected 300000"));
  std::string flipped = good;
  flipped[4711] ^= 1;
  write_text(model, flipped);
  EXPECT_TRUE(contains(checkpoint_refusal(step), "model.safetensors has SHA-256"));
  fs::remove(model);
  EXPECT_TRUE(contains(checkpoint_refusal(step), "model.safetensors"));
  write_text(model, good);
  EXPECT_EQ(checkpoint_refusal(step), "accepted");

  std::string other_step = good_state;
  other_step.replace(other_step.find("\"step\": 1"), 9, "\"step\": 2");
  for (const std::string& text :
       {other_step, good_state.substr(0, 40), std::string("[]"), std::string()}) {
    write_text(state, text);
    EXPECT_TRUE(contains(checkpoint_refusal(step), "state.json")) << text;
  }
  fs::remove(state);
  EXPECT_THROW(find_checkpoint(step, "last"), InvalidArgument);
}

TEST(CheckpointFolder, RefusesFoldersWithoutCheckpoint) {
  const TemporaryFolder run;
  EXPECT_THROW(find_checkpoint(run.path(), "last"), InvalidArgument);
  EXPECT_THROW(find_checkpoint(run.path() / "missing", "last"), InvalidArgument);
}

// Runs `body` in a child that saves steps 2, 3, ... after the parent saved step 1, and returns how
// the child ended.
template <typename Body>
int in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(CheckpointFolder, AKillAtAnyMomentLeavesAGoodCheckpoint) {
  const TemporaryFolder run;
  const fs::path checkpoints = run.path() / "checkpoints";
  save(checkpoints, 1);
  int64_t reached = 1;
  int killed_inside = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int64_t step = reached + 1;; ++step) {
        save(checkpoints, step);
        prune_checkpoints(checkpoints, 2);
      }
    }
    usleep(500 + trial * 397 % 12000);  // from within the first save to some saves later
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    for (const std::string& name : names_in(checkpoints))
      killed_inside += name.find(".tmp") != std::string::npos;
    const int64_t step = last_good_step(run.path());
    EXPECT_GE(step, reached);
    reached = step;
    clean_checkpoints(checkpoints, step);
    EXPECT_EQ(last_good_step(run.path()), step);
  }
  EXPECT_GT(killed_inside, 5);  // otherwise the kills missed the interesting moments
}

TEST(CheckpointFolder, AWriteCutOffAtAnyByteLeavesTheOldCheckpoint) {
  // A limit on the size of files kills (SIGXFSZ) in the middle of a write, byte for byte.
  for (const rlim_t limit : {0ul, 1ul, 100ul, 4096ul, 65536ul, 299999ul}) {
    const TemporaryFolder run;
    const fs::path checkpoints = run.path() / "checkpoints";
    save(checkpoints, 1);
    const int status = in_child([&] {
      const struct rlimit bytes = {limit, limit}, core = {0, 0};
      setrlimit(RLIMIT_CORE, &core);
      setrlimit(RLIMIT_FSIZE, &bytes);
      save(checkpoints, 2);
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << limit;
    EXPECT_EQ(last_good_step(run.path()), 1) << limit;
  }
}

// Exit code 7: IoError naming a file of the new checkpoint; anything else is wrong.
int save_and_report(const fs::path& checkpoints) {
  try {
    save(checkpoints, 2);
  } catch (const IoError& error) {
    return contains(error.what(), "step-2.tmp") ? 7 : 8;
  } catch (...) {
    return 9;
  }
  return 0;
}

TEST(CheckpointFolder, ARefusedWriteIsAnIoErrorAndLeavesTheOldCheckpoint) {
  const TemporaryFolder run;
  const fs::path checkpoints = run.path() / "checkpoints";
  save(checkpoints, 1);
  const int status = in_child([&] {
    signal(SIGXFSZ, SIG_IGN);  // then the write itself fails, as on a full disk
    const struct rlimit bytes = {100000, 100000};
    setrlimit(RLIMIT_FSIZE, &bytes);
    _exit(save_and_report(checkpoints));
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(last_good_step(run.path()), 1);
  EXPECT_EQ(names_in(checkpoints), (std::set<std::string>{"last", "step-1"}));
}

TEST(CheckpointFolder, AFullDiskIsAnIoErrorAndLeavesTheOldCheckpoint) {
  const TemporaryFolder run;
  const fs::path checkpoints = run.path() / "checkpoints";
  fs::create_directories(checkpoints);
  // Room for one checkpoint of 300 kB and the pages around it, not for two.
  if (mount("tmpfs", checkpoints.c_str(), "tmpfs", 0, "size=450k") != 0)
    GTEST_SKIP() << "mounting a small file system needs root";
  save(checkpoints, 1);
  EXPECT_EQ(save_and_report(checkpoints), 7);
  EXPECT_EQ(last_good_step(run.path()), 1);
  EXPECT_EQ(names_in(checkpoints), (std::set<std::string>{"last", "step-1"}));
  EXPECT_EQ(umount(checkpoints.c_str()), 0);
}

}  // namespace
}  // namespace linescan
