#include "linescan/train/doctor/faults.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "linescan/base/nearest.h"
#include "linescan/binding/gpu_runtime.h"

namespace linescan {
namespace {

constexpr const char* kModule = "layers.1.blocks.0.op";  // where faults of a module are planted
constexpr int64_t kBadExample = 17;

at::Tensor each_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::None);
}

// Does `act` to the output of kModule.
ModuleFilter at_module(std::function<at::Tensor(at::Tensor)> act) {
  return [act = std::move(act)](const std::string& name, at::Tensor output) {
    return name == kModule ? act(std::move(output)) : output;
  };
}

void put_nan(std::span<const int64_t> indices, Batch& batch) {
  const auto bad = std::find(indices.begin(), indices.end(), kBadExample);
  if (bad != indices.end()) batch.inputs[bad - indices.begin()][0][3][5] = std::nan("");
}

struct Entry {
  Fault fault;
  void (*plant)(Planting& planting, Ground& ground);
};

constexpr Entry kEntries[] = {
    {{"non-scalar-loss", "a loss for every answer instead of one number"},
     [](Planting& planting, Ground&) { planting.poison.loss = each_loss; }},
    {{"nan-input", "a training image with a NaN in it"},
     [](Planting& planting, Ground&) { planting.poison.batch = put_nan; }},
    {{"exploding-lr", "a learning rate of 1e20"},
     [](Planting& planting, Ground&) { planting.config.recipe.lr = 1e20; }},
    {{"detached-parameter", "a block whose output is detached"},
     [](Planting& planting, Ground&) {
       planting.config.recipe.fail_on_unused = true;
       planting.modules = at_module([](at::Tensor output) { return output.detach(); });
     }},
    {{"kept-graph", "logits that are put into a list with their graph"},
     [](Planting& planting, Ground& ground) {
       planting.poison.loss = [&](const at::Tensor& logits, const at::Tensor& labels) {
         ground.kept.push_back(logits);
         return at::cross_entropy_loss(logits, labels);
       };
     }},
    {{"sleeping-block", "a block that sleeps forever"},
     [](Planting& planting, Ground& ground) {
       planting.config.recipe.watchdog = "1";
       planting.modules = at_module([&](at::Tensor output) {
         ground.bed.sleep();
         return output;
       });
     }},
    {{"looping-kernel", "a kernel that does not end (needs a GPU)"},
     [](Planting& planting, Ground&) {
       planting.config.recipe.device = "cuda";
       planting.config.recipe.graph = false;
       planting.config.recipe.watchdog = "2";
       planting.modules = at_module([](at::Tensor output) {
         gpu_runtime().start_endless_kernel(output.device());
         return output;
       });
     }},
    {{"out-of-memory", "a block that asks for more memory than there is"},
     [](Planting& planting, Ground&) {
       planting.modules = at_module([](at::Tensor output) {
         return output + at::empty({int64_t{1} << 59}, output.options())[0];
       });
     }},
    {{"full-disk", "a disk with room for 2 KB"},
     [](Planting& planting, Ground&) { planting.full_disk = true; }},
    {{"truncated-data", "a data file that lacks its last byte"},
     [](Planting& planting, Ground&) { planting.cut_data = true; }},
};

}  // namespace

std::span<const Fault> faults() {
  static const std::vector<Fault> all = [] {
    std::vector<Fault> list;
    for (const Entry& entry : kEntries) list.push_back(entry.fault);
    return list;
  }();
  return all;
}

void plant_fault(const std::string& fault, Planting& planting, Ground& ground) {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) {
    if (entry.fault.name == fault) return entry.plant(planting, ground);
    names.emplace_back(entry.fault.name);
  }
  throw InvalidArgument(unknown_name("fault", fault, names));
}

}  // namespace linescan
