#include "linescan/files/quote_text.h"

#include <nlohmann/json.hpp>

namespace linescan {

std::string quote_text(std::string_view text) {
  constexpr std::size_t kLongest = 100;
  std::string shown(text.substr(0, kLongest));
  if (text.size() > kLongest) shown += "...";
  // ensure_ascii with replacement: a name cut in the middle of a character still prints.
  return nlohmann::json(std::move(shown))
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace linescan
