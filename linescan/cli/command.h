// What every command of the program shares: the table's row, exit codes, the way of printing JSON.
#pragma once

#include <CLI/CLI.hpp>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "linescan/base/error.h"
#include "linescan/base/options.h"

namespace linescan::cli {

// Scripts rely on these.
enum ExitCode {
  kGood = 0,
  kFailed = 1,
  kBadInput = 2,
  kNotFinite = 3,
  kHung = 4,
  kSignalBase = 128
};

// Thrown when SIGINT or SIGTERM ended the work in good order; the exit code is 128 + signal.
struct Interrupted {
  int signal;
};

// Thrown when a command has said on standard output that what it looked at is bad; the exit code is 1.
struct FoundBad {};

// What an error of a command becomes: kFailed, kBadInput or kNotFinite.
int exit_code_of(const std::exception& error);

// A row of the table in main.cpp. `add` declares the options on `command` and gives it a callback
// that does the work and throws the errors of base/error.h. `help` ends with a worked example.
struct Command {
  const char* name;
  const char* summary;
  void (*add)(CLI::App& command);
};

// One JSON document and a newline on standard output: the only thing there under --json.
void print_json(const nlohmann::json& document);

// An option that takes a number. Unlike CLI11's own numbers it refuses an empty text and what does not
// fit into 64 bits. `target` must live as long as the command.
CLI::Option* add_number(CLI::App& command, const std::string& flag, int64_t& target,
                        const std::string& help);
CLI::Option* add_number(CLI::App& command, const std::string& flag, double& target,
                        const std::string& help);
CLI::Option* add_number(CLI::App& command, const std::string& flag, std::optional<int64_t>& target,
                        const std::string& help);

// Throws InvalidArgument that names the option.
void expect_within(const std::string& flag, int64_t value, int64_t least, int64_t most);
void expect_seconds(const std::string& flag, double value);  // more than 0, at most a day

// What options that are numbers reach to at most.
inline constexpr int64_t kLargestImage = 1 << 16;    // height or width in pixels
inline constexpr int64_t kLargestCount = 1'000'000;  // of images, steps and the like
inline constexpr int64_t kMostThreads = 1024;

// Adds "Example:" and the text to the command's help.
void add_example(CLI::App& command, const char* example);

// `start` and the words in lines of at most 80 columns, ending with a newline; lines after the first
// are indented as far as `start` is long. One of more than 40 columns has a line of its own.
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
void add_doctor(CLI::App& command);
void add_bench(CLI::App& command);
void add_throughput(CLI::App& command);

}  // namespace linescan::cli
