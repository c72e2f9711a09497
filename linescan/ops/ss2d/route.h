// A route: the order in which a scan visits the pixels of a plane, in four bits.
#pragma once

#include <cstdint>

namespace linescan {

enum RouteBits : int64_t {
  kColumnMajor = 1,    // lines are columns, not rows
  kReverseInLine = 2,  // each line is walked from its end
  kReverseLines = 4,   // the last line comes first
  kRestart = 8,        // the state starts anew at every line
  kRouteCodes = 16,    // codes are below this
};

// Step t of the scan is at pixel(t / line_length, t % line_length), an index into height * width.
struct Route {
  int64_t lines, line_length, origin, line_step, step;
  bool restart;

  Route(int64_t code, int64_t height, int64_t width) {
    const bool columns = code & kColumnMajor;
    lines = columns ? width : height;
    line_length = columns ? height : width;
    line_step = columns ? 1 : width;
    step = columns ? width : 1;
    origin = 0;
    if (code & kReverseInLine) {
      origin += (line_length - 1) * step;
      step = -step;
    }
    if (code & kReverseLines) {
      origin += (lines - 1) * line_step;
      line_step = -line_step;
    }
    restart = code & kRestart;
  }

  int64_t pixel(int64_t line, int64_t position) const {
    return origin + line * line_step + position * step;
  }
  // Runs that are scanned without a restart, and their length.
  int64_t sequences() const { return restart ? lines : 1; }
  int64_t sequence_length() const { return restart ? line_length : lines * line_length; }

  // Calls visit(pixel, step, count, offset) for the pieces of steps [first, first + count) of a
  // sequence that lie on one line each: `count` pixels from `pixel` on, `step` apart.
  template <class Visit>
  void for_pieces(int64_t sequence, int64_t first, int64_t count, const Visit& visit) const {
    int64_t line = sequence + first / line_length, position = first % line_length;
    for (int64_t done = 0; done < count;) {
      const int64_t rest = line_length - position;
      const int64_t piece = rest < count - done ? rest : count - done;
      visit(pixel(line, position), step, piece, done);
      done += piece;
      position = 0;
      ++line;
    }
  }
};

}  // namespace linescan
