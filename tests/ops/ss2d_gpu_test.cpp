// ss2d's CUDA kernels against the double reference: on the GPU, or on the CPU through the emulator.
// Planes of one tile and of many, every route, type and layout.

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "linescan/base/error.h"
#include "linescan/ops/ss2d/gpu_products.h"
#include "linescan/ops/ss2d/sample.h"
#include "tests/support/gpu_sample.h"
#include "tests/support/judging.h"

namespace linescan::testing {
namespace {

using Case = Ss2dCase;
using Sample = Ss2dSample;

// With projections of a slice of the batch at a time, and their gradient in the same place where the plan allows it.
void backward_by_slices(const Ss2dProblem& problem, const Ss2dGradients& gradients,
                        const Ss2dGpuPlan& plan, std::byte* workspace) {
  const Ss2dSize size = size_of(problem);
  const int64_t image_bytes = size.pixels() * size.routes * size.record() * size_of(size.dtype);
  GpuWorkspace projection(plan.slice * image_bytes), gprojection(plan.slice * image_bytes);
  Ss2dProblem of_slice = problem;
  Ss2dGradients to_slice = gradients;
  of_slice.projection.data = projection.data();
  to_slice.projection.data = plan.stores_delta ? gprojection.data() : projection.data();
  const auto image_of = [&](const TensorView& all, int64_t image) {
    return static_cast<std::byte*>(all.data) + image * image_bytes;
  };
  const Ss2dProjectionSlices slices = {
      .begin =
          [&](int64_t first, int64_t images) {
            copy_on_gpu(of_slice.projection.data, image_of(problem.projection, first),
                        images * image_bytes);
          },
      .end =
          [&](int64_t first, int64_t images) {
            copy_on_gpu(image_of(gradients.projection, first), to_slice.projection.data,
                        images * image_bytes);
          }};
  backward(of_slice, to_slice, plan, slices, workspace, GpuStream{});
}

// `slice`: images of a launch, twice as many where states cross tiles; 0: as planned. as_if_half: by plans that expect a result of
// x's type. projected_again: backward by slices.
void run_on_gpu(Sample& sample, const Gpu& gpu = test_gpu(), bool keep_states = false,
                int64_t slice = 0, bool as_if_half = false, bool projected_again = false) {
  check(sample.problem);
  check_gpu(sample.problem);
  GpuTensors tensors;
  const auto on_gpu = [&](SampleTensor& tensor) { return tensors.take(tensor); };
  Ss2dProblem problem = sample.problem;
  problem.x = on_gpu(sample.x);
  problem.projection = on_gpu(sample.projection);
  problem.dt_weight = on_gpu(sample.dt_weight);
  problem.dt_bias = on_gpu(sample.dt_bias);
  problem.A_log = on_gpu(sample.A_log);
  problem.D = on_gpu(sample.D);
  problem.out = on_gpu(sample.out);
  const Ss2dGradients gradients = {on_gpu(sample.gout),        on_gpu(sample.gx),
                                   on_gpu(sample.gprojection), on_gpu(sample.gdt_weight),
                                   on_gpu(sample.gdt_bias),    on_gpu(sample.gA_log),
                                   on_gpu(sample.gD)};
  SampleTensor states({gpu_kept_states(size_of(problem))}, DType::kFloat32);
  if (keep_states && gpu_kept_states(size_of(problem)) > 0) problem.states = on_gpu(states);
  const auto planned = [&](Pass pass) {
    Ss2dSize size = pass == Pass::kForward ? size_of(problem) : size_of(problem, gradients);
    if (as_if_half) size.out_dtype = size.dtype;
    Ss2dGpuPlan made = plan(size, pass, gpu);
    if (slice > 0) made.slice = slice, made.pieces_slice = 2 * slice;
    return made;
  };
  const Ss2dGpuPlan ahead = planned(Pass::kForward);
  GpuWorkspace forward_workspace(ahead.workspace_bytes);
  forward(problem, ahead, forward_workspace.data(), GpuStream{});
  const Ss2dGpuPlan back = planned(Pass::kBackward);
  GpuWorkspace backward_workspace(back.workspace_bytes);
  if (projected_again)
    backward_by_slices(problem, gradients, back, backward_workspace.data());
  else
    backward(problem, gradients, back, backward_workspace.data(), GpuStream{});
  tensors.bring_back();
}

// As test_gpu(), with little shared memory: planes of a few hundred pixels already need tiles, of 7 x 7 in general. `beside`: what a
// block needs beside the sums of a tile.
Gpu small_gpu(int64_t beside = 0) {
  Gpu gpu = test_gpu();
  gpu.shared_per_block = std::max<int64_t>(9000, 7 * 7 * kGpuChannels * 4 + beside);
  return gpu;
}

// Tiles of 16 x 16, whose lines are two segments.
Gpu medium_gpu(int64_t beside) {
  Gpu gpu = test_gpu();
  gpu.shared_per_block = std::max<int64_t>(25000, 16 * 17 * kGpuChannels * 4 + beside);
  return gpu;
}

// As test_gpu(), so small that a few images fill it: small planes are then walked an image a lane, and large ones in cells.
Gpu narrow_gpu() {
  Gpu gpu = test_gpu();
  gpu.multiprocessors = 1;
  return gpu;
}

void expect_same_bits(const Sample& one, const Sample& other) {
  EXPECT_EQ(one.out.bytes(), other.out.bytes());
  EXPECT_EQ(one.gx.bytes(), other.gx.bytes());
  EXPECT_EQ(one.gprojection.bytes(), other.gprojection.bytes());
  EXPECT_EQ(one.gdt_weight.bytes(), other.gdt_weight.bytes());
  EXPECT_EQ(one.gdt_bias.bytes(), other.gdt_bias.bytes());
  EXPECT_EQ(one.gA_log.bytes(), other.gA_log.bytes());
  EXPECT_EQ(one.gD.bytes(), other.gD.bytes());
}

class Ss2dGpu : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  }
  void expect_right(const Gpu& gpu) {
    const Sample::Expected expected = Sample(GetParam()).expected();
    for (const bool keep_states : {false, true}) {
      SCOPED_TRACE(keep_states ? "states kept" : "states found again");
      expect_right(expected, gpu, keep_states);
    }
  }
  void expect_right(const Sample::Expected& expected, const Gpu& gpu, bool keep_states) {
    Sample sample(GetParam());
    if (keep_states && gpu_kept_states(size_of(sample.problem)) == 0) return;
    run_on_gpu(sample, gpu, keep_states);
    if (repeats()) {
      Sample again(GetParam());
      run_on_gpu(again, gpu, keep_states);
      expect_same_bits(sample, again);
    }
    const bool rounded_states = gpu_keeps_halves(size_of(sample.problem));
    const auto judged = [&](double bound, bool rounded_sums) {
      std::vector<NamedVerdict> verdicts = sample.judge(expected, bound);
      std::erase_if(verdicts, [&](const NamedVerdict& v) {
        const bool sums = v.name == "grad_projection" || v.name == "grad_dt_proj_weight";
        const bool of_states = v.name == "grad_A_log" || v.name == "grad_dt_proj_bias";
        return (sums || (of_states && rounded_states)) != rounded_sums;
      });
      return verdicts;
    };
    expect_passed(judged(kSs2dBound, false));
    expect_passed(judged(ss2d_rounded_bound(GetParam().dtype), true));
  }
};
class Ss2dGpuTiles : public Ss2dGpu {
 protected:
  // What the packed kernels need of a block beside the sums of a tile.
  int64_t beside_sums() const {
    const bool packed = GetParam().states == 1 && size_of(GetParam().dtype) == 2;
    return packed ? gpu_line_route_bytes(GetParam().rank + 2) : 0;
  }
  Ss2dGpuPlan planned(const Gpu& gpu, Pass pass) const {
    const Sample sample(GetParam());
    return plan(size_of(sample.problem), pass, gpu);
  }
};
class Ss2dGpuImages : public Ss2dGpu {};

TEST_P(Ss2dGpu, AgreesWithReference) { expect_right(test_gpu()); }
TEST_P(Ss2dGpuTiles, AgreeWithReference) {
  const Gpu gpu = small_gpu(beside_sums());
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Ss2dGpuPlan tiles = planned(gpu, pass);
    EXPECT_GT(tiles.pieces, 0);
    if (tiles.packed && std::min(GetParam().height, GetParam().width) > 7)
      EXPECT_EQ(std::pair(tiles.tile_height, tiles.tile_width), std::pair(int64_t{7}, int64_t{7}));
  }
  expect_right(gpu);
}
TEST_P(Ss2dGpuTiles, OfWholeSegmentsAgreeWithReference) {
  const Gpu gpu = medium_gpu(beside_sums());
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Ss2dGpuPlan tiles = planned(gpu, pass);
    if (std::min(GetParam().height, GetParam().width) > 16) {
      EXPECT_GT(tiles.pieces, 0);
      if (tiles.packed)
        EXPECT_EQ(std::pair(tiles.tile_height, tiles.tile_width),
                  std::pair(int64_t{16}, int64_t{16}));
    }
  }
  expect_right(gpu);
}
TEST_P(Ss2dGpuImages, AgreeWithReference) {
  const Sample sample(GetParam());
  EXPECT_TRUE(plan(size_of(sample.problem), Pass::kForward, narrow_gpu()).walks_images);
  expect_right(narrow_gpu());
}

// Segments are 7 steps, chunks 28, on planes of several tiles 8 and 32; blocks have 16 channels; records of 16 numbers are one
// product.
INSTANTIATE_TEST_SUITE_P(
    Sizes, Ss2dGpu,
    ::testing::Values(
        Case{}, Case{.batch = 1, .channels = 1, .height = 1, .width = 1},
        Case{.batch = 3, .channels = 16, .height = 7, .width = 7},
        Case{.channels = 17, .height = 14, .width = 14, .rank = 3},
        Case{.batch = 1, .channels = 33, .height = 28, .width = 28, .rank = 6},
        Case{.batch = 1, .channels = 3, .height = 56, .width = 56},
        Case{.batch = 1, .channels = 5, .height = 1, .width = 300, .rank = 2},
        Case{.batch = 1, .channels = 5, .height = 30, .width = 1, .states = 2},
        Case{.batch = 1, .channels = 4, .height = 9, .width = 130},
        Case{.batch = 1, .channels = 2, .height = 5, .width = 6, .states = 16, .rank = 20},
        Case{.batch = 1, .channels = 2, .height = 5, .width = 6, .states = 300},
        Case{.batch = 1, .channels = 1, .height = 3, .width = 3, .states = 1024}));

INSTANTIATE_TEST_SUITE_P(Routes, Ss2dGpu,
                         ::testing::Values(Case{.routes = {0}}, Case{.routes = {0, 0, 6, 6}},
                                           Case{.routes = {0, 5, 6, 3}},
                                           Case{.height = 15, .width = 8, .routes = {8, 10}},
                                           Case{.height = 15, .width = 8, .routes = {9, 11}},
                                           Case{.height = 9,
                                                .width = 10,
                                                .states = 2,
                                                .routes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
                                                           13, 14, 15}}));

// Records of up to nine eights of numbers stay in registers where everything is packed and even.
std::vector<Case> types_and_layouts() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const Layout layout : {Layout::kChannelsLast, Layout::kLengthLast, Layout::kGaps})
      for (const int misalign : {0, 1})
        cases.push_back({.channels = 18,
                         .height = 9,
                         .width = 13,
                         .rank = 2,
                         .dtype = dtype,
                         .layout = layout,
                         .out_dtype = misalign ? dtype : DType::kFloat32,
                         .misalign = misalign});
  for (const int64_t rank : {6, 12, 15, 24, 30, 34, 40, 46, 48, 56, 62, 64, 70})
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
      cases.push_back({.batch = 1,
                       .channels = 20,
                       .height = 11,
                       .width = 12,
                       .rank = rank,
                       .dtype = dtype,
                       .out_dtype = rank % 4 == 0 ? dtype : DType::kFloat32});
  // Lines of whole segments; blocks of one warp, of several, and channels that do not fill a block.
  for (const int64_t side : {7, 14, 21, 28})
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
      cases.push_back({.batch = side == 7 ? 3 : 1,
                       .channels = 18,
                       .height = side,
                       .width = side == 21 ? 7 : side,
                       .rank = side - side % 2,
                       .dtype = dtype,
                       .out_dtype = side % 4 == 0 ? DType::kFloat32 : dtype});
  // Records with a spare eight on such lines: six and eight of them.
  for (const auto& [rank, dtype] :
       {std::pair{int64_t{40}, DType::kBFloat16}, {int64_t{62}, DType::kFloat16}})
    for (const int64_t side : {7, 28})
      cases.push_back({.batch = 1,
                       .channels = 4,
                       .height = side,
                       .width = side,
                       .rank = rank,
                       .dtype = dtype,
                       .out_dtype = side == 7 ? DType::kFloat32 : dtype});
  for (const std::vector<int64_t>& routes :
       {std::vector<int64_t>{0}, {0, 0, 6, 6}, {9, 3, 13, 2, 4, 5}})
    cases.push_back({.batch = 1,
                     .channels = 16,
                     .height = 14,
                     .width = 21,
                     .rank = 6,
                     .routes = routes,
                     .dtype = DType::kBFloat16});
  // Sixteen bytes at a time, also where the last block has half of its channels.
  for (const int64_t side : {11, 14, 28})
    for (const DType out : {DType::kFloat32, DType::kBFloat16})
      cases.push_back({.batch = 2,
                       .channels = 24,
                       .height = side,
                       .width = side + side % 2,
                       .rank = 6,
                       .dtype = DType::kBFloat16,
                       .out_dtype = out});
  // One of x and the result's gradient by sixteen bytes, the other not.
  for (const bool of_x : {false, true})
    for (const DType out : {DType::kFloat32, DType::kBFloat16})
      cases.push_back({.channels = 24,
                       .height = 14,
                       .width = 28,
                       .rank = 6,
                       .dtype = DType::kBFloat16,
                       .out_dtype = out,
                       .misalign = of_x ? 2 : 0,
                       .misaligned_gradient = of_x ? 0 : 2});
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    cases.push_back({.channels = 20, .rank = 6, .dtype = dtype, .float_weight = true});
  // The general kernels under the plan of the packed ones, which has more warps a block.
  cases.push_back({.batch = 1,
                   .channels = 2,
                   .height = 56,
                   .width = 56,
                   .rank = 2,
                   .dtype = DType::kBFloat16,
                   .misalign = 1});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(TypesAndLayouts, Ss2dGpu, ::testing::ValuesIn(types_and_layouts()));

// The products with delta's gradient: every kernel, both products at once and one each; parts of several tiles of pixels, one
// slice of the batch and two.
struct ProductsCase {
  int64_t channels, rank;
  bool at_once;
  GpuProducts products;
  int64_t shared_limit = 99 * 1024;  // what every device with such kernels has
};
std::ostream& operator<<(std::ostream& out, const ProductsCase& c) {
  return out << c.channels << " channels rank " << c.rank << (c.at_once ? " at once" : " one each")
             << " with " << c.shared_limit;
}
class Ss2dGpuProducts : public ::testing::TestWithParam<ProductsCase> {};

TEST_P(Ss2dGpuProducts, AgreeWithReference) {
  const auto& [channels, rank, at_once, products, shared_limit] = GetParam();
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  Gpu gpu = narrow_gpu();
  if (gpu.shared_per_block < shared_limit) GTEST_SKIP() << "too little shared memory a block";
  gpu.shared_per_block = shared_limit;
  const bool many = channels > 200;
  const Case c{.batch = 2,
               .channels = channels,
               .height = many ? 9 : 13,
               .width = many ? 13 : 15,
               .rank = rank,
               .routes = {0, 7},
               .dtype = DType::kBFloat16};
  for (const int64_t slice : {1, 2}) {
    SCOPED_TRACE(::testing::Message() << c << " slice " << slice);
    Sample sample(c);
    const Ss2dGpuPlan made = plan(size_of(sample.problem), Pass::kBackward, gpu);
    EXPECT_EQ(made.at_once, at_once);
    EXPECT_EQ(made.product_side, products.side);
    EXPECT_EQ(made.product_columns, products.columns);
    run_on_gpu(sample, gpu, false, slice);
    expect_passed(sample.judge(ss2d_rounded_bound(c.dtype)));
  }
}
INSTANTIATE_TEST_SUITE_P(
    Kernels, Ss2dGpuProducts,
    ::testing::Values(ProductsCase{96, 10, true, {96, 16}}, ProductsCase{192, 14, true, {96, 16}},
                      ProductsCase{192, 20, true, {96, 32}}, ProductsCase{384, 24, true, {64, 32}},
                      ProductsCase{66, 10, true, {64, 16}}, ProductsCase{256, 16, true, {64, 16}},
                      ProductsCase{130, 24, true, {64, 32}}, ProductsCase{270, 10, true, {64, 32}},
                      ProductsCase{576, 20, false, {96, 32}}, ProductsCase{96, 34, false, {96, 48}},
                      ProductsCase{192, 48, false, {96, 48}}, ProductsCase{40, 24, false, {64, 32}},
                      ProductsCase{82, 34, false, {64, 48}}, ProductsCase{82, 70, false, {64, 80}},
                      ProductsCase{96, 64, false, {64, 80}},
                      ProductsCase{384, 24, true, {96, 32}, 163 * 1024}));

// Sums that are complete with their chunk: lines of whole segments and others, every code, ranks up to the last one that has
// such kernels and the next, and the general kernels under such a plan.
std::vector<Case> one_route() {
  std::vector<Case> cases;
  for (int64_t code = 0; code < 16; ++code) {
    const bool whole = code % 3 == 0;
    cases.push_back({.batch = 1,
                     .channels = 18,
                     .height = whole ? 28 : 23,
                     .width = whole ? 28 : 20,
                     .rank = code % 2 == 0 ? 6 : 12,
                     .routes = {code},
                     .dtype = code % 4 < 2 ? DType::kBFloat16 : DType::kFloat16,
                     .out_dtype = code % 5 == 0  ? DType::kFloat32
                                  : code % 4 < 2 ? DType::kBFloat16
                                                 : DType::kFloat16});
  }
  for (const int64_t rank : {30, 32})
    for (const int misalign : {0, 1})
      cases.push_back({.batch = 2,
                       .channels = 4,
                       .height = 56,
                       .width = rank == 30 ? 56 : 13,
                       .rank = rank,
                       .routes = {1},
                       .dtype = DType::kBFloat16,
                       .misalign = misalign});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(OneRoute, Ss2dGpu, ::testing::ValuesIn(one_route()));

// Several states of half data: an even number is walked with all states of a chunk at once, in blocks of one warp and of
// several, with lines of whole segments and others, in one group of channels and several; an odd number, odd addresses and
// routes that start anew are not.
std::vector<Case> several_states() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t states : {2, 3, 4, 6, 16, 18})
      for (const int64_t side : {7, 9, 14, 28})
        cases.push_back({.batch = side == 7 ? 3 : 1,
                         .channels = side == 28 ? 16 : 18,
                         .height = side,
                         .width = side == 9 ? 13 : side,
                         .states = states,
                         .rank = 2 * (1 + (states + side) % 6),
                         .dtype = dtype,
                         .out_dtype = side == 14 ? DType::kFloat32 : dtype});
    for (const int64_t rank : {2, 8, 10, 16, 24, 32, 40, 48, 50})
      cases.push_back({.batch = 1,
                       .channels = 20,
                       .height = 11,
                       .width = 12,
                       .states = 4,
                       .rank = rank,
                       .dtype = dtype,
                       .out_dtype = dtype});
    for (const int64_t side : {11, 28})
      cases.push_back({.batch = 1,
                       .channels = 4,
                       .height = side,
                       .width = side,
                       .states = 2,
                       .rank = 34,
                       .dtype = dtype,
                       .out_dtype = dtype});
  }
  for (const std::vector<int64_t>& routes :
       {std::vector<int64_t>{0}, {1}, {0, 0, 6, 6}, {9, 3, 13, 2, 4, 5}, {0, 5, 10, 15}})
    for (const int64_t side : {5, 30})
      cases.push_back({.batch = 1,
                       .channels = 16,
                       .height = side,
                       .width = 21,
                       .states = 8,
                       .rank = 6,
                       .routes = routes,
                       .dtype = DType::kBFloat16});
  cases.push_back({.batch = 1,
                   .channels = 2,
                   .height = 56,
                   .width = 56,
                   .states = 16,
                   .rank = 6,
                   .dtype = DType::kBFloat16,
                   .out_dtype = DType::kBFloat16});
  cases.push_back({.batch = 1,
                   .channels = 2,
                   .height = 5,
                   .width = 6,
                   .states = 64,
                   .rank = 4,
                   .dtype = DType::kBFloat16});
  cases.push_back({.batch = 1,
                   .channels = 4,
                   .height = 30,
                   .width = 30,
                   .states = 4,
                   .rank = 4,
                   .dtype = DType::kBFloat16,
                   .misalign = 1});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(SeveralStates, Ss2dGpu, ::testing::ValuesIn(several_states()));

// Small planes of half data: batches that lanes share and others, lines of whole segments and others, channels of one warp and of
// two blocks, records of every number of eights; routes that start anew, results in float32, odd addresses.
std::vector<Case> small_planes() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t side : {1, 2, 6, 7, 8})
      cases.push_back({.batch = side == 7 ? 13 : 3 + side,
                       .channels = side == 7 ? 66 : 18,
                       .height = side,
                       .width = side == 6 ? 9 : side,
                       .rank = 6,
                       .dtype = dtype,
                       .out_dtype = side == 2 ? DType::kFloat32 : dtype});
    for (const int64_t rank : {2, 8, 20, 24, 32, 40, 44, 48, 56, 62, 64, 70})
      cases.push_back({.batch = 6,
                       .channels = 16,
                       .height = 7,
                       .width = rank % 8 == 0 ? 7 : 3,
                       .rank = rank,
                       .dtype = dtype,
                       .out_dtype = dtype});
  }
  for (const std::vector<int64_t>& routes :
       {std::vector<int64_t>{0}, {15}, {0, 0, 6, 6}, {9, 3, 13, 2, 4, 5}, {0, 5, 10, 15}, {8, 12}})
    cases.push_back({.batch = 5,
                     .channels = 18,
                     .height = 5,
                     .width = 8,
                     .rank = 10,
                     .routes = routes,
                     .dtype = DType::kBFloat16});
  cases.push_back({.batch = 6,
                   .channels = 20,
                   .height = 7,
                   .width = 7,
                   .rank = 4,
                   .dtype = DType::kBFloat16,
                   .misalign = 1});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(SmallPlanes, Ss2dGpuImages, ::testing::ValuesIn(small_planes()));

INSTANTIATE_TEST_SUITE_P(
    Planes, Ss2dGpuTiles,
    ::testing::Values(Case{.channels = 5,
                           .height = 20,
                           .width = 30,
                           .states = 2,
                           .rank = 3,
                           .routes = {0, 1, 2, 3, 4, 5, 6, 7}},
                      Case{.channels = 5,
                           .height = 31,
                           .width = 17,
                           .rank = 3,
                           .routes = {8, 9, 10, 11, 12, 13, 14, 15}},
                      Case{.batch = 1, .channels = 4, .height = 9, .width = 130},
                      Case{.batch = 1, .channels = 4, .height = 200, .width = 2},
                      // Odd numbers of pieces, whose states and gradients lie one behind the other.
                      Case{.batch = 3,
                           .channels = 3,
                           .height = 21,
                           .width = 21,
                           .states = 3,
                           .rank = 2,
                           .routes = {0}},
                      Case{.batch = 2, .channels = 17, .height = 13, .width = 12, .states = 20},
                      Case{.batch = 1,
                           .channels = 18,
                           .height = 20,
                           .width = 21,
                           .rank = 6,
                           .dtype = DType::kBFloat16},
                      Case{.batch = 2,
                           .channels = 20,
                           .height = 31,
                           .width = 17,
                           .rank = 12,
                           .routes = {8, 9, 10, 11, 12, 13, 14, 15},
                           .dtype = DType::kBFloat16,
                           .out_dtype = DType::kBFloat16},
                      Case{.batch = 1,
                           .channels = 16,
                           .height = 9,
                           .width = 130,
                           .rank = 24,
                           .routes = {0, 1, 2, 3, 4, 5, 6, 7},
                           .dtype = DType::kFloat16}));

// Records of five to nine eights of numbers, some with a spare one.
std::vector<Case> long_records() {
  std::vector<Case> cases;
  for (const int64_t rank : {34, 40, 48, 56, 70})
    cases.push_back({.batch = 1,
                     .channels = 4,
                     .height = 20,
                     .width = 21,
                     .rank = rank,
                     .dtype = rank < 48 ? DType::kBFloat16 : DType::kFloat16,
                     .out_dtype = rank == 40 ? DType::kBFloat16 : DType::kFloat32});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(LongRecords, Ss2dGpuTiles, ::testing::ValuesIn(long_records()));

// Planes of several tiles on every device, whose states can be kept.
INSTANTIATE_TEST_SUITE_P(LargePlanes, Ss2dGpu,
                         ::testing::Values(Case{.batch = 1,
                                                .channels = 18,
                                                .height = 62,
                                                .width = 66,
                                                .rank = 6,
                                                .dtype = DType::kBFloat16,
                                                .out_dtype = DType::kBFloat16},
                                           Case{.batch = 1,
                                                .channels = 2,
                                                .height = 61,
                                                .width = 64,
                                                .rank = 2,
                                                .routes = {0, 5, 10, 15}},
                                           // The general kernels keep states of bfloat16 as well.
                                           Case{.batch = 1,
                                                .channels = 4,
                                                .height = 70,
                                                .width = 61,
                                                .rank = 4,
                                                .routes = {0, 1, 6, 7, 8},
                                                .dtype = DType::kBFloat16,
                                                .misalign = 1},
                                           Case{.batch = 1,
                                                .channels = 4,
                                                .height = 60,
                                                .width = 61,
                                                .rank = 2,
                                                .routes = {8, 15, 1},
                                                .dtype = DType::kBFloat16},
                                           Case{.batch = 1,
                                                .channels = 20,
                                                .height = 33,
                                                .width = 129,
                                                .rank = 12,
                                                .dtype = DType::kBFloat16},
                                           Case{.batch = 1,
                                                .channels = 4,
                                                .height = 5,
                                                .width = 800,
                                                .rank = 2,
                                                .dtype = DType::kFloat16}));

// Planes in cells of 8 x 8 pixels: a tile of four by four cells, and parts of one; records of four, six and eight numbers; results
// of either type, of which the backward pass takes the narrow one; every order, and addresses that are lines' to walk.
class Ss2dGpuCells : public Ss2dGpu {};
TEST_P(Ss2dGpuCells, AgreeWithReference) {
  Ss2dSize size = size_of(Sample(GetParam()).problem);
  size.kept_states = true;
  EXPECT_TRUE(plan(size, Pass::kForward, narrow_gpu()).cells);
  size.out_dtype = GetParam().out_dtype;
  EXPECT_EQ(plan(size, Pass::kBackward, narrow_gpu()).cells, size.out_dtype == size.dtype);
  expect_right(narrow_gpu());
  // Lines, by a device that a plane does not fill, add up in another order: other bits, where float32 numbers show them.
  Gpu wide = narrow_gpu();
  wide.multiprocessors = 10000;
  EXPECT_FALSE(plan(size, Pass::kForward, wide).cells);
  Sample cells(GetParam()), lines(GetParam());
  run_on_gpu(cells, narrow_gpu(), true);
  run_on_gpu(lines, wide, true);
  if (GetParam().misalign > 0) return;
  if (size.out_dtype != size.dtype) {
    EXPECT_NE(cells.out.bytes(), lines.out.bytes());
  } else if (GetParam().misaligned_gradient == 0) {
    EXPECT_NE(cells.gA_log.bytes(), lines.gA_log.bytes());
  }
}
std::vector<Case> planes_in_cells() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (const int64_t rank : {2, 4, 6})
      cases.push_back({.batch = 1,
                       .channels = rank == 4 ? 32 : 16,
                       .height = rank == 6 ? 64 : 72,
                       .width = rank == 6 ? 72 : 56,
                       .rank = rank,
                       .dtype = dtype,
                       .out_dtype = rank == 4 ? DType::kFloat32 : dtype});
  for (const std::vector<int64_t>& routes : std::vector<std::vector<int64_t>>{
           {0}, {7}, {3, 2}, {0, 5, 6, 3}, {8, 15, 4}, {11, 10, 9, 13}})
    cases.push_back({.batch = 1,
                     .channels = 16,
                     .height = 64,
                     .width = 64,
                     .rank = routes.size() == 2 ? 4 : 6,
                     .routes = routes,
                     .dtype = DType::kBFloat16,
                     .out_dtype = DType::kBFloat16});
  for (const bool flat : {false, true})
    cases.push_back({.batch = 2,
                     .channels = 16,
                     .height = flat ? 8 : 512,
                     .width = flat ? 512 : 8,
                     .rank = 6,
                     .dtype = DType::kBFloat16,
                     .out_dtype = DType::kBFloat16});
  for (const int misaligned_gradient : {0, 2, 1})
    cases.push_back({.batch = 1,
                     .channels = 16,
                     .height = 64,
                     .width = 64,
                     .rank = 6,
                     .dtype = DType::kBFloat16,
                     .out_dtype = DType::kBFloat16,
                     .misalign = misaligned_gradient > 0 ? misaligned_gradient % 2 : 2,
                     .misaligned_gradient = misaligned_gradient});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Planes, Ss2dGpuCells, ::testing::ValuesIn(planes_in_cells()));

#ifndef LINESCAN_CUDA_ON_CPU
// For which the emulator has not the time: the first stage of a network for images of 2048 pixels, and with several states.
INSTANTIATE_TEST_SUITE_P(
    PlanesOf512, Ss2dGpu,
    ::testing::Values(Case{.batch = 1,
                           .channels = 2,
                           .height = 512,
                           .width = 512,
                           .rank = 6,
                           .dtype = DType::kBFloat16},
                      Case{.batch = 1,
                           .channels = 32,
                           .height = 512,
                           .width = 512,
                           .rank = 6,
                           .dtype = DType::kBFloat16,
                           .out_dtype = DType::kBFloat16},
                      Case{.batch = 1, .channels = 2, .height = 512, .width = 512, .rank = 2},
                      Case{.batch = 1,
                           .channels = 2,
                           .height = 512,
                           .width = 512,
                           .states = 2,
                           .rank = 2,
                           .dtype = DType::kFloat16}));
#endif

TEST(Ss2dGpuOperator, SlicesOfTheBatchGiveTheSameBits) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  // Pieces' states of a slice, of lines, and of segments in cells.
  for (const int kind : {0, 1, 2}) {
    const bool keep_states = kind > 0;
    const DType half = DType::kBFloat16;
    const Case c{.batch = 3,
                 .channels = kind == 2 ? 16 : 2,
                 .height = kind == 0   ? 20
                           : kind == 1 ? 61
                                       : 56,
                 .width = keep_states ? 64 : 21,
                 .rank = 2,
                 .dtype = keep_states ? half : DType::kFloat32,
                 .out_dtype = kind == 2 ? half : DType::kFloat32};
    const Gpu gpu = kind == 0 ? small_gpu() : kind == 1 ? test_gpu() : narrow_gpu();
    Sample whole(c), sliced(c);
    Ss2dSize size = size_of(whole.problem);
    size.kept_states = keep_states;
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      EXPECT_EQ(plan(size, pass, gpu).cells, kind == 2);
    run_on_gpu(whole, gpu, keep_states);
    run_on_gpu(sliced, gpu, keep_states, 1);
    EXPECT_EQ(whole.out.bytes(), sliced.out.bytes());
    EXPECT_EQ(whole.gx.bytes(), sliced.gx.bytes());
    EXPECT_EQ(whole.gprojection.bytes(), sliced.gprojection.bytes());
  }
}

// Of several states, whose backward pass may have projections of a slice at a time: on chip and by stored products, and by the
// general kernels.
TEST(Ss2dGpuOperator, ProjectionsOfSlicesGiveTheSameBits) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  for (const int64_t rank : {6, 12})
    for (const int misalign : {0, 1})
      for (const int64_t slice : {1, 2, 5}) {
        const Case c{.batch = 5,
                     .channels = 24,
                     .height = 7,
                     .width = 14,
                     .states = 4,
                     .rank = rank,
                     .dtype = DType::kBFloat16,
                     .misalign = misalign};
        SCOPED_TRACE(::testing::Message() << c << " misalign " << misalign << " slice " << slice);
        Sample whole(c), sliced(c);
        run_on_gpu(whole, test_gpu(), true, slice);
        run_on_gpu(sliced, test_gpu(), true, slice, false, true);
        EXPECT_EQ(whole.gx.bytes(), sliced.gx.bytes());
        EXPECT_EQ(whole.gprojection.bytes(), sliced.gprojection.bytes());
        EXPECT_EQ(whole.gdt_weight.bytes(), sliced.gdt_weight.bytes());
        EXPECT_EQ(whole.gA_log.bytes(), sliced.gA_log.bytes());
        expect_passed(sliced.judge(ss2d_rounded_bound(c.dtype)));
      }
}

// Parameters' gradients are added up slice by slice: with delta's gradient multiplied on the chip and stored, by
// the general kernel in the packed ones' workspace, on planes of one tile and of several.
TEST(Ss2dGpuOperator, SlicesOfTheBatchAddUp) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  const auto expect_sum = [](const Case& c, int64_t slice, const Gpu& gpu) {
    SCOPED_TRACE(::testing::Message() << c << " misalign " << c.misalign << " slice " << slice
                                      << " shared memory " << gpu.shared_per_block);
    Sample sample(c);
    run_on_gpu(sample, gpu, false, slice);
    expect_passed(sample.judge(ss2d_rounded_bound(c.dtype)));
  };
  for (const int64_t rank : {6, 24})
    for (const int misalign : {0, 1}) {
      Case c{.batch = 5,
             .channels = rank == 24 ? 80 : 24,
             .height = 5,
             .width = 9,
             .rank = rank,
             .dtype = DType::kBFloat16,
             .misalign = misalign};
      for (const int64_t slice : {1, 2, 4}) expect_sum(c, slice, test_gpu());
      c.dtype = misalign ? DType::kBFloat16 : DType::kFloat16;
      expect_sum(c, 2, misalign ? small_gpu() : test_gpu());
      if (misalign == 0) expect_sum(c, 2, small_gpu());
    }
}

// What one kind of kernels keeps on a plane of tiles, the other one reads.
TEST(Ss2dGpuOperator, KeptStatesAreTheSameForAllKernels) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  for (const bool packed_forward : {true, false}) {
    SCOPED_TRACE(packed_forward);
    Sample sample(Case{.batch = 1,
                       .channels = 4,
                       .height = 60,
                       .width = 62,
                       .rank = 2,
                       .dtype = DType::kBFloat16});
    // Row-major planes are for the general kernels.
    SampleTensor& turned = packed_forward ? sample.gout : sample.out;
    SampleTensor row_major(turned.view().shape, turned.view().dtype, Layout::kLengthLast);
    if (packed_forward)
      for_each_index(turned.view().shape, [&](int64_t b, int64_t c, int64_t i, int64_t j) {
        row_major.set(b, c, i, j, read_element(turned.view(), b, c, i, j));
      });
    turned = std::move(row_major);
    (packed_forward ? sample.gradients.out : sample.problem.out) = turned.view();
    run_on_gpu(sample, test_gpu(), true);
    expect_passed(sample.judge(ss2d_rounded_bound(DType::kBFloat16)));
  }
}

TEST(Ss2dGpuOperator, TwoRunsGiveTheSameBits) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  const Case c{
      .batch = 3, .channels = 40, .height = 20, .width = 21, .rank = 6, .dtype = DType::kBFloat16};
  Sample first(c), second(c);
  run_on_gpu(first);
  run_on_gpu(second);
  expect_same_bits(first, second);
}

// A number that is none, in x, in a record's dts or in a state's rate, spoils what it reaches and nothing else: its channel, or all
// channels of its image. On one tile and on several, in cells with spare numbers in records, with one state and with two.
TEST(Ss2dGpuOperator, NotFiniteInputStaysInItsChannelOrImage) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  enum Kind { kWhole, kTiles, kCells };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const int64_t states : {1, 2})
      for (const Kind kind : {kWhole, kTiles, kCells}) {
        const bool cells = kind == kCells;
        if (cells && (states > 1 || size_of(dtype) > 2)) continue;
        const Case c{.batch = 2,
                     .channels = cells ? 32 : 18,
                     .height = cells ? 64 : 9,
                     .width = cells ? 56 : 16,
                     .states = states,
                     .rank = cells ? 4 : 6,
                     .dtype = dtype,
                     .out_dtype = cells ? dtype : DType::kFloat32};
        SCOPED_TRACE(::testing::Message() << c << " kind " << kind);
        const Gpu gpu = kind == kTiles ? small_gpu(gpu_line_route_bytes(8))
                        : cells        ? narrow_gpu()
                                       : test_gpu();
        Sample clean(c), of_x(c), of_dts(c), of_rate(c);
        of_x.x.set(0, 3, 4, 5, NAN);
        of_dts.projection.set(1, 30, c.rank + 2 * states + 1, 0, INFINITY);  // of the second route
        of_rate.A_log.set(7, 0, 0, 0, NAN);
        for (Sample* sample : {&clean, &of_x, &of_dts, &of_rate}) run_on_gpu(*sample, gpu, cells);
        for_each_index(clean.out.view().shape, [&](int64_t b, int64_t d, int64_t i, int64_t j) {
          const auto same = [&](const Sample& other, bool reached) {
            if (reached) return;
            EXPECT_EQ(read_element(other.out.view(), b, d, i, j),
                      read_element(clean.out.view(), b, d, i, j));
            EXPECT_EQ(read_element(other.gx.view(), b, d, i, j),
                      read_element(clean.gx.view(), b, d, i, j));
          };
          same(of_x, b == 0 && d == 3);
          same(of_dts, b == 1);
          same(of_rate, d == 7);
        });
        const auto finite = [&](const Sample& sample, int64_t image) {
          bool all = true;
          for_each_index(clean.out.view().shape, [&](int64_t b, int64_t d, int64_t i, int64_t j) {
            if (b == image) all &= std::isfinite(read_element(sample.out.view(), b, d, i, j));
          });
          return all;
        };
        EXPECT_TRUE(finite(clean, 1));
        EXPECT_FALSE(finite(of_dts, 1));
        EXPECT_TRUE(std::isnan(read_element(of_x.out.view(), 0, 3, 4, 5)));
        EXPECT_TRUE(std::isnan(read_element(of_rate.out.view(), 1, 7, 8, 15)));
      }
}

// As many routes as there may be, each over all of a small plane.
TEST(Ss2dGpuOperator, AsManyRoutesAsThereMayBeAgreeWithReference) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Case c{.batch = 1,
           .channels = 2,
           .height = 2,
           .width = 3,
           .rank = 2,
           .routes = {},
           .dtype = dtype,
           .out_dtype = DType::kFloat32};
    for (int64_t k = 0; k < kGpuMaxRoutes; ++k) c.routes.push_back(k % 16);
    SCOPED_TRACE(name_of(dtype));
    Sample sample(c);
    run_on_gpu(sample);
    expect_passed(sample.judge(ss2d_rounded_bound(dtype)));
  }
}

TEST(Ss2dGpuOperator, TakesGradientsThatAreWiderThanPlanned) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  const Case c{.channels = 24,
               .height = 28,
               .width = 30,
               .rank = 6,
               .dtype = DType::kBFloat16,
               .out_dtype = DType::kFloat32};
  Sample sample(c);
  run_on_gpu(sample, test_gpu(), true, 0, true);
  expect_passed(sample.judge(ss2d_rounded_bound(c.dtype)));
}

TEST(Ss2dGpuOperator, NoImagesGiveEmptyResultsAndZeroGradients) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  Sample none(Case{.batch = 0});
  run_on_gpu(none);
  EXPECT_EQ(read_element(none.gA_log.view(), 3, 0), 0);
  EXPECT_EQ(read_element(none.gD.view(), 3), 0);
}

TEST(Ss2dGpuOperator, NoPixelsOrChannelsGiveZeroGradients) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  for (const int64_t rank : {6, 24}) {
    const Case c{.channels = 16, .height = 5, .width = 5, .rank = rank, .dtype = DType::kBFloat16};
    Case flat = c, narrow = c, empty = c;
    flat.height = 0;
    narrow.width = 0;
    empty.channels = 0;
    for (const Case& without : {flat, narrow, empty}) {
      SCOPED_TRACE(::testing::Message() << without);
      Sample sample(without);
      run_on_gpu(sample);
      expect_passed(sample.judge(ss2d_rounded_bound(DType::kBFloat16)));
    }
  }
}

TEST(Ss2dGpuOperator, RefusesWhatItHasNoKernelsFor) {
  Sample wide(Case{.dtype = DType::kFloat64, .out_dtype = DType::kFloat64});
  EXPECT_THROW(check_gpu(wide.problem), Unsupported);
  Sample many(Case{.batch = 1,
                   .channels = 1,
                   .height = 1,
                   .width = 1,
                   .routes = std::vector<int64_t>(kGpuMaxRoutes + 1, 0)});
  EXPECT_THROW(check_gpu(many.problem), Unsupported);
  Sample large(Case{});
  large.problem.x.shape = {1, 1, 1 << 16, 1 << 15};
  EXPECT_THROW(check_gpu(large.problem), Unsupported);
  Sample keeps(Case{});
  SampleTensor states({gpu_kept_states(size_of(keeps.problem)) + 1}, DType::kFloat32);
  keeps.problem.states = states.view();
  EXPECT_THROW(check_gpu(keeps.problem), InvalidArgument);
}

}  // namespace
}  // namespace linescan::testing
