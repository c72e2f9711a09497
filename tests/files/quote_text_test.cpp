#include "linescan/files/quote_text.h"

#include <gtest/gtest.h>

namespace linescan {
namespace {

TEST(QuoteText, PlainNames) { EXPECT_EQ(quote_text("layers.0.weight"), "\"layers.0.weight\""); }

TEST(QuoteText, NothingBreaksTheLine) {
  EXPECT_EQ(quote_text("a\nb\r\x1b[31m"), "\"a\\nb\\r\\u001b[31m\"");
  const std::string text = quote_text("\xff\xfe ok");
  for (const char c : text) EXPECT_TRUE(c >= ' ' && c < 0x7f) << text;
}

TEST(QuoteText, LongTextIsCut) {
  const std::string text = quote_text(std::string(100000, 'x'));
  EXPECT_LT(text.size(), 120u);
  EXPECT_NE(text.find("..."), std::string::npos);
}

}  // namespace
}  // namespace linescan
