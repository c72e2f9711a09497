// A run folder as training leaves it behind, from formulas: the same bytes on every machine.
#pragma once

#include <filesystem>
#include <string>

namespace linescan {

// Writes metrics.jsonl, summary.json, evaluation.json, config.toml and machine.json into `run`,
// which must exist: a run of two minutes on Fashion-MNIST that reaches 91.09 %.
void write_sample_run(const std::filesystem::path& run);

void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace linescan
