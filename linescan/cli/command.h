// What every command of the program shares: the table's row, exit codes, the way of printing JSON.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "linescan/base/error.h"
#include "linescan/base/options.h"

namespace linescan::cli {

// Scripts rely on these.
enum ExitCode { kGood = 0, kFailed = 1, kBadInput = 2, kNotFinite = 3, kSignalBase = 128 };

// Thrown when SIGINT or SIGTERM ended the work in good order; the exit code is 128 + signal.
struct Interrupted {
  int signal;
};

// A row of the table in main.cpp. `add` declares the options on `command` and gives it a callback
// that does the work and throws the errors of base/error.h. `help` ends with a worked example.
struct Command {
  const char* name;
  const char* summary;
  void (*add)(CLI::App& command);
};

// One JSON document and a newline on standard output: the only thing there under --json.
void print_json(const nlohmann::json& document);

// Adds "Example:" and the text to the command's help.
void add_example(CLI::App& command, const char* example);

// `start` and the words in lines of at most 80 columns, ending with a newline; lines after the first
// are indented as far as `start` is long.
std::string wrap_words(const std::string& start, const std::string& words);

// "  name = value" and what it means, for each option, in 80 columns: what --set can change.
std::string describe_options(std::span<const Option> options);

// The names, separated by commas, in 80 columns.
std::string wrap_names(std::span<const std::string> names);

void add_train(CLI::App& command);
void add_eval(CLI::App& command);
void add_classify(CLI::App& command);
void add_generate(CLI::App& command);
void add_forward(CLI::App& command);
void add_info(CLI::App& command);
void add_device(CLI::App& command);
void add_plan(CLI::App& command);
void add_check(CLI::App& command);
void add_bench(CLI::App& command);

}  // namespace linescan::cli
