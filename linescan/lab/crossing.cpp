#include "linescan/lab/crossing.h"

#include <fmt/format.h>

#include <cmath>

namespace linescan::lab {
namespace {

struct Lead {
  double size, value;  // value: log(ours / theirs), above 0 where we lead
  bool clear;
};

std::vector<Lead> leads_of(const std::vector<RatePoint>& points) {
  std::vector<Lead> leads;
  for (const RatePoint& point : points) {
    if (!(point.ours > 0 && point.theirs > 0)) continue;
    const double value = std::log(point.ours / point.theirs);
    leads.push_back({point.size, value, std::abs(value) > std::log1p(point.noise)});
  }
  return leads;
}

// Where the lead passes 0 on the straight line from one to the other, sizes on a logarithmic scale.
double size_between(const Lead& a, const Lead& b) {
  return a.size * std::pow(b.size / a.size, a.value / (a.value - b.value));
}

}  // namespace

std::vector<Crossing> find_crossings(const std::vector<RatePoint>& points) {
  const std::vector<Lead> leads = leads_of(points);
  std::vector<Crossing> crossings;
  double before = 0;  // the latest clear lead; none yet
  for (std::size_t i = 0; i < leads.size(); ++i) {
    if (!leads[i].clear) continue;
    if (before * leads[i].value < 0) {
      // Points without a clear lead still say where in between it changes.
      std::size_t first = i;
      while (leads[first - 1].value * leads[i].value >= 0) --first;
      crossings.push_back({size_between(leads[first - 1], leads[first]), leads[i].value > 0});
    }
    before = leads[i].value;
  }
  return crossings;
}

std::string describe_crossings(const std::vector<RatePoint>& points, const std::string& us,
                               const std::string& rival) {
  std::string text;
  for (const Crossing& crossing : find_crossings(points))
    text +=
        fmt::format("{} {} {} at about {:.0f} pixels", text.empty() ? us : ",",
                    crossing.we_take_over ? "overtakes" : "is overtaken by", rival, crossing.size);
  if (!text.empty()) return text;
  for (const Lead& lead : leads_of(points))
    if (lead.clear)
      return fmt::format("no crossing: {} is {} {} wherever there is a lead", us,
                         lead.value > 0 ? "ahead of" : "behind", rival);
  return fmt::format("no crossing: neither {} nor {} leads at any size", us, rival);
}

}  // namespace linescan::lab
