// A network on the GPU against the same network on the CPU: logits, loss and gradients in true
// float32, half types within their roundings, recorded work against plain work. Skipped where there
// is no GPU or this build has no code for it. In a process of their own, as CTest runs them: what runs
// before may have made LibTorch believe that there is no GPU (compute.h).

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linescan/base/error.h"
#include "linescan/binding/gpu_runtime.h"
#include "linescan/models/compute.h"
#include "linescan/models/module_watch.h"
#include "linescan/models/networks/registry.h"
#include "tests/models/small_model.h"
#include "tests/support/gpu_test.h"

namespace linescan {
namespace {

class GpuNetwork : public GpuTest {};

// Channels for which the kernels take whole vectors in the first stage and single numbers nowhere;
// odd sizes of planes.
VMambaConfig network_config() {
  VMambaConfig config;
  config.classes = 10;
  config.image_size = 60;
  config.dims = {16};
  config.depths = {1, 1, 1};
  config.drop_path = 0;
  return config;
}

struct Step {
  at::Tensor logits, loss;
  std::vector<at::Tensor> gradients;
};

// scale: of the loss, and divided out of the gradients.
Step run_step(VMamba& model, const at::Tensor& images, const at::Tensor& labels,
              const Compute& compute, double scale = 1) {
  model->to(compute.device);
  model->zero_grad();
  Step step;
  {
    const ComputeScope scope(compute);
    step.logits = model->forward(to_device(images, compute)).to(at::kFloat);
  }
  step.loss = at::cross_entropy_loss(step.logits, to_device(labels, compute));
  (step.loss * scale).backward();
  for (const at::Tensor& parameter : model->parameters())
    step.gradients.push_back((parameter.grad() / scale).cpu());
  step.logits = step.logits.detach().cpu();
  step.loss = step.loss.detach().cpu();
  return step;
}

// |a - b| / |b| over whole tensors.
double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm().clamp_min(1e-12)).item<double>();
}

void compare(const VMambaConfig& config, const char* precision, double tolerance,
             double scale = 1) {
  const Compute gpu = open_compute("cuda", precision);
  torch::manual_seed(1);
  VMamba model(config);
  const at::Tensor images = torch::randn({2, 3, config.image_size, config.image_size});
  const at::Tensor labels = torch::tensor({3, 7});
  const Step expected = run_step(model, images, labels, Compute{});
  const Step got = run_step(model, images, labels, gpu, scale);
  EXPECT_LT(distance(got.logits, expected.logits), tolerance) << precision;
  EXPECT_LT(distance(got.loss, expected.loss), tolerance) << precision;
  const std::vector<std::string> names = model->named_parameters().keys();
  for (std::size_t i = 0; i < names.size(); ++i)
    EXPECT_LT(distance(got.gradients[i], expected.gradients[i]), 5 * tolerance)
        << precision << ' ' << names[i];
}

TEST_F(GpuNetwork, AgreesWithTheCpuInFloat32) { compare(network_config(), "fp32", 2e-5); }

// The published network: channels, depths and planes of every kernel that it takes, as training takes them but for layers left out.
TEST_F(GpuNetwork, AStepOfVmambaTinyAgreesWithTheCpu) {
  VMambaConfig config = named_model("vmamba_tiny_s1l8");
  config.drop_path = 0;
  compare(config, "fp32", 1e-4);
  compare(config, "bf16", 6e-2);
}

TEST_F(GpuNetwork, HalfTypesStayWithinTheirRoundings) {
  compare(network_config(), "tf32", 5e-3);
  compare(network_config(), "bf16", 3e-2);
  // Without a scale, as training has one, most gradients inside are below the smallest fp16 number.
  compare(network_config(), "fp16", 5e-3, 65536);
}

TEST_F(GpuNetwork, EveryKindOfLayerAgreesWithTheCpu) {
  for (const char* type : {"v0", "v05", "v051d", "v052dc", "v052d3_noz", "v05_noz_oact",
                           "v05_noz_ondwconv3", "v05_onsoftmax"}) {
    SCOPED_TRACE(type);
    VMambaConfig config = network_config();
    config.forward_type = type;
    config.states = 3;
    config.pos_embed = true;
    compare(config, "fp32", 5e-5);
    compare(config, "bf16", 6e-2);
  }
}

TEST_F(GpuNetwork, ResidualsStayInTheHalfType) {
  const Compute gpu = open_compute("cuda", "bf16");
  VMambaConfig config = network_config();
  config.drop_path = 0.3;
  config.pos_embed = true;
  VMamba model(config);
  model->to(gpu.device);
  const ComputeScope scope(gpu);
  const ModuleWatch watch(seen_by([](const std::string& name, const at::Tensor& output) {
    EXPECT_EQ(output.scalar_type(), at::kBFloat16) << name;
  }));
  model->forward(to_device(torch::randn({2, 3, 60, 60}), gpu));
}

TEST_F(GpuNetwork, RecordedWorkGivesTheSameBits) {
  const Compute gpu = open_compute("cuda", "bf16");
  VMamba model = seeded_model(network_config());
  model->to(gpu.device);
  const at::Tensor images = to_device(torch::randn({2, 3, 60, 60}), gpu);
  at::Tensor logits;
  const auto work = [&] {
    const torch::NoGradGuard no_grad;
    const ComputeScope scope(gpu);
    logits = model->forward(images);
  };
  for (int i = 0; i < 3; ++i) work();
  const at::Tensor plain = logits.clone();
  const std::unique_ptr<RecordedWork> graph = gpu_runtime().record(work);
  logits.zero_();
  graph->replay();
  EXPECT_TRUE(at::equal(logits, plain));
  images.neg_();
  graph->replay();
  EXPECT_FALSE(at::equal(logits, plain));
}

TEST_F(GpuNetwork, WorkThatWaitsCannotBeRecordedAndTheDeviceGoesOn) {
  const Compute gpu = open_compute("cuda");
  const at::Tensor x = to_device(torch::ones({4}), gpu);
  EXPECT_THROW(gpu_runtime().record([&] { (x + 1).sum().item<float>(); }), DeviceError);
  EXPECT_EQ((x + 1).sum().item<float>(), 8);
  EXPECT_NO_THROW(gpu_runtime().record([&] { x + 1; })->replay());
}

TEST_F(GpuNetwork, RuntimeTimesAndCountsMemory) {
  const Compute gpu = open_compute("cuda");
  GpuRuntime& runtime = gpu_runtime();
  runtime.reset_peak_memory(gpu.device);
  const int64_t before = runtime.peak_memory(gpu.device);
  const at::Tensor x = at::zeros({1 << 20}, at::TensorOptions(at::kFloat).device(gpu.device));
  EXPECT_GE(runtime.peak_memory(gpu.device), before + (4 << 20));
  const std::vector<double> seconds = runtime.time(3, [&] { x + 1; }, {});
  ASSERT_EQ(seconds.size(), 3u);
  for (double second : seconds) EXPECT_GT(second, 0);
}

}  // namespace
}  // namespace linescan
