// selective_scan's CUDA kernels against the double reference: on the GPU, or on the CPU through the
// emulator. Every option, type and layout, sizes on both sides of every tile edge.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "linescan/base/error.h"
#include "linescan/base/math.h"
#include "linescan/ops/selective_scan/sample.h"
#include "tests/support/gpu_sample.h"
#include "tests/support/judging.h"

namespace linescan::testing {
namespace {

using Case = SelectiveScanCase;
using Sample = SelectiveScanSample;

// Forward and backward with the given plans; with the chosen ones if there are none.
void run_on_gpu(Sample& sample, const SelectiveScanGpuPlan* forward_plan = nullptr,
                const SelectiveScanGpuPlan* backward_plan = nullptr, bool keep_states = false) {
  check(sample.problem);
  check_gpu(sample.problem);
  GpuTensors tensors;
  const auto on_gpu = [&](SampleTensor& tensor) { return tensors.take(tensor); };
  SelectiveScanProblem problem = {on_gpu(sample.u),       on_gpu(sample.delta),
                                  on_gpu(sample.A),       on_gpu(sample.B),
                                  on_gpu(sample.C),       on_gpu(sample.D),
                                  on_gpu(sample.bias),    on_gpu(sample.z),
                                  on_gpu(sample.initial), sample.problem.delta_softplus,
                                  on_gpu(sample.out),     on_gpu(sample.last)};
  SelectiveScanGradients gradients = {
      on_gpu(sample.gout),  on_gpu(sample.glast), on_gpu(sample.gu),      on_gpu(sample.gdelta),
      on_gpu(sample.gA),    on_gpu(sample.gB),    on_gpu(sample.gC),      on_gpu(sample.gD),
      on_gpu(sample.gbias), on_gpu(sample.gz),    on_gpu(sample.ginitial)};
  SampleTensor states({gpu_kept_states(size_of(problem))}, DType::kFloat32);
  if (keep_states && states.view().shape[0] > 0) problem.states = on_gpu(states);
  const SelectiveScanSize size = size_of(problem);
  const auto chosen = [&](const SelectiveScanGpuPlan* given, Pass pass) {
    return given ? *given : plan(size, pass, test_gpu());
  };
  const SelectiveScanGpuPlan ahead = chosen(forward_plan, Pass::kForward);
  GpuWorkspace forward_workspace(ahead.workspace_bytes);
  forward(problem, ahead, forward_workspace.data(), GpuStream{});
  const SelectiveScanGpuPlan back = chosen(backward_plan, Pass::kBackward);
  GpuWorkspace backward_workspace(back.workspace_bytes);
  backward(problem, gradients, back, backward_workspace.data(), GpuStream{});
  tensors.bring_back();
}

void expect_right(const Sample& sample, const Case& c, const Sample::Expected& expected) {
  const bool cut = c.states > 1;  // one state is summed in float32 whatever the type
  expect_passed(sample.judge(expected, kSelectiveScanBound,
                             cut ? selective_scan_gpu_factor_bound(c.dtype) : kSelectiveScanBound));
}
// Half data of one state has a shorter softplus.
Sample::Expected expected_of(const Sample& sample, const Case& c) {
  return sample.expected(c.states == 1 && size_of(c.dtype) == 2);
}
void expect_right(const Sample& sample, const Case& c) {
  expect_right(sample, c, expected_of(sample, c));
}

void expect_same_bits(const Sample& one, const Sample& other) {
  EXPECT_EQ(one.out.bytes(), other.out.bytes());
  EXPECT_EQ(one.last.bytes(), other.last.bytes());
  EXPECT_EQ(one.gu.bytes(), other.gu.bytes());
  EXPECT_EQ(one.gdelta.bytes(), other.gdelta.bytes());
  EXPECT_EQ(one.gA.bytes(), other.gA.bytes());
  EXPECT_EQ(one.gB.bytes(), other.gB.bytes());
  EXPECT_EQ(one.gC.bytes(), other.gC.bytes());
  EXPECT_EQ(one.gD.bytes(), other.gD.bytes());
  EXPECT_EQ(one.gbias.bytes(), other.gbias.bytes());
  EXPECT_EQ(one.gz.bytes(), other.gz.bytes());
  EXPECT_EQ(one.ginitial.bytes(), other.ginitial.bytes());
}
// That a second run gives the same bits.
void expect_again(const Sample& one, const Case& c,
                  const SelectiveScanGpuPlan* forward_plan = nullptr,
                  const SelectiveScanGpuPlan* backward_plan = nullptr) {
  if (!repeats()) return;
  Sample again(c);
  run_on_gpu(again, forward_plan, backward_plan);
  expect_same_bits(one, again);
}

// Runs the problem with the steps of every group shuffled in memory, and brings the results back into
// the sample's order. `shared`: all groups read the u and the gradient of out of the first one.
void run_in_order(Sample& sample, const Case& c, bool shared) {
  std::mt19937_64 random(3);
  SampleTensor order({c.groups * c.length}, DType::kFloat32);  // 32-bit integers
  auto* const places = reinterpret_cast<int32_t*>(order.view().as<float>());
  for (int64_t group = 0; group < c.groups; ++group) {
    int32_t* const first = places + group * c.length;
    std::iota(first, first + c.length, 0);
    if (group == 0 || !shared) std::shuffle(first, first + c.length, random);
    if (group > 0 && shared) std::copy(places, first, first);
  }
  const int64_t group_channels = c.channels / c.groups;
  const auto place = [&](int64_t group, int64_t t) { return places[group * c.length + t]; };
  // [batch, channels, length] and [batch, groups, states, length]: `to` shuffled, or back.
  const auto move = [&](const SampleTensor& from, SampleTensor& to, bool back) {
    if (from.view().shape.rank() == 3)
      for_each_index(from.view().shape, [&](int64_t b, int64_t i, int64_t t, int64_t) {
        const int64_t at = place(i / group_channels, t);
        if (!back && i >= to.view().shape[1]) return;
        to.set(b, i, back ? t : at, 0, read_element(from.view(), b, i, back ? at : t));
      });
    else
      for_each_index(from.view().shape, [&](int64_t b, int64_t g, int64_t n, int64_t t) {
        const int64_t at = place(g, t);
        to.set(b, g, n, back ? t : at, read_element(from.view(), b, g, n, back ? at : t));
      });
  };
  const Shape all{c.batch, c.channels, c.length},
      some{c.batch, shared ? group_channels : c.channels, c.length},
      factor{c.batch, c.groups, c.states, c.length};
  const auto empty = [&](const Shape& shape, DType dtype) {
    return SampleTensor(shape, dtype, Layout::kChannelsLast);
  };
  SampleTensor u = empty(some, c.dtype), delta = empty(all, c.dtype), B = empty(factor, c.dtype),
               C = empty(factor, c.dtype), out = empty(all, c.out_dtype),
               gout = empty(some, c.out_dtype), gu = empty(all, c.dtype),
               gdelta = empty(all, c.dtype), gB = empty(factor, c.dtype),
               gC = empty(factor, c.dtype);
  move(sample.u, u, false), move(sample.delta, delta, false), move(sample.gout, gout, false);
  move(sample.B, B, false), move(sample.C, C, false);
  {
    GpuTensors tensors;
    const auto on_gpu = [&](SampleTensor& tensor) { return tensors.take(tensor); };
    SelectiveScanProblem problem = {on_gpu(u),
                                    on_gpu(delta),
                                    on_gpu(sample.A),
                                    on_gpu(B),
                                    on_gpu(C),
                                    on_gpu(sample.D),
                                    on_gpu(sample.bias),
                                    {},
                                    on_gpu(sample.initial),
                                    sample.problem.delta_softplus,
                                    on_gpu(out),
                                    on_gpu(sample.last)};
    problem.order = reinterpret_cast<const int32_t*>(on_gpu(order).as<float>());
    SelectiveScanGradients gradients = {on_gpu(gout),
                                        on_gpu(sample.glast),
                                        on_gpu(gu),
                                        on_gpu(gdelta),
                                        on_gpu(sample.gA),
                                        on_gpu(gB),
                                        on_gpu(gC),
                                        on_gpu(sample.gD),
                                        on_gpu(sample.gbias),
                                        {},
                                        on_gpu(sample.ginitial)};
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const SelectiveScanGpuPlan chosen = plan(size_of(problem), pass, test_gpu());
      EXPECT_TRUE(chosen.channels_last);
      GpuWorkspace workspace(chosen.workspace_bytes);
      if (pass == Pass::kForward)
        forward(problem, chosen, workspace.data(), GpuStream{});
      else
        backward(problem, gradients, chosen, workspace.data(), GpuStream{});
    }
    tensors.bring_back();
  }
  move(out, sample.out, true), move(gu, sample.gu, true), move(gdelta, sample.gdelta, true);
  move(gB, sample.gB, true), move(gC, sample.gC, true);
}

class SelectiveScanGpu : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  }
};

TEST_P(SelectiveScanGpu, AgreesWithReference) {
  Sample p(GetParam());
  run_on_gpu(p);
  expect_right(p, GetParam());
  expect_again(p, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, SelectiveScanGpu,
    ::testing::Values(Case{}, Case{.batch = 1, .channels = 1, .length = 1},
                      Case{.channels = 15, .length = 31}, Case{.channels = 33, .length = 16},
                      Case{.channels = 32, .length = 17}, Case{.channels = 70, .length = 49},
                      Case{.channels = 12, .groups = 4, .length = 196, .states = 16},
                      Case{.batch = 1, .channels = 9, .length = 784, .states = 5},
                      Case{.batch = 1, .channels = 3, .length = 3136},
                      Case{.batch = 1, .channels = 2, .length = 4097, .states = 3},
                      Case{.batch = 1, .channels = 4, .length = 65, .states = 64},
                      Case{.batch = 1, .channels = 4, .length = 70, .states = 256},
                      Case{.batch = 1, .channels = 2, .length = 530, .states = 300},
                      Case{.batch = 1, .channels = 2, .length = 33, .states = 1024},
                      Case{.batch = 7, .channels = 130, .groups = 2, .length = 40, .states = 3}));

INSTANTIATE_TEST_SUITE_P(
    Options, SelectiveScanGpu,
    ::testing::Values(Case{.length = 40, .softplus = false}, Case{.length = 40, .bias = false},
                      Case{.length = 40, .gate = true}, Case{.length = 40, .skip = false},
                      Case{.length = 140, .states = 2, .initial = true},
                      Case{.length = 40, .states = 3, .constant_B = true},
                      Case{.length = 140, .states = 3, .constant_C = true},
                      Case{.batch = 70, .channels = 200, .length = 40, .constant_C = true},
                      Case{.channels = 20,
                           .length = 70,
                           .states = 2,
                           .softplus = false,
                           .bias = false,
                           .gate = true,
                           .skip = false,
                           .initial = true,
                           .constant_B = true,
                           .constant_C = true},
                      Case{.channels = 70,
                           .groups = 2,
                           .length = 70,
                           .states = 20,
                           .gate = true,
                           .initial = true}));

// Few rows are shared by many lanes, many rows have a lane each.
std::vector<Case> types_and_layouts() {
  std::vector<Case> cases;
  for (const Layout layout : {Layout::kLengthLast, Layout::kChannelsLast, Layout::kGaps})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
      for (const int misalign : {0, 1, 3})
        for (const int64_t batch : {1, 50})
          cases.push_back({.batch = batch,
                           .channels = 37,
                           .length = batch == 1 ? 141 : 41,
                           .states = 2,
                           .dtype = dtype,
                           .layout = layout,
                           .gate = misalign == 1,
                           .initial = misalign == 0,
                           .out_dtype = misalign == 3 ? dtype : DType::kFloat32,
                           .misalign = misalign});
  // Whole rows of odd lengths in one copy, and rows that allow eight or sixteen bytes each.
  for (const int64_t length : {1, 7, 16, 49, 196, 64})
    cases.push_back({.batch = 3,
                     .channels = 64,
                     .length = length,
                     .states = 2,
                     .dtype = DType::kBFloat16,
                     .out_dtype = DType::kBFloat16});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(TypesAndLayouts, SelectiveScanGpu,
                         ::testing::ValuesIn(types_and_layouts()));

#define SKIP_WITHOUT_GPU \
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu()

// Where several cases go through all plans, each takes one of so many on the emulator, for its time, and all on GPUs.
#ifdef LINESCAN_CUDA_ON_CPU
constexpr std::size_t kStep = 2;
#else
constexpr std::size_t kStep = 1;
#endif

// All legal plans that `is_meant` accepts, or `step` apart from the `first` on.
void expect_all_plans_agree(const Case& c, bool (*is_meant)(const SelectiveScanGpuPlan&) = nullptr,
                            std::size_t first = 0, std::size_t step = 1) {
  const SelectiveScanSize size = size_of(Sample(c).problem);
  auto ahead = legal_plans(size, Pass::kForward, test_gpu());
  auto back = legal_plans(size, Pass::kBackward, test_gpu());
  if (is_meant != nullptr)
    for (auto* plans : {&ahead, &back}) {
      std::erase_if(*plans, [&](const SelectiveScanGpuPlan& p) { return !is_meant(p); });
      ASSERT_FALSE(plans->empty());
    }
  const Sample::Expected expected = expected_of(Sample(c), c);
  for (std::size_t i = first; i < std::max(ahead.size(), back.size()); i += step) {
    Sample p(c);
    const SelectiveScanGpuPlan& one = ahead[i % ahead.size()];
    const SelectiveScanGpuPlan& other = back[i % back.size()];
    SCOPED_TRACE(to_string(one) + to_string(other));
    run_on_gpu(p, &one, &other);
    expect_right(p, c, expected);
    expect_again(p, c, &one, &other);
  }
}

TEST(SelectiveScanGpuPlans, AllAgreeWithReference) {
  SKIP_WITHOUT_GPU;
  expect_all_plans_agree(
      {.batch = 2, .channels = 24, .groups = 2, .length = 70, .states = 5, .initial = true});
}

// On the emulator a plan meets one case of each type: of 5 states the one, of 18 the other.
TEST(SelectiveScanGpuPlans, AllForManyStatesAgreeWithReference) {
  SKIP_WITHOUT_GPU;
  std::size_t turn = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (const DType out_dtype : {DType::kFloat32, dtype}) {
      expect_all_plans_agree({.batch = 2,
                              .channels = 5,
                              .length = out_dtype == dtype ? 40 : 37,
                              .states = out_dtype == dtype ? 18 : 5,
                              .dtype = dtype,
                              .bias = out_dtype == dtype,
                              .skip = dtype == DType::kBFloat16,
                              .initial = out_dtype == dtype,
                              .out_dtype = out_dtype},
                             nullptr, (turn + turn / 2) % kStep, kStep);
      ++turn;
    }
}

// Several chunks of states, a tile that is not whole, rows at odd addresses. The same lanes as first kernel of the
// backward pass, before tiles of every length.
TEST(SelectiveScanGpuPlans, LanesThatDivideStatesAgreeWithReference) {
  SKIP_WITHOUT_GPU;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const int64_t lanes : {2, 4, 8}) {
      const Case c{.batch = 2,
                   .channels = 42,
                   .groups = 2,
                   .length = lanes == 4 ? 80 : 77,
                   .states = 37,
                   .dtype = dtype,
                   .bias = lanes != 2,
                   .gate = lanes == 8,
                   .skip = lanes != 4,
                   .initial = true,
                   .out_dtype = lanes == 4 ? dtype : DType::kFloat32,
                   .misalign = lanes == 4 ? 1 : 0};
      SCOPED_TRACE(::testing::Message() << c);
      const SelectiveScanSize size = size_of(Sample(c).problem);
      std::vector<SelectiveScanGpuPlan> ahead = legal_plans(size, Pass::kForward, test_gpu());
      std::erase_if(ahead, [&](const auto& p) { return !p.state_lanes || p.segments != lanes; });
      ASSERT_FALSE(ahead.empty());
      const auto all = legal_plans(size, Pass::kBackward, test_gpu());
      const Sample::Expected expected = expected_of(Sample(c), c);
      for (const int64_t segments : {1, 2, 8, 32}) {
        const auto back =
            std::ranges::find_if(all, [&](const auto& p) { return p.segments == segments; });
        ASSERT_NE(back, all.end());
        SelectiveScanGpuPlan other = *back;
        other.ahead_lanes = lanes;
        Sample sample(c);
        run_on_gpu(sample, &ahead[segments == 1 ? 0 : ahead.size() - 1], &other);
        expect_right(sample, c, expected);
      }
    }
}

std::vector<SelectiveScanGpuPlan> walkers_of(const SelectiveScanSize& size, Pass pass) {
  auto plans = legal_plans(size, pass, test_gpu());
  std::erase_if(plans, [](const SelectiveScanGpuPlan& p) { return !p.walkers; });
  return plans;
}

// Rows that a block lacks, states that a walker lacks, more tiles than places and fewer, a tile that is not whole, odd
// addresses. Backward behind a first kernel; from states that were kept: SeveralKeptStatesAgreeWithReference.
TEST(SelectiveScanGpuPlans, WalkersAgreeWithReference) {
  SKIP_WITHOUT_GPU;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const int64_t states : {2, 16, 29}) {
      const Case c{.batch = 2,
                   .channels = 74,
                   .groups = 2,
                   .length = states == 2    ? 7
                             : states == 16 ? 160
                                            : 117,
                   .states = states,
                   .dtype = dtype,
                   .bias = states != 2,
                   .gate = states == 29,
                   .skip = states != 16,
                   .initial = true,
                   .out_dtype = states == 16 ? dtype : DType::kFloat32,
                   .misalign = states == 16 ? 0 : 1};
      SCOPED_TRACE(::testing::Message() << c);
      const SelectiveScanSize size = size_of(Sample(c).problem);
      const auto ahead = walkers_of(size, Pass::kForward), back = walkers_of(size, Pass::kBackward);
      // Four places for tiles, and two, where shared memory is that large; backward no more than 16 states, and no gate.
      ASSERT_FALSE(ahead.empty());
      if (test_gpu().shared_per_block >= 200 * 1024) {
        EXPECT_EQ(ahead.size(), 2);
        EXPECT_EQ(back.size(), states == 29 ? 0 : 1);
      }
      const Sample::Expected expected = expected_of(Sample(c), c);
      for (const SelectiveScanGpuPlan& one : ahead) {
        Sample sample(c);
        SCOPED_TRACE(to_string(one));
        run_on_gpu(sample, &one, back.empty() ? nullptr : &back[0]);
        expect_right(sample, c, expected);
        expect_again(sample, c, &one, back.empty() ? nullptr : &back[0]);
      }
    }
}

// Backward where a block has all rows of its group, so that sums over rows go straight to the gradients, with a state that a
// walker lacks, behind a first kernel, in slices of the batch.
TEST(SelectiveScanGpuPlans, WalkersOfOneBlockAgreeWithReference) {
  SKIP_WITHOUT_GPU;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    const Case c{.batch = 5,
                 .channels = 40,
                 .groups = 2,
                 .length = 77,
                 .states = 3,
                 .dtype = dtype,
                 .bias = dtype == DType::kFloat32,
                 .skip = dtype == DType::kFloat16,
                 .initial = true,
                 .out_dtype = dtype};
    Sample sample(c);
    auto plans = walkers_of(size_of(sample.problem), Pass::kBackward);
    ASSERT_FALSE(plans.empty());
    EXPECT_EQ(plans[0].blocks, 1);
    plans[0].slice = 2;
    run_on_gpu(sample, nullptr, &plans[0]);
    expect_right(sample, c);
  }
}

// On GPUs all; on the emulator, for its time, of the general variant, which can do this as well and all of whose plans have
// had their turn above, those of two warps.
TEST(SelectiveScanGpuPlans, AllForChannelsLastAgreeWithReference) {
  SKIP_WITHOUT_GPU;
#ifdef LINESCAN_CUDA_ON_CPU
  const auto is_meant = [](const SelectiveScanGpuPlan& p) {
    return p.channels_last || p.warps == 2;
  };
#else
  constexpr std::nullptr_t is_meant = nullptr;
#endif
  std::size_t turn = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32})
    for (const Layout layout : {Layout::kChannelsLast, Layout::kGaps}) {
      expect_all_plans_agree({.batch = 2,
                              .channels = dtype == DType::kFloat16 ? 140 : 70,
                              .groups = 2,
                              .length = dtype == DType::kBFloat16 ? 32 : 37,
                              .states = dtype == DType::kBFloat16 ? 18 : 5,
                              .dtype = dtype,
                              .layout = layout,
                              .bias = dtype != DType::kFloat16,
                              .skip = layout == Layout::kGaps,
                              .initial = dtype != DType::kFloat16,
                              .out_dtype = layout == Layout::kGaps ? dtype : DType::kFloat32},
                             is_meant, (turn + turn / 2) % kStep, kStep);
      ++turn;
    }
}

// A sequence whose steps lie in an order of their own: the same numbers elsewhere.
TEST(SelectiveScanGpuOrder, GivesTheResultsOfTheStepsInOrder) {
  SKIP_WITHOUT_GPU;
  for (const int64_t channels : {32, 37, 128})
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32})
      for (const bool shared : {false, true}) {
        const Case c{.batch = 2,
                     .channels = 2 * channels,
                     .groups = 2,
                     .length = 45,
                     .states = 5,
                     .dtype = dtype,
                     .layout = Layout::kChannelsLast,
                     .initial = true};
        SCOPED_TRACE(channels);
        Sample sample(c);
        if (shared)  // both groups have the same u and gradient of out
          for_each_index(Shape{2, channels, 45}, [&](int64_t b, int64_t i, int64_t t, int64_t) {
            sample.u.set(b, channels + i, t, 0, read_element(sample.u.view(), b, i, t));
            sample.gout.set(b, channels + i, t, 0, read_element(sample.gout.view(), b, i, t));
          });
        run_in_order(sample, c, shared);
        expect_right(sample, c);
      }
}

// No variant but one knows an order: none of the others may be taken in its place.
TEST(SelectiveScanGpuOrder, IsRefusedWhereItWouldNotBeFollowed) {
  SelectiveScanSize size{.batch = 2,
                         .channels = 64,
                         .groups = 2,
                         .length = 45,
                         .states = 5,
                         .length_last = false,
                         .ordered = true};
  for (const Pass pass : {Pass::kForward, Pass::kBackward})
    EXPECT_TRUE(plan(size, pass, find_gpu("h100")).channels_last);
  size.gate = true;
  for (const Pass pass : {Pass::kForward, Pass::kBackward})
    EXPECT_THROW(plan(size, pass, find_gpu("h100")), Unsupported);
}

TEST(SelectiveScanGpuPlans, AllForOneStateAgreeWithReference) {
  SKIP_WITHOUT_GPU;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const DType out_dtype : {DType::kFloat32, dtype})
      expect_all_plans_agree({.batch = 2,
                              .channels = 38,
                              .groups = 2,
                              .length = dtype == DType::kFloat16 ? 531 : 140,
                              .states = 1,
                              .dtype = dtype,
                              .bias = dtype != DType::kFloat16,
                              .skip = out_dtype == dtype,
                              .initial = out_dtype == dtype,
                              .out_dtype = out_dtype});
}

// Whole rows as runs of memory: warps that lack rows, tiles that lack steps, addresses that allow no wide copies.
TEST(SelectiveScanGpuPlans, AllForShortRowsAgreeWithReference) {
  SKIP_WITHOUT_GPU;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const int64_t length : {1, 7, 13, 49, 50, 63}) {
      if (dtype == DType::kFloat32 && length % 2 == 0) continue;
      const Case c{.batch = 2,
                   .channels = length == 49 ? 128 : 74,
                   .groups = 2,
                   .length = length,
                   .states = 1,
                   .dtype = dtype,
                   .softplus = length != 13,
                   .bias = length != 49,
                   .skip = length != 7,
                   .initial = length % 2 == 1,
                   .out_dtype = length < 50 ? DType::kFloat32 : dtype,
                   .misalign = length == 7 ? 1 : 0};
      SCOPED_TRACE(::testing::Message() << c);
      const auto plans = legal_plans(size_of(Sample(c).problem), Pass::kForward, test_gpu());
      EXPECT_TRUE(std::ranges::any_of(plans, [](const auto& plan) { return plan.short_rows; }));
      expect_all_plans_agree(c);
    }
}

// Rows that a warp has as a whole: lanes without steps and none, turns that lack rows, rows that touch each other and that do
// not, that move by 16 bytes and one by one; gradients that nobody gave or wants.
TEST(SelectiveScanGpuPlans, AllForWholeRowsAgreeWithReference) {
  SKIP_WITHOUT_GPU;
  const auto is_whole = [](const SelectiveScanGpuPlan& plan) {
    return plan.pass == Pass::kForward || plan.whole_rows > 0;
  };
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (const int64_t length : {168, 196, 224})
      for (const Layout layout : {Layout::kLengthLast, Layout::kApart}) {
        const Case c{.batch = 2,
                     .channels = length == 196 && dtype == DType::kBFloat16 ? 32 : 86,
                     .groups = 2,
                     .length = length,
                     .states = 1,
                     .dtype = dtype,
                     .layout = layout,
                     .softplus = length != 168 || dtype == DType::kFloat16,
                     .bias = length != 224,
                     .skip = layout == Layout::kLengthLast,
                     .initial = length == 224,
                     .out_dtype = length == 196 ? DType::kFloat32 : dtype,
                     .misalign = length == 168 && layout == Layout::kLengthLast ? 1 : 0};
        SCOPED_TRACE(::testing::Message() << c);
        expect_all_plans_agree(c, is_whole);
        Sample all(c), some(c);
        run_on_gpu(all);
        for (SampleTensor* unwanted : {&some.gu, &some.gA, &some.gC, &some.gbias})
          *unwanted = SampleTensor();
        run_on_gpu(some);
        EXPECT_EQ(all.gdelta.bytes(), some.gdelta.bytes());
        EXPECT_EQ(all.gB.bytes(), some.gB.bytes());
        EXPECT_EQ(all.gD.bytes(), some.gD.bytes());
      }
  // Nothing comes from behind but the gradient of the last state.
  const Case c{.channels = 20,
               .length = 196,
               .states = 1,
               .dtype = DType::kBFloat16,
               .initial = true,
               .out_dtype = DType::kFloat32};
  Sample given(c), none(c);
  for (Sample* sample : {&given, &none})
    for_each_index(sample->gout.view().shape, [&](int64_t b, int64_t channel, int64_t t, int64_t) {
      sample->gout.set(b, channel, t, 0, 0);
    });
  none.gout = SampleTensor();
  run_on_gpu(given);
  run_on_gpu(none);
  EXPECT_EQ(given.gdelta.bytes(), none.gdelta.bytes());
  EXPECT_EQ(given.ginitial.bytes(), none.ginitial.bytes());
}

// The forward kernel's tiles, and ways to and from shared memory: rows by 16, 8 and 4 bytes and one by one, as runs, the last
// one of them without its second row; states kept at steps that begin a lane and at others.
TEST(SelectiveScanGpuPlans, OneStateForwardWalksEveryTile) {
  SKIP_WITHOUT_GPU;
  struct Rows {
    int64_t length;
    LanesAndItems tile;
    int misalign = 0;
  };
  for (const Rows& rows :
       {Rows{64, {4, 16}}, Rows{144, {4, 16}}, Rows{66, {8, 16}}, Rows{100, {8, 16}},
        Rows{128, {8, 16}}, Rows{196, {16, 14}}, Rows{196, {16, 14}, 1}, Rows{195, {16, 14}},
        Rows{194, {16, 14}}, Rows{200, {16, 14}}, Rows{400, {32, 14}}, Rows{784, {32, 14}},
        Rows{785, {32, 14}}, Rows{512, {32, 16}}, Rows{1500, {32, 16}}})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
      for (const bool kept : {false, true}) {
        const Case c{.batch = 2,
                     .channels = 74,
                     .groups = 2,
                     .length = rows.length,
                     .states = 1,
                     .dtype = dtype,
                     .softplus = dtype != DType::kBFloat16 || rows.length > 66,
                     .initial = kept,
                     .out_dtype = kept || rows.length == 194 ? dtype : DType::kFloat32,
                     .misalign = rows.misalign};
        SCOPED_TRACE(::testing::Message() << c);
        Sample sample(c);
        SelectiveScanSize size = size_of(sample.problem);
        size.kept_states = kept && gpu_kept_states(size) > 0;
        const SelectiveScanGpuPlan ahead = plan(size, Pass::kForward, test_gpu());
        EXPECT_EQ(ahead.segments, rows.tile.lanes);
        EXPECT_EQ(ahead.items, rows.tile.items);
        run_on_gpu(sample, &ahead, nullptr, size.kept_states);
        expect_right(sample, c);
      }
}

// Rows of one state whose last tile has at most two steps a lane, and just more; eight lanes a row, then all.
TEST(SelectiveScanGpuPlans, ShortLastTilesAgreeWithReference) {
  SKIP_WITHOUT_GPU;
  struct Tail {
    int64_t length;
    bool some;
  };
  for (const Tail& tail : {Tail{65, true}, Tail{80, true}, Tail{81, false}, Tail{208, true},
                           Tail{576, true}, Tail{577, false}})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const Case c{.batch = 2,
                   .channels = 74,
                   .groups = 2,
                   .length = tail.length,
                   .states = 1,
                   .dtype = dtype,
                   .softplus = true,
                   .initial = tail.length % 2 == 1,
                   .out_dtype = tail.length < 100 ? DType::kFloat32 : dtype,
                   .misalign = tail.length == 80 ? 1 : 0};
      SCOPED_TRACE(::testing::Message() << c);
      const SelectiveScanSize size = size_of(Sample(c).problem);
      for (const Pass pass : {Pass::kForward, Pass::kBackward})
        for (const SelectiveScanGpuPlan& one : legal_plans(size, pass, test_gpu()))
          EXPECT_EQ(one.tail,
                    tail.some && pass == Pass::kBackward && one.one_state && !one.short_rows);
      expect_all_plans_agree(c);
    }
}

TEST(SelectiveScanGpuPlans, KeptStatesGiveTheSameBits) {
  SKIP_WITHOUT_GPU;
  for (const int64_t length : {64, 65, 300, 1100, 15, 21}) {
    const bool many = length < 64;  // short rows
    const Case c{
        .batch = many ? 128 : 5, .channels = many ? 256 : 12, .length = length, .initial = true};
    Sample found(c), kept(c);
    SelectiveScanSize size = size_of(found.problem);
    ASSERT_EQ(gpu_kept_states(size) > 0, length > 64 || many);
    size.kept_states = true;
    const SelectiveScanGpuPlan with = plan(size, Pass::kBackward, test_gpu());
    size.kept_states = false;
    for (const SelectiveScanGpuPlan& other : legal_plans(size, Pass::kBackward, test_gpu()))
      if (other.rows == with.rows && other.short_rows == with.short_rows)
        run_on_gpu(found, nullptr, &other);
    run_on_gpu(kept, nullptr, nullptr, true);
    expect_passed(kept.judge());
    EXPECT_EQ(found.gu.bytes(), kept.gu.bytes());
    EXPECT_EQ(found.gA.bytes(), kept.gA.bytes());
    size.kept_states = true;
    SelectiveScanGpuPlan back = plan(size, Pass::kBackward, test_gpu());
    back.slice = 2;
    Sample sliced(c);
    run_on_gpu(sliced, nullptr, &back, true);
    EXPECT_EQ(sliced.gu.bytes(), kept.gu.bytes());
    EXPECT_EQ(sliced.gB.bytes(), kept.gB.bytes());
  }
}

// Tiles of the most lanes, where rows are few, of one lane, and between, and of walkers; of a first kernel's states none.
TEST(SelectiveScanGpuPlans, SeveralKeptStatesAgreeWithReference) {
  SKIP_WITHOUT_GPU;
  const Case few{.batch = 2,
                 .channels = 10,
                 .groups = 2,
                 .length = 1100,
                 .states = 20,
                 .dtype = DType::kBFloat16,
                 .initial = true,
                 .out_dtype = DType::kFloat32};
  Case gated = few;
  gated.gate = true;
  const Case some{.batch = 128, .channels = 96, .length = 70, .states = 4};
  const Case many{.batch = 128, .channels = 256, .groups = 2, .length = 40, .states = 2};
  const Case walked{.batch = 32,
                    .channels = 96,
                    .length = 40,
                    .states = 10,
                    .dtype = DType::kFloat16,
                    .initial = true};
  for (const auto& [c, lanes] : {std::pair{few, int64_t{32}},
                                 {gated, int64_t{32}},
                                 {some, int64_t{4}},
                                 {many, int64_t{1}},
                                 {walked, int64_t{1}}}) {
    SelectiveScanSize size = size_of(Sample(c).problem);
    const int64_t tiles = ceil_div(c.length, lanes * kGpuItems);
    EXPECT_EQ(gpu_kept_states(size), (tiles - 1) * c.batch * c.channels * c.states);
    size.kept_states = true;
    std::vector<SelectiveScanGpuPlan> ahead = legal_plans(size, Pass::kForward, test_gpu()),
                                      back = legal_plans(size, Pass::kBackward, test_gpu());
    for (const auto* plans : {&ahead, &back})
      for (const SelectiveScanGpuPlan& one : *plans) {
        EXPECT_EQ(one.kept_steps, lanes * kGpuItems);
        EXPECT_EQ(one.ahead_lanes, 0);
      }
    // Of many rows a few plans, for the time: the first, the last, the chosen one, one with walkers, one of states that are walked
    // at once.
    if (c.batch > 2) {
      const auto together =
          std::ranges::find_if(back, [](const auto& p) { return p.together > 1; });
      ASSERT_NE(together, back.end());
      const SelectiveScanGpuPlan at_once = *together;
      for (auto [plans, pass] : {std::pair{&ahead, Pass::kForward}, {&back, Pass::kBackward}}) {
        std::vector<SelectiveScanGpuPlan> some = {plans->front(), plan(size, pass, test_gpu()),
                                                  plans->back()};
        const auto walks = std::ranges::find_if(*plans, [](const auto& p) { return p.walkers; });
        if (walks != plans->end() && !some[1].walkers) some.push_back(*walks);
        *plans = some;
      }
      back.push_back(at_once);
      back[0].slice = c.batch * 2 / 5;
    }
    const std::size_t step = c.batch > 2 ? 1 : 2 * kStep;
    const Sample::Expected expected = expected_of(Sample(c), c);
    for (std::size_t i = c.gate ? 1 : 0; i < std::max(ahead.size(), back.size()); i += step) {
      Sample sample(c);
      SCOPED_TRACE(to_string(ahead[i % ahead.size()]) + to_string(back[i % back.size()]));
      run_on_gpu(sample, &ahead[i % ahead.size()], &back[i % back.size()], true);
      expect_right(sample, c, expected);
    }
  }
}

TEST(SelectiveScanGpuPlans, SlicesOfTheBatchGiveTheSameBits) {
  SKIP_WITHOUT_GPU;
  for (const Case& c :
       {Case{.batch = 5, .channels = 100, .length = 40, .states = 2},
        Case{.batch = 5, .channels = 70, .length = 196, .states = 1, .dtype = DType::kBFloat16}}) {
    SCOPED_TRACE(::testing::Message() << c);
    Sample whole(c), sliced(c);
    SelectiveScanGpuPlan back = plan(size_of(whole.problem), Pass::kBackward, test_gpu());
    run_on_gpu(whole, nullptr, &back);
    back.slice = 2;  // a smaller workspace than the plan's
    run_on_gpu(sliced, nullptr, &back);
    EXPECT_EQ(whole.gu.bytes(), sliced.gu.bytes());
    EXPECT_EQ(whole.gA.bytes(), sliced.gA.bytes());
    EXPECT_EQ(whole.gB.bytes(), sliced.gB.bytes());
    EXPECT_EQ(whole.gC.bytes(), sliced.gC.bytes());
  }
}

TEST(SelectiveScanGpuOperator, TwoRunsGiveTheSameBits) {
  SKIP_WITHOUT_GPU;
  const Case c{.batch = 3, .channels = 150, .groups = 2, .length = 77, .states = 3, .gate = true};
  Sample one(c), two(c);
  run_on_gpu(one);
  run_on_gpu(two);
  expect_same_bits(one, two);
}

TEST(SelectiveScanGpuOperator, EmptySizesGiveEmptyResultsAndPassStatesThrough) {
  SKIP_WITHOUT_GPU;
  Sample no_batch(Case{.batch = 0, .initial = true});
  run_on_gpu(no_batch);
  EXPECT_EQ(read_element(no_batch.gA.view(), 5, 0), 0);
  Sample no_length(Case{.length = 0, .states = 2, .initial = true});
  run_on_gpu(no_length);
  for_each_index(no_length.last.view().shape, [&](int64_t i, int64_t j, int64_t k, int64_t) {
    EXPECT_EQ(read_element(no_length.last.view(), i, j, k),
              read_element(no_length.initial.view(), i, j, k));
    EXPECT_EQ(read_element(no_length.ginitial.view(), i, j, k),
              read_element(no_length.glast.view(), i, j, k));
  });
}

TEST(SelectiveScanGpuOperator, UnwantedGradientsAreLeftOut) {
  SKIP_WITHOUT_GPU;
  const Case c{.channels = 40, .length = 70, .states = 2, .gate = true};
  Sample all(c), some(c);
  run_on_gpu(all);
  for (SampleTensor* unwanted : {&some.gu, &some.gA, &some.gB, &some.gD, &some.gbias, &some.gz})
    *unwanted = SampleTensor();
  run_on_gpu(some);
  EXPECT_EQ(all.gdelta.bytes(), some.gdelta.bytes());
  EXPECT_EQ(all.gC.bytes(), some.gC.bytes());
}

TEST(SelectiveScanGpuOperator, NotFiniteInputStaysInItsChannel) {
  SKIP_WITHOUT_GPU;
  const Case c{.batch = 2, .channels = 20, .length = 40, .states = 2};
  Sample clean(c), dirty(c);
  dirty.u.set(0, 3, 5, 0, NAN);
  dirty.delta.set(1, 7, 6, 0, INFINITY);
  run_on_gpu(clean);
  run_on_gpu(dirty);
  for_each_index(clean.out.view().shape, [&](int64_t b, int64_t channel, int64_t t, int64_t) {
    const bool poisoned = b == 0 && channel == 3 && t >= 5, other = b == 1 && channel == 7;
    const double got = read_element(dirty.out.view(), b, channel, t);
    if (poisoned) {
      EXPECT_TRUE(std::isnan(got)) << t;
    } else if (!other) {
      EXPECT_EQ(got, read_element(clean.out.view(), b, channel, t));
    }
    if (!(b == 0 && channel == 3) && !other) {
      EXPECT_EQ(read_element(dirty.gu.view(), b, channel, t),
                read_element(clean.gu.view(), b, channel, t));
    }
  });
}

TEST(SelectiveScanGpuCheck, RefusesFloat64) {
  const Sample p(Case{.dtype = DType::kFloat64, .out_dtype = DType::kFloat64});
  try {
    check_gpu(p.problem);
    FAIL() << "accepted";
  } catch (const Unsupported& error) {
    EXPECT_STREQ(error.what(),
                 "selective_scan: u is float64, GPUs take float32, float16 and bfloat16 (use the "
                 "CPU)");
  }
}

}  // namespace
}  // namespace linescan::testing
