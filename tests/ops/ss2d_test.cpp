// ss2d on the CPU against the double reference: every route, type, layout and instruction set,
// planes that straddle vectors, blocks, lines and tiles.

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "linescan/base/error.h"
#include "linescan/device/simd_target.h"
#include "linescan/ops/ss2d/route.h"
#include "linescan/ops/ss2d/sample.h"
#include "tests/support/judging.h"
#include "tests/support/messages.h"

namespace linescan::testing {
namespace {

using Case = Ss2dCase;
using Problem = Ss2dSample;

class Ss2d : public ::testing::TestWithParam<Case> {};

TEST_P(Ss2d, AgreesWithReferenceOnEveryInstructionSet) {
  const std::string best = simd_target();
  for (const std::string& target : simd_targets()) {
    SCOPED_TRACE(target);
    force_simd_target(target);
    Problem p(GetParam());
    p.run();
    expect_passed(p.judge());
  }
  force_simd_target(best);
}

std::vector<Case> every_route() {
  std::vector<Case> cases;
  for (int64_t code = 0; code < kRouteCodes; ++code)
    cases.push_back({.channels = 3, .height = 6, .width = 9, .routes = {code}});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Routes, Ss2d, ::testing::ValuesIn(every_route()));

INSTANTIATE_TEST_SUITE_P(
    Sizes, Ss2d,
    ::testing::Values(
        Case{}, Case{.batch = 1, .channels = 1, .height = 1, .width = 1},
        Case{.batch = 1, .height = 1, .width = 100}, Case{.batch = 1, .height = 100, .width = 1},
        Case{.batch = 1, .channels = 17, .height = 9, .width = 13, .states = 3, .rank = 5},
        Case{.batch = 1, .channels = 65, .height = 7, .width = 7, .states = 2, .rank = 6},
        Case{.batch = 1, .channels = 130, .height = 14, .width = 14, .rank = 9},
        Case{.batch = 1, .channels = 2, .height = 56, .width = 56, .rank = 2},
        Case{.batch = 40, .channels = 4, .height = 3, .width = 3},
        Case{.batch = 3, .channels = 8, .height = 6, .width = 5, .states = 40},
        Case{.routes = {0, 0, 6}}, Case{.routes = {8, 10, 9, 11, 0}},
        Case{.channels = 20, .height = 40, .width = 3, .routes = {9, 15}}));

INSTANTIATE_TEST_SUITE_P(
    TypesAndLayouts, Ss2d,
    ::testing::Values(Case{.channels = 37, .layout = Layout::kLengthLast},
                      Case{.channels = 37, .layout = Layout::kGaps},
                      Case{.channels = 37, .misalign = 1},
                      Case{.channels = 37, .states = 2, .dtype = DType::kBFloat16},
                      Case{.channels = 37,
                           .states = 2,
                           .dtype = DType::kBFloat16,
                           .out_dtype = DType::kBFloat16,
                           .float_weight = true},
                      Case{.channels = 37,
                           .dtype = DType::kFloat16,
                           .layout = Layout::kLengthLast,
                           .out_dtype = DType::kFloat16},
                      Case{.channels = 37,
                           .states = 2,
                           .rank = 3,
                           .dtype = DType::kFloat64,
                           .out_dtype = DType::kFloat64},
                      Case{.channels = 37,
                           .dtype = DType::kFloat64,
                           .layout = Layout::kLengthLast,
                           .out_dtype = DType::kFloat64}));

TEST(Ss2dOperator, EmptySizesGiveEmptyResultsAndZeroGradients) {
  for (const Case& c : {Case{.batch = 0}, Case{.height = 0}, Case{.width = 0}}) {
    Problem p(c);
    p.run();
    EXPECT_EQ(read_element(p.gA_log.view(), 0, 0), 0) << c;
  }
}

TEST(Ss2dOperator, ResultsDoNotDependOnThreads) {
  const Case c{.batch = 5, .channels = 150, .height = 9, .width = 8, .states = 2, .rank = 3};
  Problem one(c), many(c);
  one.run();
  many.run(
      [](int64_t count, const ParallelBody& body) {
        std::vector<std::jthread> threads;
        for (int64_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i, i + 1); });
      },
      7);
  EXPECT_EQ(one.out.bytes(), many.out.bytes());
  EXPECT_EQ(one.gx.bytes(), many.gx.bytes());
  EXPECT_EQ(one.gprojection.bytes(), many.gprojection.bytes());
  EXPECT_EQ(one.gdt_weight.bytes(), many.gdt_weight.bytes());
  EXPECT_EQ(one.gA_log.bytes(), many.gA_log.bytes());
}

TEST(Ss2dOperator, NotFiniteInputStaysInItsChannel) {
  const Case c{.channels = 20};
  Problem clean(c), dirty(c);
  dirty.x.set(0, 3, 2, 2, NAN);
  clean.run();
  dirty.run();
  for_each_index(clean.out.view().shape, [&](int64_t b, int64_t channel, int64_t h, int64_t w) {
    if (b == 0 && channel == 3) return;
    EXPECT_EQ(read_element(dirty.out.view(), b, channel, h, w),
              read_element(clean.out.view(), b, channel, h, w));
  });
  EXPECT_TRUE(std::isnan(read_element(dirty.out.view(), 0, 3, 2, 2)));
}

TEST(Ss2dRoute, VisitsEveryPixelOnceInTheOrderOfItsBits) {
  for (int64_t code = 0; code < kRouteCodes; ++code) {
    const Route route(code, 3, 4);
    std::set<int64_t> seen;
    for (int64_t line = 0; line < route.lines; ++line)
      for (int64_t i = 0; i < route.line_length; ++i) seen.insert(route.pixel(line, i));
    EXPECT_EQ(seen.size(), 12) << code;
    EXPECT_EQ(*seen.rbegin(), 11) << code;
  }
  EXPECT_EQ(Route(0, 3, 4).pixel(0, 1), 1);
  EXPECT_EQ(Route(1, 3, 4).pixel(0, 1), 4);
  EXPECT_EQ(Route(6, 3, 4).pixel(0, 1), 10);
  EXPECT_EQ(Route(7, 3, 4).pixel(0, 1), 7);
  EXPECT_EQ(Route(2, 3, 4).pixel(1, 0), 7);
  EXPECT_EQ(Route(4, 3, 4).pixel(0, 0), 8);
}

TEST(Ss2dCheck, NamesWhatDoesNotFit) {
  const auto message = [](auto&& spoil) {
    Problem p(Case{});
    spoil(p);
    return testing::refusal_of([&] { check(p.problem); });
  };
  EXPECT_EQ(message([](Problem&) {}), "accepted");
  EXPECT_EQ(message([](Problem& p) { p.routes[2] = 16; }),
            "ss2d: routes[2] is 16, expected four bits, 0 to 15");
  EXPECT_EQ(message([](Problem& p) { p.problem.route_count = 0; }),
            "ss2d: routes is empty, expected at least one route");
  EXPECT_EQ(message([](Problem& p) {
              p.problem.A_log.shape = {6, 1};
            }),
            "ss2d: A_log has shape [6, 1], expected [24, states] = [routes * channels, states], "
            "states >= 1");
  EXPECT_EQ(message([](Problem& p) {
              p.problem.dt_weight.shape = {4, 6, 0};
            }),
            "ss2d: dt_proj_weight has shape [4, 6, 0], expected [4, 6, rank] = [routes, channels, "
            "rank], rank >= 1");
  EXPECT_EQ(message([](Problem& p) { p.problem.D.shape = {6}; }),
            "ss2d: D has shape [6], expected [24] = [routes * channels]");
  EXPECT_EQ(message([](Problem& p) { p.problem.dt_bias.dtype = DType::kBFloat16; }),
            "ss2d: dt_proj_bias is bfloat16, expected float32 (float32, or float64 for float64 "
            "data)");
  EXPECT_EQ(message([](Problem& p) { p.problem.x.strides[2] += 1; }),
            "ss2d: x has strides [210, 1, 43, 6], expected rows that follow each other: stride of "
            "height = width * stride of width");
}

TEST(Ss2dPlanner, PlanIsAValue) {
  const Ss2dSize size{
      .batch = 8, .channels = 96, .height = 56, .width = 56, .states = 1, .rank = 6, .routes = 4};
  EXPECT_EQ(plan(size, Pass::kForward, 2), plan(size, Pass::kForward, 2));
  EXPECT_EQ(plan(size, Pass::kForward, 2).tasks, 16);
  EXPECT_FALSE(plan(size, Pass::kForward, 2).stage_planes);
  EXPECT_EQ(plan(size, Pass::kForward, 2).exponentials, 8 * 96 * 56 * 56 * 4 * 3);
}

}  // namespace
}  // namespace linescan::testing
