// Configuration files: TOML tables to and from option texts (base/options.h).
//
//   model = "vmamba_tiny"            ("model", "vmamba_tiny")
//   depths = [2, 2, 8, 2]            ("depths", "2,2,8,2")
//   [recipe]
//   lr = 1e-3                        ("recipe.lr", "0.001")
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace linescan {

using TomlOptions = std::vector<std::pair<std::string, std::string>>;

// Every key of the file with its value as set_option reads it, in the order of the file; keys of
// tables are joined by dots. Throws InvalidArgument as "file:line:column: ...": not TOML, a date or
// time, an array of anything but integers, a quoted key that holds a dot, deep nesting.
TomlOptions read_toml_options(const std::filesystem::path& path);

// The same from memory; `name` is what messages call it.
TomlOptions parse_toml_options(std::string_view text, const std::string& name);

// Writes a JSON object of booleans, numbers, strings, arrays of integers and objects of the same
// kind atomically, so that read_toml_options gives back its keys and values. Throws InvalidArgument
// naming the key for anything else (null, NaN, other arrays, keys with dots, numbers beyond 64
// signed bits) and IoError.
void write_toml_options(const std::filesystem::path& path, const nlohmann::json& options);

// The text that write_toml_options writes.
std::string format_toml_options(const nlohmann::json& options);

}  // namespace linescan
