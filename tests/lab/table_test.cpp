#include "linescan/lab/table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace linescan::lab {
namespace {

TEST(Table, AlignsTheFirstColumnLeftAndTheOthersRight) {
  const Table table = {"Title", {"name", "img/s"}, {{"one", "7"}, {"a longer", "123.4"}}, {}};
  EXPECT_EQ(to_text(table),
            "Title\n"
            "name      img/s\n"
            "one           7\n"
            "a longer  123.4\n");
}

TEST(Table, MovesColumnsTogetherAndWrapsNotesToStayWithinEightyLetters) {
  Table table = {"Title", {}, {{}}, {std::string(70, 'a') + " " + std::string(20, 'b')}};
  for (int i = 0; i < 12; ++i) {  // 12 x 5 letters: two spaces between them would make 82
    table.columns.push_back("abcde");
    table.rows[0].push_back("1");
  }
  std::istringstream text(to_text(table));
  int lines = 0;
  for (std::string line; std::getline(text, line); ++lines) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_EQ(lines, 5);  // title, head, row, and the note on two
}

TEST(Table, IsSafeInsideOfAPage) {
  const Table table = {"T", {"<a>"}, {{"<b> & c"}}, {"\"d\" <e>"}};
  const std::string html = to_html(table);
  for (const char* raw : {"<a>", "<b>", "<e>"}) EXPECT_EQ(html.find(raw), std::string::npos) << raw;
  for (const char* safe : {"&lt;a&gt;", "&lt;b&gt; &amp; c", "&quot;d&quot; &lt;e&gt;"})
    EXPECT_NE(html.find(safe), std::string::npos) << safe;
}

TEST(Table, WithoutRowsIsItsTitleAndNotes) {
  const Table table = {"Title", {"a", "b"}, {}, {"Nothing fits the memory."}};
  EXPECT_EQ(to_text(table), "Title\nNothing fits the memory.\n");
  EXPECT_EQ(to_html(table), "<p class=\"note\">Nothing fits the memory.</p>");
}

}  // namespace
}  // namespace linescan::lab
