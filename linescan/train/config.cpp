#include "linescan/train/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"
#include "linescan/files/toml.h"
#include "linescan/models/networks/image_network.h"

namespace linescan {

using nlohmann::json;

namespace {

constexpr const char* kKind = "option";

// "recipe.lr" -> "lr": tables group a file for its reader, they do not change what a name means.
std::string_view bare_name(std::string_view name) {
  for (std::string_view table : {"network.", "recipe.", "sequences."})
    if (name.starts_with(table)) return name.substr(table.size());
  return name;
}

bool assigned(const Assignments& assignments, std::string_view name) {
  return std::any_of(assignments.begin(), assignments.end(),
                     [&](const auto& assignment) { return bare_name(assignment.first) == name; });
}

bool has(const std::vector<Option>& options, std::string_view name) {
  return std::any_of(options.begin(), options.end(),
                     [&](const Option& option) { return option.name == name; });
}

// Throws InvalidArgument for an option that other tasks have: what is spelt like it would mislead.
void expect_own_option(const RunConfig& config, const std::vector<Option>& options,
                       std::string_view name) {
  const bool images = config.task == kImages;
  RunConfig other = config;
  other.task = images ? kRecall : kImages;
  if (!has(options, name) && has(other.options(), name))
    throw_error<InvalidArgument>("unknown {} '{}' of the task {}: only {} it", kKind, name,
                                 config.task, images ? "recall and copying have" : "images has");
}

void assign(RunConfig* config, std::string_view name, const std::string& text) {
  const std::vector<Option> options = config->options();
  Recipe& recipe = config->recipe;
  expect_own_option(*config, options, bare_name(name));
  set_option(options, kKind, bare_name(name), text);
  if (bare_name(name) == "epochs" && recipe.epochs > 0) recipe.minutes = 0;
  if (bare_name(name) == "minutes" && recipe.minutes > 0) recipe.epochs = 0;
}

// The options of a recipe without those that are about images.
std::vector<Option> sequence_recipe(Recipe& recipe) {
  std::vector<Option> options = recipe.options();
  std::erase_if(options, [](const Option& option) {
    return option.name == "flip" || option.name == "shift";
  });
  return options;
}

// The last value that is assigned to `name`, or `otherwise`.
std::string last_of(const Assignments& assignments, std::string_view name, std::string otherwise) {
  for (const auto& [assigned, text] : assignments)
    if (bare_name(assigned) == name) otherwise = text;
  return otherwise;
}

void expect_task(std::string_view task) {
  const std::string known[] = {std::string(kImages), std::string(kRecall), std::string(kCopying)};
  if (std::find(std::begin(known), std::end(known), task) == std::end(known))
    throw InvalidArgument(unknown_name("task", task, known));
}

// What suits small synthetic sequences: they never repeat, so nothing must be kept from being learnt by
// heart.
Recipe recipe_for_sequences() {
  Recipe recipe;
  recipe.batch = 64;
  recipe.lr = 3e-3;
  recipe.weight_decay = 0.01;
  recipe.clip = 1;
  return recipe;
}

void expect_fit(const char* name, int64_t got, int64_t least, int64_t most, const char* why) {
  if (got < least || got > most)
    throw_error<InvalidArgument>("option {} is {}, expected {}{}, {}", name, got,
                                 least == most ? "" : "at least ", least, why);
}

}  // namespace

std::vector<Option> RunConfig::options() {
  std::vector<Option> all = {{"task", &task, "images, recall or copying"}};
  const auto append = [&](std::vector<Option> part) {
    std::move(part.begin(), part.end(), std::back_inserter(all));
  };
  if (task == kImages) {
    append({{"data", &data, "data set by name, or a folder of four IDX files"},
            {"model", &model, "network by name"}});
    append(plain ? plain->options() : network.options());
    append(recipe.options());
  } else {
    append(sequences.options());
    append(language.options());
    append(sequence_recipe(recipe));
  }
  return all;
}

std::variant<VMambaConfig, PlainConfig> RunConfig::image_network() const {
  if (plain) return *plain;
  return network;
}

std::pair<std::string, std::string> parse_assignment(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw_error<InvalidArgument>("{} is '{}', expected key=value", kKind, text);
  return {text.substr(0, equals), text.substr(equals + 1)};
}

RunConfig make_config(const Assignments& assignments) {
  RunConfig config;
  config.task = last_of(assignments, "task", config.task);
  expect_task(config.task);
  const bool images = config.task == kImages;
  if (images) {
    config.model = last_of(assignments, "model", config.model);
    const ImageConfig named = named_image_model(config.model);
    if (const auto* plain = std::get_if<PlainConfig>(&named))
      config.plain = *plain;
    else
      config.network = std::get<VMambaConfig>(named);
  } else {
    config.model = "gated_delta_net";
    config.recipe = recipe_for_sequences();
  }
  for (const auto& [name, text] : assignments) assign(&config, name, text);
  Recipe& recipe = config.recipe;
  if (!assigned(assignments, "epochs") && !assigned(assignments, "minutes"))
    recipe.minutes = images ? 2 : 4;
  recipe.validate();
  if (!images) {
    config.sequences.validate(config.task);
    config.language.validate();
  }
  return config;
}

RunConfig resumed_config(const RunConfig& run, const Assignments& assignments) {
  constexpr std::string_view kMayChange[] = {
      "threads",      "device",   "precision", "graph",          "keep",           "log_every",
      "save_minutes", "watchdog", "on_hang",   "detect_anomaly", "fail_on_unused", "log_memory"};
  RunConfig config = run;
  if (const std::string task = last_of(assignments, "task", run.task); task != run.task)
    throw_error<InvalidArgument>("option task is {}, expected {} as the run to be resumed has it",
                                 task, run.task);
  for (const auto& [name, text] : assignments) assign(&config, name, text);
  RunConfig before = run;
  const std::vector<Option> old_options = before.options(), options = config.options();
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::string got = to_text(options[i].target), had = to_text(old_options[i].target);
    if (got != had && std::find(std::begin(kMayChange), std::end(kMayChange), options[i].name) ==
                          std::end(kMayChange))
      throw_error<InvalidArgument>("option {} is {}, expected {} as the run to be resumed has it",
                                   options[i].name, got, had);
  }
  config.recipe.validate();
  return config;
}

namespace {

// Whatever kind of network it is.
template <class NetworkConfig>
void fit_network(NetworkConfig& network, const Assignments& assignments, const ImageSet& images,
                 int64_t classes) {
  if (!assigned(assignments, "in_channels")) network.in_channels = images.channels;
  if (!assigned(assignments, "classes")) network.classes = classes;
  if (!assigned(assignments, "image_size")) network.image_size = images.height;
  network.validate();
  expect_fit("in_channels", network.in_channels, images.channels, images.channels,
             "the channels of the images");
  expect_fit("classes", network.classes, classes, int64_t{1} << 32, "as the labels need");
  stage_shapes(network, images.height, images.width);
}

}  // namespace

void fit_to_data(RunConfig* config, const Assignments& assignments, const ImageSet& images,
                 int64_t classes) {
  if (config->plain) return fit_network(*config->plain, assignments, images, classes);
  fit_network(config->network, assignments, images, classes);
  if (config->network.backbone)
    throw_error<InvalidArgument>(
        "option backbone is true, expected false: training needs a classifier");
}

json to_json(const RunConfig& config) {
  RunConfig copy = config;  // the tables of options point into the object and may change it
  if (copy.task != kImages)
    return {{"task", copy.task},
            {"sequences", to_json(copy.sequences.options())},
            {"network", to_json(copy.language.options())},
            {"recipe", to_json(sequence_recipe(copy.recipe))}};
  return {{"task", copy.task},
          {"data", copy.data},
          {"model", copy.model},
          {"network", to_json(copy.plain ? copy.plain->options() : copy.network.options())},
          {"recipe", to_json(copy.recipe.options())}};
}

RunConfig config_from_json(const json& object, const std::string& who) {
  Assignments assignments;
  try {
    assignments = parse_toml_options(format_toml_options(object), who);
  } catch (const json::exception& error) {
    throw_error<InvalidArgument>("checkpoint: {} is not the configuration of a run: {}", who,
                                 error.what());
  }
  return make_config(assignments);
}

}  // namespace linescan
