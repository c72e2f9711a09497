// The look of the report, and the script that shows a curve's values under the pointer.
#pragma once

namespace linescan::report {

// A style sheet: one set of colours for light, one for dark, light again for paper.
extern const char* const kStyle;

// The page is complete without it.
extern const char* const kScript;

}  // namespace linescan::report
