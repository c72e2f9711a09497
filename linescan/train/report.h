// The page that a run is judged by: one HTML file made from the files of a run folder. It needs no
// network, no other file and no script to be read, prints well, and follows light and dark.
#pragma once

#include <filesystem>
#include <string>

namespace linescan {

// Writes run/report.html, replacing an older one in one step. Files of the run that are missing or
// damaged leave a section that says so. Throws InvalidArgument if `run` is not a folder, IoError if
// the page cannot be written.
void write_report(const std::filesystem::path& run);

// The page itself.
std::string report_page(const std::filesystem::path& run);

}  // namespace linescan
