// Rows and columns of text, for the terminal and for a page.
#pragma once

#include <string>
#include <vector>

namespace linescan::lab {

struct Table {
  std::string title;
  std::vector<std::string> columns;            // the first is aligned left, the others right
  std::vector<std::vector<std::string>> rows;  // as long as columns
  std::vector<std::string> notes;              // sentences below
};

// The title, the table and its notes, each line ended; plain text of at most 80 columns as far as the
// cells allow it.
std::string to_text(const Table& table);

// <table class="measured">, the notes as paragraphs behind it. Everything is escaped.
std::string to_html(const Table& table);

}  // namespace linescan::lab
