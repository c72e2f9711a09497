// The report's sections, top to bottom. Each turns a part of the run into HTML and, where that part
// is missing, says so.
#pragma once

#include <string>

#include "linescan/train/report_page.h"

namespace linescan::report {

std::string headline_section(const RunData& run);  // the figures that sum it up
std::string curves_section(const RunData& run);    // how training went
std::string classes_section(const RunData& run);   // confusion matrix, recall and precision
std::string mistakes_section(const RunData& run);  // the most confident wrong answers
std::string tables_section(const RunData& run);    // configuration and machine

}  // namespace linescan::report
