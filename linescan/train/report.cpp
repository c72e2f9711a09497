#include "linescan/train/report.h"

#include "linescan/files/atomic_write.h"
#include "linescan/train/report_page.h"
#include "linescan/train/report_sections.h"

namespace linescan {

std::string report_page(const std::filesystem::path& run) {
  const report::RunData data = report::read_run(run);
  std::string body = report::headline_section(data);
  body += report::curves_section(data);
  if (data.about_images) body += report::classes_section(data) + report::mistakes_section(data);
  body += report::tables_section(data);
  return report::html_page(data.name, body);
}

void write_report(const std::filesystem::path& run) {
  const std::string page = report_page(run);
  write_file_atomically(run / "report.html", std::string_view(page));
}

}  // namespace linescan
