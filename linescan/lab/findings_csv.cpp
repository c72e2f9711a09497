#include <fmt/format.h>

#include "linescan/lab/findings.h"

namespace linescan::lab {
namespace {

std::vector<Measurement> all_measurements(const Findings& findings) {
  std::vector<Measurement> all = findings.measurements;
  const auto add = [&](const std::vector<Measurement>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  if (findings.sweep)
    for (const Curve& curve : findings.sweep->curves) {
      add(curve.training);
      add(curve.inference);
    }
  for (const RungResult& result : findings.ladder) add({result.inference, result.training});
  return all;
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char letter : text) result += letter == '"' ? "\"\"" : std::string(1, letter);
  return result + '"';
}

std::string time_fields(const Timed& timed) {
  if (!timed.measured()) return ",,,,,,";
  const Statistics& s = timed.seconds;
  return fmt::format("{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{},{:.6g}", s.median * 1e3, s.mean * 1e3,
                     s.deviation * 1e3, s.p10 * 1e3, s.p90 * 1e3, s.count,
                     static_cast<double>(timed.peak_bytes) / 1e6);
}

std::string csv_line(const Measurement& m) {
  const std::string head =
      fmt::format("{},{},{},{},{},{}", m.section, quoted(m.label), name_of(m.kind),
                  linescan::name_of(m.precision), m.size, m.batch);
  if (!m.fitted()) return head + ",,,,,,,,,,,\n";
  return fmt::format("{},{:.6g},{:.6g},{:.6g},{:.6g},{}\n", head, m.images_per_second(),
                     m.pixels_per_second(), m.flop_per_second(), m.share_of_peak(),
                     time_fields(m.timed));
}

}  // namespace

std::string to_csv(const Findings& findings) {
  std::string csv =
      "section,label,step,precision,size,batch,images_per_s,pixels_per_s,flop_per_s,share_of_peak,"
      "ms_median,ms_mean,ms_deviation,ms_p10,ms_p90,repetitions,peak_mb\n";
  for (const Measurement& measurement : all_measurements(findings)) csv += csv_line(measurement);
  const std::string_view precision = linescan::name_of(findings.compute.precision);
  if (findings.modes)
    for (const ModeResult& mode : findings.modes->modes) {
      if (mode.rates.empty())
        csv += fmt::format("scan modes,{},training,{},{},0,,,,,,,,,,,\n", quoted(mode.mode),
                           precision, findings.modes->size);
      for (const double rate : mode.rates)
        csv += fmt::format("scan modes,{},training,{},{},{},{:.6g},,,,,,,,,,\n", quoted(mode.mode),
                           precision, findings.modes->size, findings.modes->batch, rate);
    }
  if (findings.states)
    for (const StatesRow& row : findings.states->rows)
      for (const bool ahead : {true, false}) {
        const Timed& timed = ahead ? row.forward : row.training;
        csv += fmt::format("states,{},{},{},{},{},,,,,{}\n", row.states,
                           ahead ? "forward" : "forward and backward", precision, findings.size,
                           timed.measured() ? findings.states->shape.batch : 0, time_fields(timed));
      }
  return csv;
}

}  // namespace linescan::lab
