#include "linescan/lab/findings.h"

namespace linescan::lab {
namespace {

using nlohmann::json;

json list_of(const std::vector<Measurement>& measurements, const Compute& compute) {
  json list = json::array();
  for (const Measurement& measurement : measurements) list.push_back(to_json(measurement, compute));
  return list;
}

json to_json(const Sweep& sweep, const Compute& compute) {
  json curves = json::array();
  for (const Curve& curve : sweep.curves)
    curves.push_back({{"label", curve.label},
                      {"parameters", curve.parameters},
                      {"training", list_of(curve.training, compute)},
                      {"inference", list_of(curve.inference, compute)}});
  return {{"sizes", sweep.sizes}, {"curves", curves}, {"findings", sweep.findings}};
}

json to_json(const RungResult& result, const Compute& compute) {
  json document = {{"step", result.rung.step},
                   {"change", result.rung.change},
                   {"parameters", result.parameters},
                   {"inference", to_json(result.inference, compute)},
                   {"training", to_json(result.training, compute)}};
  if (result.rung.paper_inference > 0)
    document["paper_a100"] = {{"inference", result.rung.paper_inference},
                              {"training", result.rung.paper_training}};
  return document;
}

json rate_json(const Statistics& rate) {
  return {{"median", rate.median}, {"mean", rate.mean}, {"deviation", rate.deviation},
          {"least", rate.least},   {"most", rate.most}, {"variation", rate.variation()}};
}

json to_json(const ScanModes& modes) {
  json list = json::array();
  for (const ModeResult& mode : modes.modes) {
    list.push_back({{"mode", mode.mode}});
    if (mode.rates.empty()) {
      list.back()["no_memory"] = true;
      continue;
    }
    list.back().update({{"images_per_s", rate_json(mode.rate)},
                        {"variation_within_rounds", mode.within},
                        {"drift", mode.drift},
                        {"rounds", mode.rates}});
    if (mode.relative.count > 0) list.back()["over_cross"] = rate_json(mode.relative);
  }
  return {{"batch", modes.batch},
          {"size", modes.size},
          {"rounds", modes.rounds},
          {"steps", modes.steps},
          {"modes", list}};
}

json to_json(const PlannedPass& plan) {
  return {{"kernels", plan.kernels},
          {"shared_bytes", plan.shared_bytes},
          {"workspace_bytes", plan.workspace_bytes},
          {"blocks_per_multiprocessor", plan.blocks},
          {"occupancy", plan.occupancy}};
}

json to_json(const StatesCost& cost, const Compute& compute) {
  json rows = json::array();
  for (const StatesRow& row : cost.rows) {
    rows.push_back({{"states", row.states},
                    {"forward", to_json(row.forward, compute)},
                    {"forward_and_backward", to_json(row.training, compute)},
                    {"planned_forward", to_json(row.planned_forward)},
                    {"planned_backward", to_json(row.planned_backward)}});
    if (!compute.on_gpu()) rows.back()["scratch_bytes"] = row.scratch_bytes;
  }
  return {{"batch", cost.shape.batch},       {"channels", cost.shape.channels},
          {"height", cost.shape.height},     {"width", cost.shape.width},
          {"planned_for", cost.planned_for}, {"rows", rows}};
}

}  // namespace

json to_json(const Findings& findings) {
  const Compute& compute = findings.compute;
  json document = {{"model", findings.model},
                   {"parameters", findings.parameters},
                   {"size", findings.size},
                   {"device", compute.device.str()},
                   {"precision", linescan::name_of(compute.precision)},
                   {"protocol",
                    {{"batch", findings.protocol.batch},
                     {"warmup", findings.protocol.warmup},
                     {"repetitions", findings.protocol.repetitions},
                     {"graph", findings.protocol.graph}}},
                   {"machine", findings.machine},
                   {"measurements", list_of(findings.measurements, compute)}};
  json peaks = json::object();
  for (const Measurement& m : findings.measurements)
    peaks[std::string(linescan::name_of(m.precision))] = m.products_per_second;
  document["peak_flop_per_s"] = peaks;
  for (const StepBreakdown& step : findings.breakdowns) {
    const std::string kind(name_of(step.kind));
    document["breakdown"][kind] = to_json(step.breakdown);
    document["breakdown_batch"][kind] = step.breakdown.batch;
  }
  if (findings.sweep) document["sweep"] = to_json(*findings.sweep, compute);
  for (const RungResult& result : findings.ladder)
    document["ladder"].push_back(to_json(result, compute));
  if (findings.modes) document["scan_modes"] = to_json(*findings.modes);
  if (findings.states) document["states"] = to_json(*findings.states, compute);
  return document;
}

}  // namespace linescan::lab
