#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "linescan/train/report_sections.h"
#include "linescan/train/report_text.h"

namespace linescan::report {
namespace {

constexpr std::size_t kMostMistakes = 24;

std::string mistake_figure(const Mistake& mistake) {
  const std::string picture =
      mistake.png_base64.empty()
          ? std::string("<div class=\"picture\"></div>")
          : fmt::format(
                R"(<img class="picture" src="data:image/png;base64,{}" alt="test image {}">)",
                mistake.png_base64, mistake.index);
  return fmt::format(
      "<figure class=\"mistake\">{}<figcaption><b>{}</b><span><i>taken for</i> {}</span>"
      "<small>{}&nbsp;sure · image&nbsp;{}</small></figcaption></figure>",
      picture, escape_html(mistake.label), escape_html(mistake.predicted),
      percent_text(mistake.probability), count_text(mistake.index));
}

}  // namespace

std::string mistakes_section(const RunData& run) {
  constexpr const char* kTitle = "Most confident mistakes";
  const Evaluation& evaluation = run.evaluation;
  if (evaluation.mistakes.empty())
    return section(
        kTitle, "",
        missing(evaluation.note.empty() ? "The evaluation lists no mistakes." : evaluation.note));
  std::string body = "<div class=\"gallery\">";
  for (std::size_t i = 0; i < std::min(evaluation.mistakes.size(), kMostMistakes); ++i)
    body += mistake_figure(evaluation.mistakes[i]);
  body += "</div>";
  return section(kTitle,
                 "Test images on which the network was surest of a wrong answer, with the class "
                 "given by the data set first.",
                 body);
}

}  // namespace linescan::report
