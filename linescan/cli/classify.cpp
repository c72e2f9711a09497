// linescan classify: names what is on pictures, with the network of a trained run.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <numeric>

#include "linescan/cli/command.h"
#include "linescan/cli/compute_options.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/pictures.h"
#include "linescan/train/predict.h"

namespace linescan::cli {
namespace {

struct ClassifyOptions {
  std::string folder;
  std::vector<std::string> paths;
  int64_t top_k = 3;
  bool json = false;
  ComputeOptions compute;
};

struct Label {
  std::string name;
  double probability;
};

std::vector<Label> likeliest(const float* scores, int64_t classes, int64_t top_k,
                             const std::vector<std::string>& names) {
  std::vector<int64_t> order(classes);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  order.resize(std::min(top_k, classes));
  std::vector<Label> labels;
  for (int64_t index : order)
    labels.push_back({index < names.size() ? names[index] : std::to_string(index),
                      std::exp(static_cast<double>(scores[index]))});
  return labels;
}

void print_labels(const std::string& file, const std::vector<Label>& labels) {
  std::cout << file;
  const char* separator = ":  ";
  for (const Label& label : labels) {
    std::cout << separator << fmt::format("{} {:.1f} %", label.name, 100 * label.probability);
    separator = ",  ";
  }
  std::cout << '\n';
}

void classify(const ClassifyOptions& options) {
  expect_within("--topk", options.top_k, 1, kLargestCount);
  const std::vector<std::filesystem::path> files = picture_files(options.paths);
  const Compute compute = options.compute.open();
  TrainedModel model = load_trained(find_checkpoint(options.folder, "best"), compute.device);
  const BatchAssembler assembler(model.normalisation);
  Predictor predictor(*model.network, compute);
  nlohmann::json document = nlohmann::json::array();
  for (const std::filesystem::path& file : files) {
    ImageSet one;
    one.channels = model.channels;
    one.height = model.height;
    one.width = model.width;
    append_picture(&one, read_image(file));
    const std::vector<float> scores = predictor.log_probabilities(one, 0, 1, assembler);
    const std::vector<Label> labels =
        likeliest(scores.data(), scores.size(), options.top_k, model.classes);
    if (!options.json) {
      print_labels(file.string(), labels);
      continue;
    }
    nlohmann::json entry = {{"file", file.string()}, {"labels", nlohmann::json::array()}};
    for (const Label& label : labels)
      entry["labels"].push_back({{"name", label.name}, {"probability", label.probability}});
    document.push_back(std::move(entry));
  }
  if (options.json) print_json(document);
}

}  // namespace

void add_classify(CLI::App& command) {
  const auto options = std::make_shared<ClassifyOptions>();
  command.add_option("folder", options->folder, "run folder, or one of its checkpoints")
      ->required();
  command
      .add_option("pictures", options->paths,
                  "PNG or JPEG files or folders, resized for the network")
      ->required();
  add_number(command, "--topk", options->top_k, "how many labels a picture; default 3");
  add_compute_options(command, options->compute);
  command.add_flag("--json", options->json, "print [{file, labels: [{name, probability}]}]");
  add_example(command, "linescan classify runs/first pictures/ --topk 3 --json");
  command.callback([options] { classify(*options); });
}

}  // namespace linescan::cli
