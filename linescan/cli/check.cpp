// linescan check: the operators on this machine against the double-precision reference, for every
// instruction set that it can run.

#include <ATen/Parallel.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "linescan/binding/tensors.h"
#include "linescan/cli/command.h"
#include "linescan/device/simd_target.h"
#include "linescan/ops/causal_conv1d/sample.h"
#include "linescan/ops/gated_delta_rule/sample.h"
#include "linescan/ops/selective_scan/sample.h"
#include "linescan/ops/ss2d/sample.h"

namespace linescan::cli {
namespace {

struct Row {
  std::string op, type, problem, simd;
  std::vector<NamedVerdict> verdicts;

  // The result that comes nearest to its bound, or is furthest over it.
  const NamedVerdict& worst() const {
    return *std::max_element(verdicts.begin(), verdicts.end(), [](const auto& a, const auto& b) {
      return a.verdict.worst_ratio < b.verdict.worst_ratio;
    });
  }
  bool passed() const {
    return std::all_of(verdicts.begin(), verdicts.end(), [](const auto& v) { return v.passed(); });
  }
};

template <class Sample, class Case>
Row check_case(const char* op, const Case& c) {
  Sample sample(c);
  sample.run(torch_parallel_for(), at::get_num_threads());
  return {op, std::string(name_of(c.dtype)), fmt::format("{}", fmt::streamed(c)), simd_target(),
          sample.judge()};
}

std::vector<Row> check_all() {
  std::vector<Row> rows;
  const std::string before = simd_target();
  for (const std::string& target : simd_targets()) {
    force_simd_target(target);
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64})
      for (Layout layout : {Layout::kLengthLast, Layout::kChannelsLast}) {
        rows.push_back(check_case<SelectiveScanSample>("selective_scan",
                                                       SelectiveScanCase{.channels = 70,
                                                                         .groups = 2,
                                                                         .length = 197,
                                                                         .states = 3,
                                                                         .dtype = dtype,
                                                                         .layout = layout,
                                                                         .gate = true,
                                                                         .initial = true,
                                                                         .out_dtype = dtype}));
        rows.push_back(check_case<Ss2dSample>("ss2d", Ss2dCase{.channels = 70,
                                                               .height = 9,
                                                               .width = 14,
                                                               .states = 2,
                                                               .rank = 6,
                                                               .dtype = dtype,
                                                               .layout = layout,
                                                               .out_dtype = dtype}));
        rows.push_back(check_case<CausalConv1dSample>(
            "causal_conv1d",
            CausalConv1dCase{
                .length = 70, .channels = 70, .dtype = dtype, .layout = layout, .initial = true}));
        // Its layouts are [batch, length, heads, ..] and [batch, heads, length, ..].
        rows.push_back(check_case<GatedDeltaRuleSample>(
            "gated_delta_rule", GatedDeltaRuleCase{.length = 70,
                                                   .value_heads = 4,
                                                   .K = 20,
                                                   .V = 70,
                                                   .dtype = dtype,
                                                   .mode = GatedDeltaRuleMode::kChunk,
                                                   .initial = true,
                                                   .gate = true,
                                                   .gate_bias = true,
                                                   .sigmoid = true,
                                                   .heads_first = layout != Layout::kLengthLast}));
      }
  }
  force_simd_target(before);
  return rows;
}

nlohmann::json to_document(const std::vector<Row>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const Row& row : rows)
    for (const NamedVerdict& result : row.verdicts)
      list.push_back({{"op", row.op},
                      {"problem", row.problem},
                      {"simd", row.simd},
                      {"result", result.name},
                      {"error", result.verdict.error},
                      {"bound", result.verdict.bound},
                      {"passed", result.passed()}});
  const bool passed =
      std::all_of(rows.begin(), rows.end(), [](const Row& r) { return r.passed(); });
  return {{"passed", passed}, {"results", list}};
}

void print_table(const std::vector<Row>& rows) {
  std::cout << fmt::format("{:<17}{:<7}{:<9}{:<17}{:>10}{:>10}{:>8}\n", "operator", "simd", "type",
                           "worst result", "error", "bound", "");
  for (const Row& row : rows) {
    const NamedVerdict& worst = row.worst();
    std::cout << fmt::format("{:<17}{:<7}{:<9}{:<17}{:>10.2e}{:>10.2e}{:>8}\n", row.op, row.simd,
                             row.type, worst.name.substr(0, 16), worst.verdict.error,
                             worst.verdict.bound, row.passed() ? "ok" : "FAILED");
  }
}

void run_check(bool json) {
  const std::vector<Row> rows = check_all();
  if (json)
    print_json(to_document(rows));
  else
    print_table(rows);
  for (const Row& row : rows)
    if (!row.passed())
      throw_error<Error>("check: {} on {}: {} differs from the reference by {}, bound {} ({})",
                         row.op, row.simd, row.worst().name, row.worst().verdict.error,
                         row.worst().verdict.bound, row.problem);
}

}  // namespace

void add_check(CLI::App& command) {
  auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "one JSON document on standard output");
  add_example(command, "linescan check");
  command.callback([json] { run_check(*json); });
}

}  // namespace linescan::cli
