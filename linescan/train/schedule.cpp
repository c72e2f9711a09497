#include "linescan/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "linescan/train/recipe.h"

namespace linescan {

double learning_rate(const Recipe& recipe, double progress) {
  constexpr double kStart = 0.01;
  progress = std::clamp(progress, 0.0, 1.0);
  if (progress < recipe.warmup)
    return recipe.lr * (kStart + (1 - kStart) * progress / recipe.warmup);
  const double cosine =
      0.5 * (1 + std::cos(std::numbers::pi * (progress - recipe.warmup) / (1 - recipe.warmup)));
  return recipe.lr * (recipe.final_lr + (1 - recipe.final_lr) * cosine);
}

double ema_decay(const Recipe& recipe, long step) {
  return std::min(recipe.ema, (1.0 + step) / (10.0 + step));
}

}  // namespace linescan
