// linescan eval: how well a trained run does on the test images of its data set, or on test sequences.

#include <fmt/format.h>

#include <cctype>
#include <filesystem>
#include <iostream>
#include <memory>

#include "linescan/cli/command.h"
#include "linescan/cli/compute_options.h"
#include "linescan/files/atomic_write.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/dataset.h"
#include "linescan/train/evaluate.h"
#include "linescan/train/pictures.h"
#include "linescan/train/sequence_task.h"

namespace linescan::cli {
namespace {

namespace fs = std::filesystem;

struct EvalOptions {
  std::string folder, data;
  std::string checkpoint = "best";
  std::vector<std::string> export_images;  // how many, folder
  bool json = false;
  ComputeOptions compute;
};

// "T-shirt/top" -> "t-shirt-top": fit for a file name.
std::string file_stem(const std::string& name) {
  std::string stem;
  for (unsigned char letter : name)
    stem += std::isalnum(letter) ? static_cast<char>(std::tolower(letter)) : '-';
  return stem;
}

// Returns [{file, class}].
nlohmann::json export_images(const ImageSet& images, const std::vector<std::string>& classes,
                             const std::string& count_text, const fs::path& folder) {
  int64_t count = 0;
  set_option(std::vector<Option>{{"--export-images", &count, ""}}, "option", "--export-images",
             count_text);
  if (count < 1 || count > images.count)
    throw_error<InvalidArgument>("option --export-images is {}, expected 1 to {}", count,
                                 images.count);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_error<IoError>("image: cannot create {}: {}", folder.string(), error.message());
  nlohmann::json written = nlohmann::json::array();
  for (int64_t i = 0; i < count; ++i) {
    const std::string& label = classes[images.labels[i]];
    const fs::path file = folder / fmt::format("{}-{:05}.png", file_stem(label), i);
    write_file_atomically(file, encode_png(image_of(images, i)));
    written.push_back({{"file", file.string()}, {"class", label}});
  }
  return written;
}

void print_table(const Evaluation& evaluation, const std::vector<std::string>& classes) {
  std::cout << fmt::format("images {}   top-1 {:.2f} %   top-5 {:.2f} %   loss {:.4f}\n\n",
                           evaluation.examples, 100 * evaluation.top1, 100 * evaluation.top5,
                           evaluation.loss);
  std::cout << fmt::format("{:<14}{:>8}{:>10}   most often taken for\n", "class", "images",
                           "right");
  for (std::size_t label = 0; label < evaluation.confusion.size(); ++label) {
    const std::vector<int64_t>& row = evaluation.confusion[label];
    int64_t total = 0;
    std::size_t other = label == 0 ? row.size() - 1 : 0;  // the commonest wrong answer
    for (std::size_t predicted = 0; predicted < row.size(); ++predicted) {
      total += row[predicted];
      if (predicted != label && row[predicted] > row[other]) other = predicted;
    }
    if (total == 0) continue;
    const auto name = [&](std::size_t index) {
      return index < classes.size() ? classes[index] : std::to_string(index);
    };
    std::cout << fmt::format("{:<14}{:>8}{:>8.1f} %", name(label), total,
                             100.0 * row[label] / total);
    if (other != label && row[other] > 0)
      std::cout << fmt::format("   {} ({})", name(other), row[other]);
    std::cout << '\n';
  }
}

void eval_sequences(const EvalOptions& options, const std::filesystem::path& checkpoint,
                    const RunConfig& config, const Compute& compute) {
  if (!options.data.empty() || !options.export_images.empty())
    throw_error<InvalidArgument>("eval: the run was trained for task {}, which has no images",
                                 config.task);
  const SequenceTask task(config);
  Network network = task.make_network();
  load_trained_weights(checkpoint, *network.module);
  network.module->to(compute.device);
  const Evaluation evaluation =
      *task.evaluate(network, Split::kTest, {.batch = config.recipe.batch, .compute = compute});
  if (options.json)
    print_json(task.document(evaluation));
  else
    std::cout << fmt::format("answers {}   top-1 {:.2f} %   top-5 {:.2f} %   loss {:.4f}\n",
                             evaluation.examples, 100 * evaluation.top1, 100 * evaluation.top5,
                             evaluation.loss);
}

void eval(const EvalOptions& options) {
  const Compute compute = options.compute.open();
  const fs::path checkpoint = find_checkpoint(options.folder, options.checkpoint);
  if (const RunConfig config = load_config(checkpoint); config.task != kImages)
    return eval_sequences(options, checkpoint, config, compute);
  TrainedModel model = load_trained(checkpoint, compute.device);
  const Dataset data = load_dataset(options.data.empty() ? model.config.data : options.data);
  if (data.test.channels != model.channels)
    throw_error<InvalidArgument>("eval: the images have {} channels, expected {}",
                                 data.test.channels, model.channels);
  if (!options.export_images.empty()) {
    const nlohmann::json written =
        export_images(data.test, data.classes, options.export_images[0], options.export_images[1]);
    if (options.json) print_json(written);
    return;
  }
  const Evaluation evaluation = *evaluate(
      *model.network, data.test, BatchAssembler(model.normalisation),
      {.batch = model.config.recipe.batch, .compute = compute, .graph = model.config.recipe.graph});
  if (options.json)
    print_json(to_json(evaluation));
  else
    print_table(evaluation, model.classes);
}

}  // namespace

void add_eval(CLI::App& command) {
  const auto options = std::make_shared<EvalOptions>();
  command.add_option("folder", options->folder, "run folder, or one of its checkpoints")
      ->required();
  command.add_option("--data", options->data, "another data set than the run's");
  command
      .add_option("--checkpoint", options->checkpoint, "of a run folder: best (default) or last")
      ->check(CLI::IsMember({"best", "last"}));
  command
      .add_option("--export-images", options->export_images,
                  "only write the first N test images as PNG files")
      ->expected(2)
      ->type_name("N FOLDER");
  add_compute_options(command, options->compute);
  command.add_flag("--json", options->json,
                   "print {top1, top5, loss, images, confusion[true][predicted]}, of\n"
                   "sequences {top1, top5, loss, answers}; with --export-images\n"
                   "[{file, class}]");
  add_example(command,
              "linescan eval runs/first --json\n"
              "  linescan eval runs/first --export-images 8 pictures");
  command.callback([options] { eval(*options); });
}

}  // namespace linescan::cli
