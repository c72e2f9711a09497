// The report's sections, top to bottom. Each turns a part of the run into HTML and, where that part
// is missing, says so.
#pragma once

#include <string>
#include <string_view>

#include "linescan/train/report_data.h"

namespace linescan::report {

std::string headline_section(const RunData& run);  // the figures that sum it up
std::string curves_section(const RunData& run);    // how training went
std::string classes_section(const RunData& run);   // confusion matrix, recall and precision
std::string mistakes_section(const RunData& run);  // the most confident wrong answers
std::string tables_section(const RunData& run);    // configuration and machine

// <section> with a heading, and a sentence below it unless `lead` is empty. `body` is HTML.
std::string section(std::string_view title, std::string_view lead, std::string_view body);

// A paragraph for a section that has nothing to show.
std::string missing(std::string_view note);

}  // namespace linescan::report
