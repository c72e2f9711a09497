#include "linescan/train/report_page.h"

#include <fmt/format.h>

#include "linescan/train/report_style.h"
#include "linescan/train/report_text.h"

namespace linescan::report {
namespace {

// The mark: an image read line by line, from two sides.
constexpr std::string_view kMark =
    R"(<svg class="mark" viewBox="0 0 24 24" aria-hidden="true"><path d="M4 5h13M4 12h13M4 19h13"/>)"
    R"(<path class="cross" d="M20.5 4v16"/><circle cx="20.5" cy="12" r="2.2"/></svg>)";

}  // namespace

std::string html_page(std::string_view title, std::string_view body, std::string_view style) {
  std::string page = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n";
  // The page promises to fetch nothing; this makes browsers hold it to its word.
  page +=
      R"(<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; )"
      R"(style-src 'unsafe-inline'; script-src 'unsafe-inline'">)"
      "\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n";
  page += fmt::format("<title>{} · Linescan</title>\n<style>{}{}</style></head>\n<body><main>\n",
                      escape_html(title), kStyle, style);
  page += body;
  page += fmt::format("</main>\n<script>{}</script>\n</body></html>\n", kScript);
  return page;
}

std::string masthead(std::string_view kind, std::string_view name, std::string_view subtitle) {
  return fmt::format(
      "<header><p class=\"brand\">{}Linescan <span>{}</span></p>\n<h1>{}</h1>\n"
      "<p class=\"subtitle\">{}</p></header>\n",
      kMark, escape_html(kind), escape_html(name), subtitle);
}

std::string section(std::string_view title, std::string_view lead, std::string_view body) {
  std::string out = fmt::format("<section><h2>{}</h2>", title);
  if (!lead.empty()) out += fmt::format("<p class=\"lead\">{}</p>", lead);
  return out.append(body).append("</section>\n");
}

std::string missing(std::string_view note) {
  return fmt::format("<p class=\"missing\">{}</p>", escape_html(note));
}

}  // namespace linescan::report
