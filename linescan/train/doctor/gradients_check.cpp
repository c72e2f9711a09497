// A few steps at the recipe's full learning rate, without warm-up: do loss and gradients stay where they
// are? If not, the learning rate is divided by ten until they do.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cmath>
#include <map>

#include "linescan/train/doctor/checks.h"

namespace linescan {
namespace {

constexpr double kExplodedLoss = 3;   // times the first
constexpr double kExplodedNorm = 30;  // times the first
constexpr double kLeastLr = 1e-9;     // below, updates are lost in the roundings of the weights

// "layers.0.blocks.1.op.in_proj.weight" -> "layers.0", "patch_embed.5.weight" -> "patch_embed": stages
// are numbered and have parts, and so are the blocks of networks without stages.
std::string group_of(const std::string& parameter) {
  const std::size_t dot = parameter.find('.');
  if (dot == std::string::npos) return parameter;
  const std::size_t next = parameter.find('.', dot + 1);
  const bool numbered = next != std::string::npos && parameter[dot + 1] >= '0' &&
                        parameter[dot + 1] <= '9' &&
                        parameter.find('.', next + 1) != std::string::npos;
  return parameter.substr(0, numbered ? next : dot);
}

// Of the gradients before they were clipped and scaled: `norm` is that of all together.
std::map<std::string, double> norms_of_groups(const torch::nn::Module& network, double norm) {
  const at::NoGradGuard no_grad;
  std::map<std::string, double> squares;
  for (const auto& item : network.named_parameters())
    if (item.value().grad().defined())
      squares[group_of(item.key())] +=
          item.value().grad().to(at::kDouble).square().sum().item<double>();
  double all = 0;
  for (const auto& [group, square] : squares) all += square;
  for (auto& [group, square] : squares) square = norm * std::sqrt(square / all);
  return squares;
}

struct Course {
  double first_loss = 0, last_loss = 0, first_norm = 0, largest_norm = 0;
  int64_t steps = 0;
  bool finite = true;
  std::map<std::string, double> groups;  // of the first step

  bool exploded() const {
    return !finite || last_loss > kExplodedLoss * std::max(first_loss, 1.0) ||
           largest_norm > kExplodedNorm * std::max(first_norm, 1.0);
  }
};

Course run_steps(const Patient& patient, double lr) {
  Course course;
  Trial trial(patient, lr);
  for (int64_t i = 0; i < static_cast<int64_t>(patient.batches().size()); ++i) {
    const TrainingStep::Reading reading = trial.run(i);
    if (i == 0) {
      course.first_loss = reading.loss;
      course.first_norm = reading.norm;
      course.groups = norms_of_groups(*trial.network().module, reading.norm);
    }
    ++course.steps;
    course.last_loss = reading.loss;
    course.finite = reading.good_steps == 1;
    if (!course.finite) return course;
    // In float16 an overflow is no failure: it lowers the scale of the loss.
    if (std::isfinite(reading.norm))
      course.largest_norm = std::max(course.largest_norm, reading.norm);
  }
  return course;
}

std::string describe(const Course& course, double lr) {
  std::vector<std::string> groups;
  for (const auto& [group, norm] : course.groups)
    groups.push_back(fmt::format("{} {:.3g}", group, norm));
  return fmt::format(
      "at learning rate {:g} the loss goes from {:.4g} to {:.4g} in {} steps; gradient norm {:.3g} "
      "at first ({}), {:.3g} at most",
      lr, course.first_loss, course.last_loss, course.steps, course.first_norm,
      fmt::join(groups, ", "), course.largest_norm);
}

std::string question_the_learning_rate(const Patient& patient) {
  double lr = patient.recipe().lr;
  while (lr > kLeastLr) {
    lr /= 10;
    if (!run_steps(patient, lr).exploded())
      return fmt::format(
          "The learning rate is too high: {:g} holds; try --lr {:g} or below, with warm-up and "
          "--max-grad-norm 1.",
          lr, lr);
  }
  return fmt::format(
      "It explodes at {:g} as well, so the learning rate is not to blame: see the checks 'values' "
      "and 'anomaly'.",
      lr);
}

}  // namespace

Finding check_gradients(const Patient& patient) {
  const Recipe& recipe = patient.recipe();
  const Course course = run_steps(patient, recipe.lr);
  const std::string measured = describe(course, recipe.lr);
  if (course.exploded())
    return {"gradients", Grade::kFail, measured, question_the_learning_rate(patient)};
  if (recipe.clip == 0)
    return {"gradients", Grade::kWarn, measured + "; clipping is off",
            "One odd batch may throw the weights far away: --max-grad-norm 5 costs nothing."};
  return {"gradients", Grade::kPass, fmt::format("{}; clipped at {:g}", measured, recipe.clip)};
}

}  // namespace linescan
