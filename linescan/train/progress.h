// How training shows that it is alive: on a terminal one line that redraws itself, elsewhere (a log
// file, a pipe) a plain line every few seconds with the same facts.
//
//   Progress progress(std::cerr, terminal_of(STDERR_FILENO));
//   progress.update(facts);                  // as often as you like: it throttles itself
//   progress.message("checkpoint saved");    // never torn by the line
//   progress.finish(facts);
//
// For one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <string>
#include <string_view>

namespace linescan {

// NaN means "not known yet"; such a fact is left out.
struct ProgressFacts {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double fraction = 0;  // of the budget, 0..1
  double seconds = 0;   // of training so far
  int64_t step = 0;
  int64_t epoch = 0;
  double images_per_s = kUnknown;  // or sequences, as `examples` says
  double loss = kUnknown;
  double accuracy = kUnknown;      // on training examples, 0..1
  double val_accuracy = kUnknown;  // the latest, on held-out examples, 0..1
  std::string_view examples = "images";
};

// What the stream at the other end can do.
struct Terminal {
  bool interactive = false;  // a line can be redrawn in place
  bool color = false;
  bool unicode = false;               // bars from box-drawing characters rather than '#' and '-'
  std::function<int()> columns = {};  // asked at every redraw: windows are resized; empty: 80
};

// Asks the system about a file descriptor. TERM=dumb counts as not interactive; a non-empty
// NO_COLOR switches colour off; LC_ALL, LC_CTYPE and LANG tell whether Unicode is safe.
Terminal terminal_of(int fd);

// Seconds left at the present pace, or NaN before anything is done.
double remaining_seconds(const ProgressFacts& facts);

// The line for a terminal: never wider than `columns` - 1, so that it cannot wrap. What does not fit
// goes, least important first: images/s, training accuracy, validation accuracy, loss, time left.
std::string progress_line(const ProgressFacts& facts, int columns, bool color, bool unicode);

// The line for a log.
std::string progress_plain(const ProgressFacts& facts);

class Progress {
 public:
  using Clock = std::function<double()>;  // seconds, monotonic

  static constexpr double kRedrawSeconds = 0.1;
  static constexpr double kPlainSeconds = 5;

  Progress(std::ostream& out, Terminal terminal);
  Progress(std::ostream& out, Terminal terminal, Clock clock);
  ~Progress();  // clears an unfinished line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Draws unless something was drawn less than kRedrawSeconds (plain: kPlainSeconds) ago.
  void update(const ProgressFacts& facts);
  // Prints a line of its own; the progress line is cleared before and drawn again after.
  void message(std::string_view text);
  // Draws the last state and leaves it there.
  void finish(const ProgressFacts& facts);

 private:
  void draw(const ProgressFacts& facts);
  void clear();

  std::ostream& out_;
  Terminal terminal_;
  Clock clock_;
  double last_drawn_ = -std::numeric_limits<double>::infinity();
  ProgressFacts facts_;
  bool on_screen_ = false;
};

}  // namespace linescan
