// What the training doctor has found: a line a check, with what was measured and what to do.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace linescan {

enum class Grade { kPass, kWarn, kFail, kSkip };

// "pass", "warn", "fail", "skip"
std::string_view name_of(Grade grade);

struct Finding {
  std::string check;  // "gradients"
  Grade grade = Grade::kPass;
  std::string measured;                      // a sentence
  std::string advice = {};                   // what to do; empty for what has passed
  std::vector<std::string> parameters = {};  // all that it is about, where a sentence names some
};

struct Checkup {
  std::vector<Finding> findings;

  bool failed() const;
};

// A checklist in 80 columns: grade, check, what was measured; the advice below it.
std::string to_text(const Checkup& checkup);

// {"failed": bool, "checks": [{"check", "grade", "measured", "advice"}]}; a finding about parameters also has
// "parameters", all of their names.
nlohmann::json to_json(const Checkup& checkup);

}  // namespace linescan
