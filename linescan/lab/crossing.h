// Where one curve overtakes another: at which image size one network becomes faster than its rival.
#pragma once

#include <string>
#include <vector>

namespace linescan::lab {

struct RatePoint {
  double size = 0;              // rising from point to point
  double ours = 0, theirs = 0;  // more is better; 0: could not be measured
  double noise = 0;             // relative difference below which the two count as equal
};

struct Crossing {
  double size = 0;            // between two points, on logarithmic scales
  bool we_take_over = false;  // else the rival does
};

// The changes of the lead, in the order of size. Points without a clear lead change nothing by themselves,
// but say where between two others the change is; points without a figure say nothing.
std::vector<Crossing> find_crossings(const std::vector<RatePoint>& points);

// "vmamba overtakes attention at about 700 pixels", "no crossing: vmamba is ahead of conv wherever there
// is a lead", "no crossing: neither vmamba nor conv leads at any size".
std::string describe_crossings(const std::vector<RatePoint>& points, const std::string& us,
                               const std::string& rival);

}  // namespace linescan::lab
