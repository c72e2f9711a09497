// linescan info: what a network costs and what its stages look like, without building it.

#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <optional>

#include "linescan/cli/command.h"
#include "linescan/models/cost.h"
#include "linescan/models/networks/registry.h"

namespace linescan::cli {
namespace {

struct InfoRequest {
  std::string model;
  std::vector<std::string> settings;
  std::optional<int64_t> size;
  bool json = false;
};

nlohmann::json to_document(const std::string& model, const Cost& cost) {
  nlohmann::json stages = nlohmann::json::array();
  for (const StageShape& stage : cost.stages)
    stages.push_back({{"channels", stage.channels},
                      {"height", stage.height},
                      {"width", stage.width},
                      {"blocks", stage.blocks}});
  return {{"model", model},
          {"parameters", cost.parameters},
          {"gflops", static_cast<double>(cost.multiply_adds) / 1e9},
          {"stages", std::move(stages)}};
}

// 30249064 -> "30,249,064"
std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto place = static_cast<int64_t>(digits.size()) - 3; place > 0; place -= 3)
    digits.insert(static_cast<std::size_t>(place), ",");
  return digits;
}

void print_table(const std::string& model, int64_t size, const Cost& cost) {
  std::cout << fmt::format("model       {}\n", model);
  std::cout << fmt::format("parameters  {}\n", grouped(cost.parameters));
  std::cout << fmt::format("GFLOPs      {:.3f} (multiply-adds for one {} x {} image)\n\n",
                           static_cast<double>(cost.multiply_adds) / 1e9, size, size);
  std::cout << fmt::format("{:>5}  {:>8}  {:>11}  {:>6}\n", "stage", "channels", "grid", "blocks");
  for (std::size_t i = 0; i < cost.stages.size(); ++i) {
    const StageShape& stage = cost.stages[i];
    std::cout << fmt::format("{:>5}  {:>8}  {:>11}  {:>6}\n", i, stage.channels,
                             fmt::format("{} x {}", stage.height, stage.width), stage.blocks);
  }
}

void run_info(const InfoRequest& request) {
  VMambaConfig config = named_model(request.model);
  for (const std::string& setting : request.settings)
    set_option(config.options(), "model option", setting);
  config.validate();
  const int64_t size = request.size.value_or(config.image_size);
  expect_within("--size", size, 1, kLargestImage);
  const Cost cost = count_cost(config, size, size);
  if (request.json)
    print_json(to_document(request.model, cost));
  else
    print_table(request.model, size, cost);
}

}  // namespace

void add_info(CLI::App& command) {
  auto request = std::make_shared<InfoRequest>();
  command.add_option("model", request->model, "name of the network (below)")->required();
  command.add_option("--set", request->settings, "change an option of the network: key=value")
      ->allow_extra_args(false);
  add_number(command, "--size", request->size,
             "height and width of the image; default: the network's");
  command.add_flag("--json", request->json, "one JSON document on standard output");
  command.footer("Networks:\n" + wrap_names(model_names()) + "\nWhat --set can change:\n" +
                 describe_options(VMambaConfig().options()) + '\n');
  add_example(command, "linescan info vmamba_tiny_s1l8 --size 384 --set states=2 --json");
  command.callback([request] { run_info(*request); });
}

}  // namespace linescan::cli
