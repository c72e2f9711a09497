#include "linescan/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ostream>
#include <vector>

namespace linescan {
namespace {

constexpr int kDefaultColumns = 80;
constexpr int kShortestBar = 8;
constexpr int kLongestBar = 40;
constexpr std::string_view kClearLine = "\r\x1b[K";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The first of the three that is set decides, as in the C library.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value = environment(name);
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

// "0:07", "12:34", "1:02:03"
std::string clock_text(double seconds) {
  const auto total = static_cast<int64_t>(std::clamp(seconds, 0.0, 3.6e6) + 0.5);
  if (total >= 3600)
    return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

int percent_of(double fraction) {
  // 100 % only when it is all done.
  return std::isfinite(fraction) ? static_cast<int>(std::clamp(fraction, 0.0, 1.0) * 100) : 0;
}

std::string rate_text(double rate, std::string_view examples) {
  return rate < 10 ? fmt::format("{:.1f} {}/s", rate, examples)
                   : fmt::format("{:.0f} {}/s", rate, examples);
}

// A piece of the line and how much it matters: 0 goes last.
struct Field {
  int rank;
  std::string text;
};

// In the order in which they are shown.
std::vector<Field> fields_of(const ProgressFacts& facts) {
  std::vector<Field> fields;
  const double left = remaining_seconds(facts);
  if (std::isfinite(left)) fields.push_back({0, fmt::format("ETA {}", clock_text(left))});
  if (std::isfinite(facts.images_per_s))
    fields.push_back({4, rate_text(facts.images_per_s, facts.examples)});
  if (std::isfinite(facts.loss)) fields.push_back({1, fmt::format("loss {:.3f}", facts.loss)});
  if (std::isfinite(facts.accuracy))
    fields.push_back({3, fmt::format("acc {:.1f}%", 100 * facts.accuracy)});
  if (std::isfinite(facts.val_accuracy))
    fields.push_back({2, fmt::format("val {:.1f}%", 100 * facts.val_accuracy)});
  return fields;
}

int width_of(const std::vector<Field>& fields) {
  int width = 0;
  for (const Field& field : fields) width += 2 + static_cast<int>(field.text.size());
  return width;
}

std::string repeat(std::string_view text, int times) {
  std::string repeated;
  for (int i = 0; i < times; ++i) repeated += text;
  return repeated;
}

std::string bar_text(double fraction, int width, bool color, bool unicode) {
  const double share = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0;
  const int done = static_cast<int>(share * width);
  const std::string full = repeat(unicode ? "━" : "#", done);
  const std::string rest = repeat(unicode ? (color ? "━" : "─") : "-", width - done);
  return color ? fmt::format("\x1b[36m{}\x1b[90m{}\x1b[0m", full, rest) : full + rest;
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Terminal terminal_of(int fd) {
  Terminal terminal;
  const std::string term = environment("TERM");
  terminal.interactive = isatty(fd) == 1 && !term.empty() && term != "dumb";
  terminal.color = terminal.interactive && environment("NO_COLOR").empty();
  terminal.unicode = locale_is_utf8();
  terminal.columns = [fd] {
    winsize size{};
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? int{size.ws_col}
                                                                : kDefaultColumns;
  };
  return terminal;
}

double remaining_seconds(const ProgressFacts& facts) {
  if (!(facts.fraction > 0) || !(facts.seconds > 0)) return ProgressFacts::kUnknown;
  return facts.seconds * (1 - std::min(facts.fraction, 1.0)) / facts.fraction;
}

std::string progress_line(const ProgressFacts& facts, int columns, bool color, bool unicode) {
  const std::string percent = fmt::format("{:3}%", percent_of(facts.fraction));
  const int room = columns - 1 - static_cast<int>(percent.size());
  if (room < 0) return percent.substr(0, std::max(columns - 1, 0));
  std::vector<Field> fields = fields_of(facts);
  while (!fields.empty() && width_of(fields) + 1 + kShortestBar > room)
    fields.erase(std::max_element(fields.begin(), fields.end(),
                                  [](const Field& a, const Field& b) { return a.rank < b.rank; }));
  std::string line = percent;
  const int bar = std::min(room - width_of(fields) - 1, kLongestBar);
  if (bar > 0) line.append(" ").append(bar_text(facts.fraction, bar, color, unicode));
  for (const Field& field : fields) line.append("  ").append(field.text);
  return line;
}

std::string progress_plain(const ProgressFacts& facts) {
  std::string line = fmt::format("{:3}%  step {}  epoch {}  {} elapsed", percent_of(facts.fraction),
                                 facts.step, facts.epoch, clock_text(facts.seconds));
  for (const Field& field : fields_of(facts)) line.append("  ").append(field.text);
  return line;
}

Progress::Progress(std::ostream& out, Terminal terminal)
    : Progress(out, std::move(terminal), monotonic_seconds) {}

Progress::Progress(std::ostream& out, Terminal terminal, Clock clock)
    : out_(out), terminal_(std::move(terminal)), clock_(std::move(clock)) {}

Progress::~Progress() { clear(); }

void Progress::update(const ProgressFacts& facts) {
  facts_ = facts;
  const double now = clock_();
  if (now - last_drawn_ < (terminal_.interactive ? kRedrawSeconds : kPlainSeconds)) return;
  last_drawn_ = now;
  draw(facts);
}

void Progress::message(std::string_view text) {
  const bool redraw = on_screen_;
  clear();
  out_ << text << '\n';
  if (redraw) draw(facts_);
  out_.flush();
}

void Progress::finish(const ProgressFacts& facts) {
  draw(facts);
  if (on_screen_) out_ << '\n' << std::flush;
  on_screen_ = false;
}

void Progress::draw(const ProgressFacts& facts) {
  if (terminal_.interactive) {
    const int columns = terminal_.columns ? terminal_.columns() : kDefaultColumns;
    out_ << '\r' << progress_line(facts, columns, terminal_.color, terminal_.unicode) << "\x1b[K";
    on_screen_ = true;
  } else {
    out_ << progress_plain(facts) << '\n';
  }
  out_.flush();
}

void Progress::clear() {
  if (!on_screen_) return;
  out_ << kClearLine << std::flush;
  on_screen_ = false;
}

}  // namespace linescan
