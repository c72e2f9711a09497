// Everything that one call of `linescan throughput` has measured, and the forms in which it is given out.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "linescan/lab/ladder.h"
#include "linescan/lab/scan_modes.h"
#include "linescan/lab/states.h"
#include "linescan/lab/sweep.h"
#include "linescan/lab/table.h"

namespace linescan::lab {

struct StepBreakdown {
  StepKind kind = StepKind::kTraining;
  Breakdown breakdown;
};

struct Findings {
  std::string model;
  int64_t parameters = 0, size = 0;
  Compute compute;  // of everything but `measurements`, which may have several precisions
  Protocol protocol;
  nlohmann::json machine;

  std::vector<Measurement> measurements;
  std::vector<StepBreakdown> breakdowns;
  std::optional<Sweep> sweep;
  std::vector<RungResult> ladder;
  std::optional<ScanModes> modes;
  std::optional<StatesCost> states;
};

// The tables of a section; those of sections that were not measured are empty lists.
std::vector<Table> throughput_tables(const Findings& findings);  // rates, and times of a step
std::vector<Table> breakdown_tables(const Findings& findings);
std::vector<Table> sweep_tables(const Findings& findings);
std::vector<Table> ladder_tables(const Findings& findings);  // its first notes: a step's news each
std::vector<Table> mode_tables(const Findings& findings);
std::vector<Table> states_tables(const Findings& findings);

// All of them, for a terminal of 80 columns.
std::string to_text(const Findings& findings);

nlohmann::json to_json(const Findings& findings);

// One line a measurement, with a header: section, label, step, precision, size, batch, images_per_s,
// pixels_per_s, flop_per_s, share_of_peak, ms_median, ms_mean, ms_deviation, ms_p10, ms_p90,
// repetitions, peak_mb. Fields that do not apply are empty. Batch 0 without figures: no memory.
std::string to_csv(const Findings& findings);

// One HTML file with plots that needs no network and no other file.
std::string page_of(const Findings& findings);

}  // namespace linescan::lab
