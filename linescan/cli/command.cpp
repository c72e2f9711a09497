#include "linescan/cli/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <sstream>

namespace linescan::cli {
namespace {

CLI::Option* add_parsed(CLI::App& command, const std::string& flag, OptionTarget target,
                        const std::string& help) {
  const auto set = [flag, target](const std::string& text) {
    set_option(std::vector<Option>{{flag, target, ""}}, "option", flag, text);
  };
  return command.add_option_function<std::string>(flag, set, help);
}

}  // namespace

int exit_code_of(const std::exception& error) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr ||
      dynamic_cast<const IoError*>(&error) != nullptr ||
      dynamic_cast<const Unsupported*>(&error) != nullptr)
    return kBadInput;
  return dynamic_cast<const NotFinite*>(&error) != nullptr ? kNotFinite : kFailed;
}

void print_json(const nlohmann::json& document) {
  // Names of files need not be UTF-8.
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  std::cout << document.dump(2, ' ', /*ensure_ascii=*/false, kReplace) << '\n';
}

void expect_within(const std::string& flag, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    throw_error<InvalidArgument>("{} is {}, expected {} to {}", flag, value, least, most);
}

void expect_seconds(const std::string& flag, double value) {
  constexpr double kDay = 86400;
  if (!(value > 0 && value <= kDay))
    throw_error<InvalidArgument>("{} is {}, expected more than 0 and at most {}", flag, value,
                                 kDay);
}

CLI::Option* add_number(CLI::App& command, const std::string& flag, int64_t& target,
                        const std::string& help) {
  return add_parsed(command, flag, &target, help)->type_name("INT");
}

CLI::Option* add_number(CLI::App& command, const std::string& flag, double& target,
                        const std::string& help) {
  return add_parsed(command, flag, &target, help)->type_name("FLOAT");
}

CLI::Option* add_number(CLI::App& command, const std::string& flag, std::optional<int64_t>& target,
                        const std::string& help) {
  const auto set = [flag, &target](const std::string& text) {
    int64_t number = 0;
    set_option(std::vector<Option>{{flag, &number, ""}}, "option", flag, text);
    target = number;
  };
  return command.add_option_function<std::string>(flag, set, help)->type_name("INT");
}

void add_example(CLI::App& command, const char* example) {
  command.footer(command.get_footer() + "Example:\n  " + example);
}

std::string wrap_words(const std::string& start, const std::string& words) {
  constexpr std::size_t kColumns = 80, kWidestStart = 40, kShortIndent = 6;
  const bool wide = start.size() > kWidestStart;
  const std::string indent(wide ? kShortIndent : start.size(), ' ');
  std::string text = wide ? start + '\n' : "", line = wide ? indent : start;
  std::istringstream stream(words);
  bool empty = true;
  for (std::string word; stream >> word; empty = false) {
    if (!empty && line.size() + 1 + word.size() > kColumns) {
      text += line + '\n';
      line = indent;
      empty = true;
    }
    line += (empty ? "" : " ") + word;
  }
  return text + line + '\n';
}

std::string describe_options(std::span<const Option> options) {
  std::string text;
  for (const Option& option : options)
    text += wrap_words(fmt::format("  {:<28}", option.name + " = " + to_text(option.target)),
                       option.help);
  return text;
}

std::string wrap_names(std::span<const std::string> names) {
  return wrap_words("  ", fmt::format("{}", fmt::join(names, ", ")));
}

}  // namespace linescan::cli
