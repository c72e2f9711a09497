// What every page of ours has: its frame, its heading, its sections. One file of HTML that needs no
// network and no script to be read.
#pragma once

#include <string>
#include <string_view>

#include "linescan/train/report_data.h"

namespace linescan::report {

// The whole page around the HTML of its sections; `style` is added to the sheet that all pages share.
std::string html_page(std::string_view title, std::string_view body, std::string_view style = {});

// <header>: the mark, what kind of page it is, its name, and a line of HTML below.
std::string masthead(std::string_view kind, std::string_view name, std::string_view subtitle);

// <section> with a heading, and a sentence below it unless `lead` is empty. `body` is HTML.
std::string section(std::string_view title, std::string_view lead, std::string_view body);

// A paragraph for a section that has nothing to show.
std::string missing(std::string_view note);

// What machine.json says, in words.
std::string machine_section(const Table& machine);

}  // namespace linescan::report
