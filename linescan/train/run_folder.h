// The folder of a run: made once, never over another run's.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace linescan {

// Makes the folder, parents included. Throws InvalidArgument if anything of that name exists,
// IoError if the system refuses.
void create_run_folder(const std::filesystem::path& run);

// Makes the next free one of runs/001, runs/002, ... and returns it.
std::filesystem::path create_numbered_run_folder(const std::filesystem::path& runs);

// Writes a JSON file atomically, indented. Throws IoError.
void write_json_file(const std::filesystem::path& path, const nlohmann::json& document);

}  // namespace linescan
