#include "linescan/models/layers/checkpoint.h"

#include <ATen/autocast_mode.h>
#include <torch/custom_class.h>

#include "linescan/base/error.h"

namespace linescan {
namespace {

// The random generators that a block on `device` may draw from.
std::vector<at::Generator> generators_of(at::Device device) {
  std::vector<at::Generator> generators = {at::globalContext().defaultGenerator(at::kCPU)};
  if (!device.is_cpu()) generators.push_back(at::globalContext().defaultGenerator(device));
  return generators;
}

std::vector<at::Tensor> random_states(at::Device device) {
  std::vector<at::Tensor> states;
  for (at::Generator& generator : generators_of(device)) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

void set_random_states(at::Device device, const std::vector<at::Tensor>& states) {
  std::vector<at::Generator> generators = generators_of(device);
  for (std::size_t i = 0; i < generators.size(); ++i) {
    std::lock_guard<std::mutex> lock(generators[i].mutex());
    generators[i].set_state(states[i]);
  }
}

struct AutocastState {
  bool enabled = false;
  at::ScalarType dtype = at::kFloat;
};

AutocastState autocast_of(at::DeviceType type) {
  return {at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)};
}

void set_autocast(at::DeviceType type, const AutocastState& state) {
  at::autocast::set_autocast_enabled(type, state.enabled);
  at::autocast::set_autocast_dtype(type, state.dtype);
}

// All that the second run needs, as it was at the first.
struct Replay : torch::CustomClassHolder {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> run;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> random;
  AutocastState autocast;

  // Runs again on x and gives the gradients of `wanted`. Generators, autocast and buffers end as
  // they were found; buffers only after the gradients, whose graph holds them.
  torch::autograd::variable_list gradients(const at::Tensor& x,
                                           const torch::autograd::variable_list& wanted,
                                           const torch::autograd::variable_list& of_result) const {
    const std::vector<at::Tensor> random_now = random_states(x.device());
    const AutocastState autocast_now = autocast_of(x.device().type());
    const std::vector<at::Tensor> buffers = module->buffers();
    std::vector<at::Tensor> kept;
    for (const at::Tensor& buffer : buffers) kept.push_back(buffer.clone());
    const auto restore = [&] {
      set_random_states(x.device(), random_now);
      set_autocast(x.device().type(), autocast_now);
      for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(kept[i]);
    };
    set_random_states(x.device(), random);
    set_autocast(x.device().type(), autocast);
    try {
      at::Tensor result;
      {
        torch::AutoGradMode grad(true);
        result = run(x);
      }
      set_autocast(x.device().type(), autocast_now);
      auto found = torch::autograd::grad({result}, wanted, of_result, /*retain_graph=*/false,
                                         /*create_graph=*/false, /*allow_unused=*/true);
      restore();
      return found;
    } catch (...) {
      restore();
      throw;
    }
  }
};

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  // `parameters` is not used here: as an argument it makes the result depend on them.
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const c10::intrusive_ptr<Replay>& replay, const at::Tensor& x,
                            at::TensorList parameters) {
    context->saved_data["replay"] = c10::IValue::make_capsule(replay);
    std::vector<at::Tensor> saved = parameters.vec();
    saved.push_back(x);  // saving the parameters too catches a change between the two runs
    context->save_for_backward(std::move(saved));
    return replay->run(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (at::GradMode::is_enabled())
      throw_error<Unsupported>("checkpointed block: second derivatives need use_checkpoint=false");
    const auto holder = context->saved_data["replay"].toCapsule();
    const Replay& replay = static_cast<const Replay&>(*holder);
    const at::Tensor x = context->get_saved_variables().back();
    const at::Tensor input = x.detach().requires_grad_(x.requires_grad());

    std::vector<at::Tensor> wanted;
    if (x.requires_grad()) wanted.push_back(input);
    for (const at::Tensor& parameter : replay.parameters)
      if (parameter.requires_grad()) wanted.push_back(parameter);
    const auto found = replay.gradients(input, wanted, gradients);
    auto next = found.begin();
    torch::autograd::variable_list result = {{}, x.requires_grad() ? *next++ : at::Tensor()};
    for (const at::Tensor& parameter : replay.parameters)
      result.push_back(parameter.requires_grad() ? *next++ : at::Tensor());
    return result;
  }
};

}  // namespace

at::Tensor checkpointed(std::shared_ptr<torch::nn::Module> module,
                        std::function<at::Tensor(const at::Tensor&)> run, const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) return run(x);
  auto replay = c10::make_intrusive<Replay>();
  replay->parameters = module->parameters();
  replay->module = std::move(module);
  replay->run = std::move(run);
  replay->random = random_states(x.device());
  replay->autocast = autocast_of(x.device().type());
  return CheckpointFunction::apply(replay, x, at::TensorList(replay->parameters));
}

}  // namespace linescan
