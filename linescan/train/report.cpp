#include "linescan/train/report.h"

#include <fmt/format.h>

#include "linescan/files/atomic_write.h"
#include "linescan/train/report_sections.h"
#include "linescan/train/report_style.h"
#include "linescan/train/report_text.h"

namespace linescan {

std::string report_page(const std::filesystem::path& run) {
  const report::RunData data = report::read_run(run);
  std::string page = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n";
  // The page promises to fetch nothing; this makes browsers hold it to its word.
  page +=
      R"(<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; )"
      R"(style-src 'unsafe-inline'; script-src 'unsafe-inline'">)"
      "\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n";
  page += fmt::format("<title>{} · Linescan</title>\n<style>{}</style></head>\n<body><main>\n",
                      report::escape_html(data.name), report::kStyle);
  page += report::headline_section(data);
  page += report::curves_section(data);
  if (data.about_images) page += report::classes_section(data) + report::mistakes_section(data);
  page += report::tables_section(data);
  page += fmt::format("</main>\n<script>{}</script>\n</body></html>\n", report::kScript);
  return page;
}

void write_report(const std::filesystem::path& run) {
  const std::string page = report_page(run);
  write_file_atomically(run / "report.html", std::string_view(page));
}

}  // namespace linescan
