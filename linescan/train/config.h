// What a run is: its data, its network and its recipe, put together from defaults, a TOML file and
// key=value assignments, and written down so that the run can be repeated.
//
// What is trained for decides which options there are. All options of the network (vmamba_config.h or
// language_model_config.h), of the sequences (sequences.h) and of the recipe (recipe.h) share one set of
// names.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "linescan/models/networks/language_model_config.h"
#include "linescan/models/networks/plain_config.h"
#include "linescan/models/networks/vmamba_config.h"
#include "linescan/train/image_set.h"
#include "linescan/train/recipe.h"
#include "linescan/train/sequences.h"

namespace linescan {

// The task that is not about sequences (kRecall, kCopying).
inline constexpr std::string_view kImages = "images";

struct RunConfig {
  std::string task = std::string(kImages);
  std::string model = "vmamba_fashion";  // images: the named network whose options are the defaults

  // Of images:
  std::string data = "fashion-mnist";  // a name, or the folder of four IDX files
  VMambaConfig network;
  std::optional<PlainConfig> plain;  // instead, where the model is no VMamba
  // Of sequences:
  SequenceConfig sequences;
  LanguageModelConfig language;

  Recipe recipe;

  // Those of the task: task, data and model, network's and recipe's; or task, sequences', network's and
  // recipe's without what is about images.
  std::vector<Option> options();

  std::variant<VMambaConfig, PlainConfig> image_network() const;  // network or plain
};

using Assignments = std::vector<std::pair<std::string, std::string>>;  // name, text

// "key=value"; throws InvalidArgument for text without a key.
std::pair<std::string, std::string> parse_assignment(const std::string& text);

// Later assignments win; whatever their order, task and network's name are read first. A key may carry the
// table that it has in a TOML file ("network.dims", "recipe.lr"). A budget given in epochs replaces
// one in minutes and the other way round; without any it is two minutes, four for sequences. Throws
// InvalidArgument: unknown name (with the nearest of all, or the task that has it), unreadable or
// illegal value.
RunConfig make_config(const Assignments& assignments);

// The same on top of a complete configuration, for `--resume`: throws InvalidArgument unless every
// assignment says what the run has already. Taken over are keep, log_every, save_minutes and the guards,
// which change no weight, and threads, device, precision and graph, which change roundings only.
RunConfig resumed_config(const RunConfig& run, const Assignments& assignments);

// Sets the network's channels, classes and image size to those of the data unless they were
// assigned. Throws InvalidArgument where an assigned value does not fit the data, and for a network
// without classifier.
void fit_to_data(RunConfig* config, const Assignments& assignments, const ImageSet& images,
                 int64_t classes);

// {"task", "data", "model", "network": {...}, "recipe": {...}}, or {"task", "sequences": {...},
// "network": {...}, "recipe": {...}}: the content of config.toml too.
nlohmann::json to_json(const RunConfig& config);

// Throws InvalidArgument; `who` names the file.
RunConfig config_from_json(const nlohmann::json& object, const std::string& who);

}  // namespace linescan
