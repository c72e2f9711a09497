// Names out of a file, made fit for a message: a hostile name must not break the line or fill it.
#pragma once

#include <string>
#include <string_view>

namespace linescan {

// The text in double quotes, control characters and bytes that are not UTF-8 escaped, long text
// cut after about 100 characters and marked with "...".
std::string quote_text(std::string_view text);

}  // namespace linescan
