// Small measurements from end to end, on the CPU: what is counted, and the forms it is given out in.

#include "linescan/lab/measurement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "linescan/base/error.h"
#include "linescan/lab/figures.h"
#include "linescan/lab/findings.h"
#include "linescan/models/networks/registry.h"
#include "linescan/train/machine.h"
#include "tests/models/small_model.h"

namespace linescan::lab {
namespace {

Bench small_bench() {
  Bench bench;
  bench.protocol = {.batch = 2, .warmup = 1, .repetitions = 3};
  bench.products_per_second = 1e10;
  return bench;
}

TEST(TimedWork, RunsAsOftenAsItSays) {
  int runs = 0, before = 0;
  const Timed timed = time_work(
      {}, {.warmup = 4, .repetitions = 7}, [&] { ++runs; }, [&] { ++before; });
  EXPECT_EQ(runs, 11);
  EXPECT_EQ(before, 11);
  EXPECT_EQ(timed.seconds.count, 7);
  EXPECT_GT(timed.peak_bytes, 0);
}

TEST(Measurement, RatesFollowFromTheMedian) {
  for (const StepKind kind :
       {StepKind::kInference, StepKind::kTraining, StepKind::kTrainingWithUpdate}) {
    const Measurement m = measure_network(small_bench(), small_config(), kind, 20);
    ASSERT_TRUE(m.fitted());
    EXPECT_EQ(m.batch, 2);
    EXPECT_DOUBLE_EQ(m.images_per_second(), 2 / m.timed.seconds.median);
    EXPECT_DOUBLE_EQ(m.pixels_per_second(), 400 * m.images_per_second());
    const auto forward = static_cast<double>(count_cost(small_config(), 20, 20).multiply_adds);
    EXPECT_DOUBLE_EQ(m.flop, (kind == StepKind::kInference ? 2 : 6) * forward);
    EXPECT_DOUBLE_EQ(m.share_of_peak(), m.flop_per_second() / 1e10);
  }
}

// A step holds its gradients, and the optimiser its moments: the weights move, but hardly.
TEST(Step, UpdatesOnlyWhereItsNameSaysSo) {
  for (const bool update : {false, true}) {
    const ImageConfig config = small_config();
    const ImageNetwork network = place_network(config, small_bench());
    const at::Tensor before = network->parameters()[0].detach().clone();
    Step step(network, config, {}, update ? StepKind::kTrainingWithUpdate : StepKind::kTraining, 2,
              16);
    step.run();
    EXPECT_EQ(network->parameters()[0].equal(before), !update);
    EXPECT_TRUE(network->parameters()[0].grad().defined());
    step.prepare();
    EXPECT_FALSE(network->parameters()[0].grad().defined());
  }
}

TEST(Step, SharesABatch) {
  const ImageConfig config = small_config();
  const ImageNetwork network = place_network(config, small_bench());
  const auto gradient = [&](Step& step) {
    step.prepare();
    step.run();
    return network->parameters()[0].grad().clone();
  };
  Step step(network, config, {}, StepKind::kTraining, 2, 16);
  Step other(network, config, {}, StepKind::kTraining, 2, 16);
  const at::Tensor before = gradient(step);
  EXPECT_FALSE(gradient(other).equal(before));
  other.share_batch(step);
  EXPECT_TRUE(gradient(other).equal(before));
  step.draw_images();
  const at::Tensor after = gradient(step);
  EXPECT_FALSE(after.equal(before));
  EXPECT_TRUE(gradient(other).equal(after));
}

TEST(Sweep, MeasuresEveryNetworkAtEverySize) {
  const Sweep sweep = sweep_resolutions(small_bench(), "ours", small_config(), {24, 16, 24},
                                        {PlainKind::kAttention, PlainKind::kConvolution});
  EXPECT_EQ(sweep.sizes, (std::vector<int64_t>{16, 24}));
  ASSERT_EQ(sweep.curves.size(), 3u);
  for (const Curve& curve : sweep.curves) {
    EXPECT_EQ(curve.training.size(), 2u);
    EXPECT_EQ(curve.inference.size(), 2u);
    EXPECT_GT(curve.parameters, 0);
  }
  EXPECT_EQ(sweep.findings.size(), 4u);  // two rivals, two kinds of step
  EXPECT_THROW(sweep_resolutions(small_bench(), "ours", small_config(), {}, {}), InvalidArgument);
  EXPECT_THROW(
      sweep_resolutions(small_bench(), "ours", small_config(), {2}, {PlainKind::kAttention}),
      InvalidArgument);
}

// Even at sizes where one is several times as fast: a single step has no spread at all.
TEST(Sweep, TellsNoLeadFromFewSteps) {
  Bench bench = small_bench();
  bench.protocol.repetitions = 2;
  const Sweep sweep =
      sweep_resolutions(bench, "ours", small_config(), {16, 24}, {PlainKind::kAttention});
  ASSERT_EQ(sweep.findings.size(), 2u);
  for (const std::string& sentence : sweep.findings)
    EXPECT_NE(sentence.find("can be told from fewer than 3 repetitions"), std::string::npos);
  bench.protocol.repetitions = 3;
  for (const std::string& sentence :
       sweep_resolutions(bench, "ours", small_config(), {16, 24}, {PlainKind::kAttention}).findings)
    EXPECT_EQ(sentence.find("repetitions"), std::string::npos) << sentence;
}

// The numbers of parameters that the publication's steps have.
TEST(Ladder, StepsAreTheAuthorsNetworks) {
  const std::vector<Rung> rungs = acceleration_ladder(named_model("vmamba_tiny_s1l8"));
  const auto parameters = [&](const std::string& step) {
    const auto found = std::find_if(rungs.begin(), rungs.end(),
                                    [&](const Rung& rung) { return rung.step == step; });
    return count_cost(found->config, 224, 224).parameters;
  };
  for (const char* step : {"vanilla", "a", "b", "c"}) EXPECT_EQ(parameters(step), 22893448) << step;
  EXPECT_EQ(parameters("d"), 28991656);
  EXPECT_EQ(parameters("e"), 26247592);
  EXPECT_EQ(parameters("e.1"), 26283880);
  EXPECT_EQ(parameters("f"), 30705832);
  EXPECT_EQ(parameters("g"), 30249064);
  EXPECT_EQ(rungs.back().paper_training, 571);
  VMambaConfig narrow = named_model("vmamba_tiny_s1l8");
  narrow.dims = {8};
  EXPECT_EQ(acceleration_ladder(narrow).back().paper_training, 0);  // not the authors' network
}

TEST(ScanModes, CompareEveryRoundWithTheSameRoundOfCross) {
  const ScanModes modes = compare_scan_modes(small_bench(), small_config(), 16, 4);
  ASSERT_EQ(modes.modes.size(), 5u);
  for (const ModeResult& mode : modes.modes) {
    EXPECT_EQ(mode.rates.size(), 4u);
    EXPECT_GE(mode.rate.most, mode.rate.least);
    if (mode.mode == "cross") {
      EXPECT_DOUBLE_EQ(mode.relative.median, 1);
      EXPECT_DOUBLE_EQ(mode.relative.deviation, 0);
    } else {
      EXPECT_GT(mode.relative.deviation, 0);
    }
  }
}

// Images that no address space holds.
TEST(ScanModes, HaveNoRatesWhereNotEvenOneImageFits) {
  const ScanModes modes = compare_scan_modes(small_bench(), small_config(), int64_t{3} << 21, 2);
  EXPECT_EQ(modes.batch, 0);
  ASSERT_EQ(modes.modes.size(), 5u);
  for (const ModeResult& mode : modes.modes) {
    EXPECT_TRUE(mode.rates.empty());
    EXPECT_EQ(mode.relative.count, 0);
  }
}

TEST(States, HavePlansForAGpuThatNeedNotBeHere) {
  const StatesCost cost =
      cost_of_states(small_bench(), small_config(), 16, {16, 1, 4}, find_gpu("h100"));
  ASSERT_EQ(cost.rows.size(), 3u);
  EXPECT_EQ(cost.rows[0].states, 1);
  EXPECT_EQ(cost.rows[0].planned_forward.kernels, "ss2d");
  EXPECT_EQ(cost.rows[2].planned_forward.kernels, "selective_scan");
  for (const StatesRow& row : cost.rows) {
    EXPECT_GT(row.planned_backward.occupancy, 0);
    EXPECT_LE(row.planned_backward.occupancy, 1);
    EXPECT_GT(row.planned_forward.shared_bytes, 0);
    EXPECT_GT(row.training.seconds.median, 0);
    EXPECT_GT(row.scratch_bytes, 0);
  }
  EXPECT_THROW(cost_of_states(small_bench(), small_config(), 16, {0}, find_gpu("h100")),
               InvalidArgument);
}

// More states than any memory holds the weights of: a row all the same, and so are those before it.
TEST(States, GoOnWhereMemoryRunsOut) {
  const int64_t too_many = int64_t{1} << 40;
  std::string said;
  Bench bench = small_bench();
  bench.say = [&](const std::string& text) { said += text + '\n'; };
  const StatesCost cost =
      cost_of_states(bench, small_config(), 16, {1, too_many}, find_gpu("h100"));
  ASSERT_EQ(cost.rows.size(), 2u);
  EXPECT_TRUE(cost.rows[0].forward.measured());
  EXPECT_TRUE(cost.rows[0].training.measured());
  EXPECT_FALSE(cost.rows[1].forward.measured());
  EXPECT_FALSE(cost.rows[1].training.measured());
  EXPECT_NE(said.find("out of memory with " + std::to_string(too_many)), std::string::npos) << said;
}

// Everything at once, as the program gives it out.
Findings small_findings() {
  const Bench bench = small_bench();
  VMambaConfig config = small_config();
  Findings findings;
  findings.model = "<small> & co";
  findings.parameters = 12345;
  findings.size = 16;
  findings.protocol = bench.protocol;
  findings.machine = describe_machine();
  for (const StepKind kind : {StepKind::kInference, StepKind::kTraining}) {
    findings.measurements.push_back(measure_network(bench, config, kind, 16));
    findings.breakdowns.push_back({kind, break_down_step(bench, config, kind, 16)});
  }
  findings.measurements.back().batch = 0;  // as if nothing had fitted
  findings.sweep = sweep_resolutions(bench, "ours", config, {16, 24}, {PlainKind::kAttention});
  config.dims = {8};
  findings.ladder = climb_ladder(bench, config, 32);
  findings.modes = compare_scan_modes(bench, config, 16, 3);
  findings.states = cost_of_states(bench, config, 16, {1, 4}, find_gpu("h100"));
  return findings;
}

TEST(Findings, ReadWellOnATerminalAndAsCsvAndAsAPage) {
  const Findings findings = small_findings();

  std::istringstream text(to_text(findings));
  int lines = 0;
  for (std::string line; std::getline(text, line); ++lines) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_GT(lines, 40);

  std::istringstream csv(to_csv(findings));
  std::string line;
  std::getline(csv, line);
  const auto commas = [](const std::string& s) { return std::count(s.begin(), s.end(), ','); };
  const auto expected = commas(line);
  int rows = 0;
  for (; std::getline(csv, line); ++rows)
    EXPECT_EQ(commas(line) - (line.find('"') == std::string::npos ? 0 : 1), expected) << line;
  // Two of the model, eight of the sweep, eighteen of the ladder, fifteen rounds, four of states.
  EXPECT_EQ(rows, 2 + 8 + 18 + 15 + 4);

  const nlohmann::json document = to_json(findings);
  EXPECT_EQ(document["ladder"].size(), 9u);
  EXPECT_EQ(document["measurements"][1]["batch"], 0);
  EXPECT_FALSE(document["measurements"][1].contains("images_per_s"));
  EXPECT_EQ(document["scan_modes"]["modes"].size(), 5u);
}

// As if memory had run out for cross, which others are compared with, and training of four states.
TEST(Findings, SayWhatDidNotFitTheMemory) {
  Findings findings = small_findings();
  findings.modes->modes[2] = {};
  findings.modes->modes[2].mode = "cross";
  for (ModeResult& mode : findings.modes->modes) mode.relative = {};
  findings.states->rows[1].training = {};

  std::istringstream text(to_text(findings));
  int told = 0;
  for (std::string line; std::getline(text, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    told += line.find(kNoMemory) != std::string::npos;
  }
  EXPECT_EQ(told, 4);  // the model's training has a rate and times
  const std::vector<Table> model = throughput_tables(findings);
  EXPECT_EQ(model[0].rows[1], (std::vector<std::string>{"training", "fp32", "-", kNoMemory, "-",
                                                        "-", "-", "-", "-"}));
  EXPECT_EQ(model[0].notes.at(1), "training in fp32: not even one image fits the memory.");
  for (std::size_t i = 3; i < model[1].rows[1].size(); ++i) EXPECT_EQ(model[1].rows[1][i], "-");

  const std::string csv = to_csv(findings);
  EXPECT_NE(csv.find("\nscan modes,cross,training,fp32,16,0,,,,,,,,,,,\n"), std::string::npos);
  EXPECT_NE(csv.find("\nstates,4,forward,fp32,16,2,,,,,"), std::string::npos);
  EXPECT_NE(csv.find("\nstates,4,forward and backward,fp32,16,0,,,,,,,,,,,\n"), std::string::npos);

  const nlohmann::json document = to_json(findings);
  const nlohmann::json none = {{"no_memory", true}};
  EXPECT_EQ(document["scan_modes"]["modes"][2],
            nlohmann::json({{"mode", "cross"}, {"no_memory", true}}));
  EXPECT_GT(document["scan_modes"]["modes"][0]["images_per_s"]["median"], 0);
  EXPECT_FALSE(document["scan_modes"]["modes"][0].contains("over_cross"));
  EXPECT_EQ(document["states"]["rows"][1]["forward_and_backward"], none);
  EXPECT_GT(document["states"]["rows"][1]["forward"]["ms_median"], 0);

  const std::string page = page_of(findings);
  EXPECT_NE(page.find(kNoMemory), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
}

TEST(Findings, NameTheBatchOfABreakdownThatIsSmallerThanTheTables) {
  Findings findings;
  Breakdown breakdown;
  breakdown.seconds[0] = 1e-3;
  breakdown.batch = breakdown.asked_batch = 1024;
  findings.breakdowns = {{StepKind::kInference, breakdown}};
  EXPECT_EQ(breakdown_tables(findings)[0].title, "Breakdown of a step");
  EXPECT_EQ(page_of(findings).find("batch 512"), std::string::npos);
  breakdown.batch = 512;
  findings.breakdowns.push_back({StepKind::kTraining, breakdown});
  findings.breakdowns.push_back({StepKind::kTrainingWithUpdate, breakdown});
  EXPECT_EQ(breakdown_tables(findings)[0].title,
            "Breakdown of a step (batch: training 512, training with update 512)");
  EXPECT_NE(page_of(findings).find("ms, batch 512<"), std::string::npos);
  EXPECT_EQ(
      to_json(findings)["breakdown_batch"],
      nlohmann::json({{"inference", 1024}, {"training", 512}, {"training with update", 512}}));
}

Measurement measured_with(std::vector<double> seconds) {
  Measurement measurement;
  measurement.batch = measurement.asked_batch = 1;
  measurement.timed.seconds = summarise(std::move(seconds));
  return measurement;
}

TEST(Findings, MarkRatesThatVaryTooMuch) {
  const Measurement steady = measured_with({1, 1.1, 1.05}), noisy = measured_with({1, 2, 1}),
                    single = measured_with({1});
  EXPECT_EQ(marked_rate(steady), "0.952");
  EXPECT_EQ(marked_rate(noisy), "1.000~");
  EXPECT_EQ(spread(steady.timed), "4.8");
  EXPECT_EQ(spread(noisy.timed), "43.3");
  EXPECT_EQ(spread(single.timed), "-");
  EXPECT_TRUE(notes_on_spread({steady, Measurement()}).empty());
  ASSERT_EQ(notes_on_spread({steady, noisy}).size(), 1u);
  EXPECT_TRUE(notes_on_spread({steady, noisy})[0].starts_with("~ "));
  EXPECT_EQ(notes_on_spread({noisy, single}).size(), 2u);

  Findings findings;
  findings.sweep = {.sizes = {16}, .curves = {{"ours", 1, {noisy}, {steady}}}, .findings = {}};
  const std::vector<Table> sweep = sweep_tables(findings);
  EXPECT_EQ(sweep[0].rows[0], (std::vector<std::string>{"16", "1.000~", "43.3"}));
  EXPECT_TRUE(sweep[0].notes[0].starts_with("~ "));
  EXPECT_TRUE(sweep[1].notes.empty());
  RungResult rung;
  rung.rung.change = "news";
  rung.inference = noisy;
  findings.ladder = {rung};
  const Table ladder = ladder_tables(findings)[0];
  EXPECT_EQ(ladder.rows[0][2], "1.000~");
  EXPECT_TRUE(ladder.notes.at(1).starts_with("~ "));
  EXPECT_NE(page_of(findings).find("do not rely on the figure"), std::string::npos);
}

TEST(Page, IsOneFileThatFetchesNothing) {
  const std::string page = page_of(small_findings());
  for (const char* outside : {"src=", "href=", "<link", "@import", "url("})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.find("<small> & co"), std::string::npos);
  EXPECT_NE(page.find("&lt;small&gt; &amp; co"), std::string::npos);
  for (const char* heading : {"Where a step's time goes", "Throughput and image size",
                              "Acceleration ladder", "Scan modes", "Number of states", "Machine"})
    EXPECT_NE(page.find(heading), std::string::npos) << heading;
  EXPECT_EQ(page.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace linescan::lab
