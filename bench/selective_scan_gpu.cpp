// selective_scan on the GPU of this machine: the rows of the published comparison, bfloat16 in, float32
// out, one line each. Needs neither LibTorch nor a build folder:
//
//   O=linescan/ops/selective_scan
//   nvcc -std=c++20 -O3 -arch=sm_90a -I. -c $O/*.cu linescan/ops/device_code/ordered_sums.cu
//   g++ -std=c++20 -O2 -DFMT_HEADER_ONLY -I. -I/usr/local/cuda/include -o scan_bench \
//     bench/selective_scan_gpu.cpp $O/{selective_scan,plan,gpu_plan,gpu_plan_cost,gpu_layout,gpu_arguments}.cpp \
//     linescan/ops/device_code/cuda_error.cpp linescan/base/{shape,nearest}.cpp \
//     linescan/device/{gpu,gpu_driver,known_gpus}.cpp \
//     {,one_state_,short_rows_,channels_last_}{forward,backward}.o {state_lanes,walkers}_forward.o {many_states,walkers,whole_rows}_backward.o ordered_sums.o \
//     -L/usr/local/cuda/lib64 -lcudart_static -ldl -lrt -lpthread
//
//   scan_bench            every published row with its plan
//   scan_bench --all 3    the best of every legal plan of row 3
//   scan_bench --channels-last 4   row 4 with its channels side by side in memory; goes with --all, in front
//
// The forward pass keeps what the backward pass can use, as in training. Times are medians of CUDA-event times of a graph of several calls, on buffers larger than the L2
// cache in turn. Floor: bytes over 4.28 TB/s, exponentials over 3.6 T/s, whichever is larger (H200).

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "linescan/base/half.h"
#include "linescan/device/gpu.h"
#include "linescan/ops/selective_scan/selective_scan.h"

namespace linescan {
namespace {

struct Row {
  int64_t batch, groups, group_channels, length, states;
};
constexpr Row kRows[] = {{128, 4, 96, 3136, 1},
                         {128, 4, 192, 784, 1},
                         {128, 4, 384, 196, 1},
                         {128, 4, 768, 49, 1},
                         {64, 4, 192, 3136, 16},
                         {32, 4, 96, 16384, 1},
                         {8, 1, 4096, 2048, 16},
                         {1, 1, 4096, 16384, 16},
                         {8, 1, 2048, 2048, 64},
                         {8, 1, 1024, 2048, 256},
                         // Not published: what else the planner's costs were fitted to.
                         {4, 1, 4096, 2048, 16},
                         {2, 1, 4096, 4096, 16},
                         {1, 1, 1536, 16384, 16},
                         {1, 1, 256, 16384, 16},
                         {8, 1, 1024, 2048, 16},
                         {8, 1, 1024, 2048, 64},
                         {16, 1, 1536, 2048, 16},
                         {8, 4, 192, 784, 1},
                         {128, 4, 384, 144, 1},
                         {32, 1, 1536, 196, 1},
                         {64, 4, 192, 256, 1},
                         {64, 4, 192, 176, 1},
                         {64, 4, 192, 1024, 1},
                         {32, 4, 96, 4096, 1},
                         {4, 4, 96, 16384, 1},
                         {64, 4, 192, 400, 1},
                         {128, 4, 384, 128, 1},
                         {128, 4, 384, 168, 1},
                         {64, 4, 192, 224, 1},
                         {8, 4, 384, 196, 1},
                         {16, 1, 192, 196, 1}};

bool channels_last = false;

void expect_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "CUDA: {}\n", cudaGetErrorString(error));
  std::exit(1);
}

// A tensor of random numbers, or of zeros, in device memory.
class DeviceTensor {
 public:
  DeviceTensor(const Shape& shape, DType dtype, float low, float high) {
    const int64_t element = static_cast<int64_t>(size_of(dtype)), count = shape.elements();
    expect_cuda(cudaMalloc(&memory_, std::max<int64_t>(1, count * element)));
    view_ = contiguous_view(memory_, dtype, shape);
    static std::mt19937 random(5);
    std::uniform_real_distribution<float> draw(low, high);
    std::vector<std::byte> some(std::min<int64_t>(count, 1 << 20) * element);
    for (std::size_t at = 0; at < some.size(); at += element) {
      const float x = draw(random);
      const uint16_t half = float_to_bfloat16(x);
      std::memcpy(&some[at], element == 4 ? static_cast<const void*>(&x) : &half, element);
    }
    for (int64_t at = 0; at < count * element; at += static_cast<int64_t>(some.size()))
      expect_cuda(cudaMemcpy(static_cast<std::byte*>(memory_) + at, some.data(),
                             std::min<int64_t>(some.size(), count * element - at),
                             cudaMemcpyHostToDevice));
  }
  DeviceTensor(DeviceTensor&& other) noexcept : memory_(other.memory_), view_(other.view_) {
    other.memory_ = nullptr;
  }
  ~DeviceTensor() { cudaFree(memory_); }
  operator TensorView() const { return view_; }
  // The same memory with neighbouring channels, or states.
  DeviceTensor&& turned() && {
    if (!channels_last) return std::move(*this);
    const Shape& shape = view_.shape;
    int64_t stride = 1;
    for (const int dim : {shape.rank() - 2, shape.rank() == 4 ? 1 : -1, shape.rank() - 1, 0})
      if (dim >= 0) view_.strides[dim] = stride, stride *= shape[dim];
    return std::move(*this);
  }

 private:
  void* memory_ = nullptr;
  TensorView view_;
};

struct Buffers {
  DeviceTensor u, delta, A, B, C, D, bias, out, last, states, gout, gu, gdelta, gA, gB, gC, gD,
      gbias;
  SelectiveScanProblem problem;
  SelectiveScanGradients gradients;

  explicit Buffers(const Row& r)
      : u(DeviceTensor(sequence(r), kData, -1, 1).turned()),
        delta(DeviceTensor(sequence(r), kData, -4, 3).turned()),
        A({channels(r), r.states}, kFloat, -2, -0.1f),
        B(DeviceTensor(factor(r), kData, -1, 1).turned()),
        C(DeviceTensor(factor(r), kData, -1, 1).turned()),
        D({channels(r)}, kFloat, -1, 1),
        bias({channels(r)}, kFloat, -0.5f, 0.5f),
        out(DeviceTensor(sequence(r), kFloat, 0, 0).turned()),
        last({r.batch, channels(r), r.states}, kFloat, 0, 0),
        states({gpu_kept_states(size(r))}, kFloat, 0, 0),
        gout(DeviceTensor(sequence(r), kFloat, -1, 1).turned()),
        gu(DeviceTensor(sequence(r), kData, 0, 0).turned()),
        gdelta(DeviceTensor(sequence(r), kData, 0, 0).turned()),
        gA({channels(r), r.states}, kFloat, 0, 0),
        gB(DeviceTensor(factor(r), kData, 0, 0).turned()),
        gC(DeviceTensor(factor(r), kData, 0, 0).turned()),
        gD({channels(r)}, kFloat, 0, 0),
        gbias({channels(r)}, kFloat, 0, 0) {
    problem = {.u = u,
               .delta = delta,
               .A = A,
               .B = B,
               .C = C,
               .D = D,
               .delta_bias = bias,
               .delta_softplus = true,
               .out = out,
               .last_state = last};
    if (gpu_kept_states(size(r)) > 0) problem.states = states;
    gradients = {.out = gout,
                 .u = gu,
                 .delta = gdelta,
                 .A = gA,
                 .B = gB,
                 .C = gC,
                 .D = gD,
                 .delta_bias = gbias};
  }

 private:
  static constexpr DType kData = DType::kBFloat16, kFloat = DType::kFloat32;
  static SelectiveScanSize size(const Row& r) {
    return {.batch = r.batch,
            .channels = channels(r),
            .groups = r.groups,
            .length = r.length,
            .states = r.states,
            .dtype = kData,
            .out_dtype = kFloat,
            .length_last = !channels_last};
  }
  static int64_t channels(const Row& r) { return r.groups * r.group_channels; }
  static Shape sequence(const Row& r) { return {r.batch, channels(r), r.length}; }
  static Shape factor(const Row& r) { return {r.batch, r.groups, r.states, r.length}; }
};

// Milliseconds of one call.
double measure(const std::vector<Buffers>& buffers, const SelectiveScanGpuPlan& plan,
               int repetitions) {
  void* workspace = nullptr;
  expect_cuda(cudaMalloc(&workspace, std::max<int64_t>(1, plan.workspace_bytes)));
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t program;
  expect_cuda(cudaStreamCreate(&stream));
  expect_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const int calls = repetitions == 1 ? 1 : std::max<int>(4, static_cast<int>(buffers.size()));
  for (int i = 0; i < calls; ++i) {
    const Buffers& b = buffers[i % buffers.size()];
    if (plan.pass == Pass::kForward)
      forward(b.problem, plan, static_cast<std::byte*>(workspace), GpuStream{stream});
    else
      backward(b.problem, b.gradients, plan, static_cast<std::byte*>(workspace), GpuStream{stream});
  }
  expect_cuda(cudaStreamEndCapture(stream, &graph));
  expect_cuda(cudaGraphInstantiate(&program, graph, 0));
  cudaEvent_t begin, end;
  expect_cuda(cudaEventCreate(&begin));
  expect_cuda(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < repetitions + 1; ++i) {
    expect_cuda(cudaEventRecord(begin, stream));
    expect_cuda(cudaGraphLaunch(program, stream));
    expect_cuda(cudaEventRecord(end, stream));
    expect_cuda(cudaEventSynchronize(end));
    float ms = 0;
    expect_cuda(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms / static_cast<float>(calls));  // the first one warms up
  }
  expect_cuda(cudaGraphExecDestroy(program));
  expect_cuda(cudaGraphDestroy(graph));
  expect_cuda(cudaStreamDestroy(stream));
  expect_cuda(cudaFree(workspace));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void print(const SelectiveScanGpuPlan& plan, double ms) {
  const double floor = 1e3 * std::max(static_cast<double>(plan.bytes) / 4.28e12,
                                      static_cast<double>(plan.exponentials) / 3.6e12);
  fmt::print(
      "  {:8} {:7.3f} ms  {:5.0f} GB/s  {:3.0f} % of floor {:.3f}   {}lanes a row {:2}, {} warps, "
      "{} shares, {} parts, {} states{}, {} warps/SM{}\n",
      name_of(plan.pass), ms, static_cast<double>(plan.bytes) / ms * 1e-6, 100 * floor / ms, floor,
      plan.whole_rows > 0  ? "one state, whole rows, "
      : plan.one_state     ? "one state, "
      : plan.state_lanes   ? "state lanes, "
      : plan.walkers       ? "walkers, "
      : plan.many_states   ? "many states, "
      : plan.channels_last ? "channels last, "
                           : "",
      plan.segments, plan.warps, plan.shares, plan.blocks, plan.state_tile,
      plan.together > 1 ? ", two at once" : "", plan.warps_per_multiprocessor,
      plan.shared_carries ? "" : ", carries in memory");
  std::fflush(stdout);
}

void run(int number, bool all) {
  const Row& row = kRows[number];
  fmt::print("{}: {} x {} x {}, {}, {}\n", number, row.batch, row.groups, row.group_channels,
             row.length, row.states);
  std::vector<Buffers> buffers;
  const int64_t bytes = row.batch * row.groups * row.group_channels * row.length * 16;
  buffers.reserve(4);
  for (int64_t i = 0; i < std::clamp<int64_t>(int64_t{600} * 1000 * 1000 / bytes, 1, 4); ++i)
    buffers.emplace_back(row);
  const SelectiveScanSize size = size_of(buffers[0].problem);
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    if (all) {  // the best dozen
      std::vector<std::pair<double, SelectiveScanGpuPlan>> times;
      for (const SelectiveScanGpuPlan& one : legal_plans(size, pass, gpus()[0]))
        if (one.warps_per_multiprocessor >= 6) times.emplace_back(measure(buffers, one, 1), one);
      std::stable_sort(times.begin(), times.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      for (std::size_t i = 0; i < std::min<std::size_t>(12, times.size()); ++i)
        print(times[i].second, times[i].first);
    }
    const SelectiveScanGpuPlan chosen = plan(size, pass, gpus()[0]);
    if (all) fmt::print("  chosen:\n");
    print(chosen, measure(buffers, chosen, 9));
  }
}

}  // namespace
}  // namespace linescan

int main(int count, char** words) {
  const auto flag = [&](const char* name) {
    const bool given = count > 1 && std::string(words[1]) == name;
    if (given) ++words, --count;
    return given;
  };
  linescan::channels_last = flag("--channels-last");
  const bool all = flag("--all");
  if (linescan::gpus().empty()) {
    fmt::print("no GPU: {}\n", linescan::why_no_gpu());
    return 1;
  }
  fmt::print("{}\n", linescan::gpus()[0].name);
  if (count == 1)
    for (int i = 0; i < 10; ++i) linescan::run(i, false);
  for (int i = 1; i < count; ++i) linescan::run(std::atoi(words[i]), all);
  return 0;
}
