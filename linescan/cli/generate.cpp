// linescan generate: tokens from a run that was trained on sequences, streamed as they come.

#include "linescan/models/networks/generate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include "linescan/cli/command.h"
#include "linescan/cli/compute_options.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/sequence_task.h"

namespace linescan::cli {
namespace {

struct GenerateCommand {
  std::string folder;
  std::optional<std::string> prompt;  // an empty one is none to begin with, and refused
  std::string checkpoint = "best";
  int64_t example = 0, tokens = 0, seed = 1;
  double temperature = 0;
  bool json = false;
  ComputeOptions compute;
};

// What the model reads, and what a test sequence goes on with; nothing behind a prompt of the user.
struct Prompt {
  std::vector<int64_t> tokens, expected;
};

Prompt read_prompt(const std::string& text) {
  Prompt prompt;
  set_option(std::vector<Option>{{"--prompt", &prompt.tokens, ""}}, "option", "--prompt", text);
  return prompt;
}

// A test sequence up to the first token behind which something is asked; expected are the answers
// that follow each other from there.
Prompt prompt_of(const TokenSequence& sequence) {
  const auto asked = [](int64_t label) { return label != kNothingAsked; };
  const auto first = std::find_if(sequence.labels.begin(), sequence.labels.end(), asked);
  const auto last = std::find_if_not(first, sequence.labels.end(), asked);
  const auto length = first - sequence.labels.begin() + 1;
  return {{sequence.tokens.begin(), sequence.tokens.begin() + length}, {first, last}};
}

void print_tokens(const char* name, const std::vector<int64_t>& tokens) {
  std::cout << fmt::format("{:<11}{}\n", name, fmt::join(tokens, " "));
}

// Enough to fill a screen for hours; more is a slip of the keyboard.
constexpr int64_t kMostTokens = 1'000'000;

void check(const GenerateCommand& command) {
  if (command.example < 0)
    throw_error<InvalidArgument>("option --example is {}, expected 0 or more", command.example);
  if (command.tokens < 0 || command.tokens > kMostTokens)
    throw_error<InvalidArgument>("option --tokens is {}, expected 0 (as the example asks) to {}",
                                 command.tokens, kMostTokens);
  if (command.seed < 0)
    throw_error<InvalidArgument>("option --seed is {}, expected 0 or more", command.seed);
}

void run(const GenerateCommand& command) {
  check(command);
  const Compute compute = command.compute.open();
  const std::filesystem::path checkpoint = find_checkpoint(command.folder, command.checkpoint);
  const RunConfig config = load_config(checkpoint);
  LanguageModel model = load_language_model(checkpoint, config, compute.device);
  const Prompt prompt = command.prompt
                            ? read_prompt(*command.prompt)
                            : prompt_of(SequenceTask(config).test_sequence(command.example));
  GenerateOptions options;
  options.temperature = command.temperature;
  options.tokens =
      command.tokens > 0 ? command.tokens : std::max<int64_t>(1, std::ssize(prompt.expected));
  seed_generator(command.seed);

  const ComputeScope scope(compute);
  std::vector<int64_t> generated;
  generate(model, prompt.tokens, options, [&](int64_t token) {
    if (!command.json) {
      if (generated.empty()) {  // the prompt has been accepted
        print_tokens("prompt", prompt.tokens);
        std::cout << fmt::format("{:<10}", "generated");
      }
      std::cout << ' ' << token << std::flush;
    }
    generated.push_back(token);
  });
  if (command.json) {
    nlohmann::json document = {{"prompt", prompt.tokens}, {"generated", generated}};
    if (!prompt.expected.empty()) document["expected"] = prompt.expected;
    return print_json(document);
  }
  std::cout << '\n';
  if (!prompt.expected.empty()) print_tokens("expected", prompt.expected);
}

}  // namespace

void add_generate(CLI::App& app) {
  const auto command = std::make_shared<GenerateCommand>();
  app.add_option("folder", command->folder, "folder of a run with sequences, or a checkpoint")
      ->required();
  app.add_option("--prompt", command->prompt, "tokens to begin with: 5,41,17,60,5")->type_name("");
  add_number(app, "--example", command->example,
             "without --prompt: the beginning of this test sequence")
      ->type_name("")
      ->excludes("--prompt");
  add_number(app, "--tokens", command->tokens,
             "how many (default: as many as the example asks for in a row)")
      ->type_name("");
  add_number(app, "--temperature", command->temperature,
             "0: the likeliest token (default); else drawn")
      ->type_name("");
  add_number(app, "--seed", command->seed, "of the draws (default 1)")->type_name("");
  app.add_option("--checkpoint", command->checkpoint, "of a run folder: best (default) or last")
      ->check(CLI::IsMember({"best", "last"}));
  add_compute_options(app, command->compute);
  app.add_flag("--json", command->json, "print {prompt, generated, expected}");
  add_example(app,
              "linescan generate runs/recall --example 3\n"
              "  linescan generate runs/recall --prompt 5,41,17,60,0,0,5 --json");
  app.callback([command] { run(*command); });
}

}  // namespace linescan::cli
