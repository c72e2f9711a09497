// The program's table of commands, and the one place where errors become exit codes.

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <iostream>
#include <string>
#include <vector>

#include "linescan/base/nearest.h"
#include "linescan/cli/command.h"
#include "linescan/device/allocation.h"
#include "linescan/version.h"

namespace linescan::cli {
namespace {

constexpr Command kCommands[] = {
    {"train", "Train a network; writes a run folder with a report", add_train},
    {"eval", "Accuracy, loss and confusion matrix on the test examples", add_eval},
    {"classify", "Name what is on PNG or JPEG images", add_classify},
    {"generate", "Tokens from a language model, one after the other", add_generate},
    {"forward", "Logits, loss and gradients from files of weights and input", add_forward},
    {"info", "Parameters, GFLOPs and stages of a network", add_info},
    {"device", "What this machine can do; environment variables in force", add_device},
    {"plan", "How an operator would run a problem here", add_plan},
    {"check", "Judge the CPU kernels against the double-precision reference", add_check},
    {"doctor", "Find out why training hangs, blows up or learns nothing", add_doctor},
    {"bench", "Time operators and networks", add_bench},
    {"throughput", "Measure a network: speed, memory, what they depend on", add_throughput},
};

// What is wrong with the words of the command line, and where to read on.
std::string describe(const CLI::ParseError& error, const CLI::App& app) {
  const CLI::App* command = &app;
  std::string call = command->get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    call += ' ' + command->get_name();
  }
  std::string text = error.what();
  const std::vector<std::string> rest = command->remaining();
  const auto commands = command->get_subcommands([](const CLI::App*) { return true; });
  if (!commands.empty() && !rest.empty() && !rest.front().starts_with('-')) {
    std::vector<std::string> names;
    for (const CLI::App* known : commands) names.push_back(known->get_name());
    text = unknown_name("command", rest.front(), names);
  }
  return fmt::format("{} (see '{} --help')", text, call);
}

// PyTorch's errors of CUDA come with lines of advice behind the first, its others with a backtrace.
std::string first_line(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

// Results that nobody has received are no success.
int exit_code_after_output(int code) {
  std::cout << std::flush;
  if (std::cout || code != kGood) return code;
  std::cerr << "linescan: cannot write to standard output\n";
  return kBadInput;
}

int run(int argc, char** argv) {
  CLI::App app{"Linescan: selective scans for vision, from training to inference"};
  app.name("linescan");
  app.set_version_flag("--version", std::string("linescan ") + kVersion);
  app.require_subcommand(1);
  app.get_formatter()->column_width(16);
  for (const Command& command : kCommands)
    command.add(*app.add_subcommand(command.name, command.summary));
  try {
    app.parse(argc, argv);
    return exit_code_after_output(kGood);
  } catch (const CLI::Success& success) {  // --help, --version
    return exit_code_after_output(app.exit(success));
  } catch (const CLI::ParseError& error) {
    std::cerr << "linescan: " << describe(error, app) << '\n';
    return kBadInput;
  } catch (const Interrupted& interrupted) {
    return kSignalBase + interrupted.signal;
  } catch (const FoundBad&) {
    return kFailed;
  } catch (const c10::Error& error) {
    std::cerr << "linescan: " << first_line(error) << '\n';
    return kFailed;
  } catch (const std::exception& error) {
    std::cerr << "linescan: " << error.what() << '\n';
    return exit_code_of(error);
  }
}

}  // namespace

}  // namespace linescan::cli

int main(int argc, char** argv) {
  // Standard output belongs to results; everything said on the way goes to standard error.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("linescan"));
  spdlog::set_pattern("%v");
  linescan::keep_freed_memory();
  return linescan::cli::run(argc, argv);
}
