// Numbers and words as the report prints them, safe to put into HTML.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace linescan::report {

// & < > " ' become entities; control characters, which HTML does not allow, become spaces.
std::string escape_html(std::string_view text);

// "1,234,567"
std::string count_text(int64_t value);

// 0.9123 -> "91.2 %". "–" for NaN and infinity, as in all functions below.
std::string percent_text(double share, int decimals = 1);

// Three to four significant digits without needless zeros: "1,234", "12.3", "0.0421", "3.2e-05".
std::string value_text(double value);

// "0.42 s", "58 s", "1 min 58 s", "2 h 03 min"
std::string duration_text(double seconds);

// 1234567 -> "1.23 M", 82431 -> "82.4 k"
std::string short_count_text(double value);

// At most `characters` characters of UTF-8 text, the last one an ellipsis if something was cut.
std::string shorten(std::string_view text, std::size_t characters);

// Characters of UTF-8 text.
std::size_t length_of(std::string_view text);

}  // namespace linescan::report
