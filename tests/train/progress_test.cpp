#include "linescan/train/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>
#include <string>

#include "tests/support/messages.h"

namespace linescan {
namespace {

using testing::times_in;

ProgressFacts halfway() {
  ProgressFacts facts;
  facts.fraction = 0.42;
  facts.seconds = 50;
  facts.step = 540;
  facts.epoch = 2;
  facts.images_per_s = 1234.4;
  facts.loss = 0.4119;
  facts.accuracy = 0.8512;
  facts.val_accuracy = 0.8721;
  return facts;
}

// Columns that the text takes: every byte that does not continue a UTF-8 character, escapes apart.
int columns_of(const std::string& text) {
  int columns = 0;
  bool escape = false;
  for (const unsigned char c : text) {
    if (c == 0x1b) escape = true;
    if (!escape && (c & 0xC0) != 0x80) ++columns;
    if (escape && std::isalpha(c)) escape = false;
  }
  return columns;
}

TEST(ProgressLine, At80ColumnsShowsEverything) {
  EXPECT_EQ(progress_line(halfway(), 80, false, false),
            " 42% ######---------  ETA 1:09  1234 images/s  loss 0.412  acc 85.1%  val 87.2%");
}

TEST(ProgressLine, At40ColumnsKeepsWhatMattersMost) {
  EXPECT_EQ(progress_line(halfway(), 40, false, false), " 42% #####-------  ETA 1:09  loss 0.412");
}

TEST(ProgressLine, At120ColumnsTheBarStopsGrowing) {
  const std::string line = progress_line(halfway(), 120, false, false);
  EXPECT_EQ(line.find(std::string(16, '#') + std::string(24, '-') + "  ETA"), 5u) << line;
  EXPECT_LT(line.size(), 120u);
}

TEST(ProgressLine, NeverWrapsAtAnyWidth) {
  for (int columns = 0; columns <= 130; ++columns)
    for (const bool color : {false, true})
      for (const bool unicode : {false, true}) {
        const std::string line = progress_line(halfway(), columns, color, unicode);
        EXPECT_LE(columns_of(line), std::max(columns - 1, 0)) << columns << ": " << line;
        EXPECT_EQ(line.find('\n'), std::string::npos);
        EXPECT_EQ(line.find('\x1b') != std::string::npos, color && columns >= 7)
            << columns << ": " << line;
      }
}

TEST(ProgressLine, UnknownFactsAreLeftOut) {
  const std::string line = progress_line(ProgressFacts{}, 80, false, false);
  EXPECT_EQ(line, std::string("  0% ").append(40, '-'));
}

TEST(ProgressLine, HundredPercentOnlyAtTheEnd) {
  ProgressFacts facts = halfway();
  facts.fraction = 0.9999;
  EXPECT_EQ(progress_line(facts, 80, false, false).substr(0, 4), " 99%");
  facts.fraction = 1.2;  // the last step may go a little over a budget of minutes
  EXPECT_EQ(progress_line(facts, 80, false, false).substr(0, 4), "100%");
  EXPECT_EQ(remaining_seconds(facts), 0);
}

TEST(ProgressPlain, HasTheSameFactsInWords) {
  EXPECT_EQ(
      progress_plain(halfway()),
      " 42%  step 540  epoch 2  0:50 elapsed  ETA 1:09  1234 images/s  loss 0.412  acc 85.1%  "
      "val 87.2%");
}

struct Screen {
  explicit Screen(bool interactive) {
    terminal.interactive = interactive;
    terminal.columns = [this] { return columns; };
  }
  Progress progress() {
    return Progress(out, terminal, [this] { return now; });
  }

  std::ostringstream out;
  double now = 100;
  int columns = 80;
  Terminal terminal;
};

// What a redraw of halfway() sends to the terminal.
std::string drawn(int columns) {
  return std::string("\r").append(progress_line(halfway(), columns, false, false)).append("\x1b[K");
}

TEST(Progress, TerminalRedrawsAtMostTenTimesASecond) {
  Screen screen(true);
  Progress progress = screen.progress();
  for (int i = 0; i < 1000; ++i, screen.now += 0.001) progress.update(halfway());
  EXPECT_GE(times_in(screen.out.str(), "\r"), 9);
  EXPECT_LE(times_in(screen.out.str(), "\r"), 10);
  EXPECT_EQ(times_in(screen.out.str(), "\n"), 0);
}

TEST(Progress, PlainLinesComeEveryFewSeconds) {
  Screen screen(false);
  Progress progress = screen.progress();
  for (int i = 0; i < 120; ++i, screen.now += 0.1) progress.update(halfway());  // 12 seconds
  EXPECT_EQ(times_in(screen.out.str(), "\n"), 3);                               // at 0, 5 and 10
  EXPECT_EQ(times_in(screen.out.str(), "\r"), 0);
  EXPECT_EQ(times_in(screen.out.str(), "\x1b"), 0);
}

TEST(Progress, FollowsTheWidthOfTheWindow) {
  Screen screen(true);
  Progress progress = screen.progress();
  progress.update(halfway());
  screen.out.str("");
  screen.columns = 40;
  screen.now += 1;
  progress.update(halfway());
  EXPECT_EQ(screen.out.str(), drawn(40));
}

TEST(Progress, MessageStandsOnItsOwnLine) {
  Screen screen(true);
  Progress progress = screen.progress();
  progress.update(halfway());
  screen.out.str("");
  progress.message("checkpoint saved");
  EXPECT_EQ(screen.out.str(), std::string("\r\x1b[Kcheckpoint saved\n").append(drawn(80)));
}

TEST(Progress, FinishShowsTheLastStateDespiteTheThrottle) {
  for (const bool interactive : {false, true}) {
    Screen screen(interactive);
    Progress progress = screen.progress();
    progress.update(halfway());
    ProgressFacts done = halfway();
    done.fraction = 1;
    screen.out.str("");
    progress.finish(done);
    EXPECT_NE(screen.out.str().find("100%"), std::string::npos);
    EXPECT_EQ(screen.out.str().back(), '\n');
  }
}

TEST(Progress, UnfinishedLineIsClearedOnDestruction) {
  Screen screen(true);
  {
    Progress progress = screen.progress();
    progress.update(halfway());
    screen.out.str("");
  }
  EXPECT_EQ(screen.out.str(), "\r\x1b[K");
}

TEST(Terminal, PipeIsNotInteractive) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Terminal terminal = terminal_of(ends[1]);
  EXPECT_FALSE(terminal.interactive);
  EXPECT_FALSE(terminal.color);
  EXPECT_EQ(terminal.columns(), 80);
  close(ends[0]);
  close(ends[1]);
}

// A pseudo-terminal, as a shell would hand it to the program.
TEST(Terminal, NoColorAndDumbAreHeeded) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) GTEST_SKIP() << "no terminals";
  const int fd = open(ptsname(master), O_RDWR | O_NOCTTY);
  ASSERT_GE(fd, 0);
  winsize size{};
  size.ws_col = 63;
  ASSERT_EQ(ioctl(fd, TIOCSWINSZ, &size), 0);
  setenv("TERM", "xterm", 1);
  unsetenv("NO_COLOR");
  EXPECT_TRUE(terminal_of(fd).interactive);
  EXPECT_TRUE(terminal_of(fd).color);
  EXPECT_EQ(terminal_of(fd).columns(), 63);
  setenv("NO_COLOR", "1", 1);
  EXPECT_TRUE(terminal_of(fd).interactive);
  EXPECT_FALSE(terminal_of(fd).color);
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(terminal_of(fd).interactive);
  unsetenv("NO_COLOR");
  close(fd);
  close(master);
}

}  // namespace
}  // namespace linescan
