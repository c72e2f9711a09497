#include "linescan/train/schedule.h"

#include <gtest/gtest.h>

#include "linescan/train/recipe.h"

namespace linescan {
namespace {

Recipe recipe(double warmup) {
  Recipe recipe;
  recipe.lr = 2;
  recipe.warmup = warmup;
  recipe.final_lr = 0.1;
  return recipe;
}

TEST(Schedule, RisesInAStraightLine) {
  EXPECT_DOUBLE_EQ(learning_rate(recipe(0.2), 0), 0.02);
  EXPECT_DOUBLE_EQ(learning_rate(recipe(0.2), 0.1), 2 * (0.01 + 0.99 * 0.5));
  EXPECT_DOUBLE_EQ(learning_rate(recipe(0.2), 0.2), 2);
}

TEST(Schedule, FallsAlongACosine) {
  // Middle of the fall: halfway between lr and lr * final_lr.
  EXPECT_NEAR(learning_rate(recipe(0.2), 0.6), (2 + 0.2) / 2, 1e-12);
  // A quarter: cos(pi / 4) = 0.70711.
  EXPECT_NEAR(learning_rate(recipe(0.2), 0.4), 0.2 + 1.8 * 0.5 * (1 + 0.7071067811865476), 1e-12);
  EXPECT_NEAR(learning_rate(recipe(0.2), 1), 0.2, 1e-12);
}

TEST(Schedule, StaysAtItsEndsOutsideOfTheBudget) {
  EXPECT_DOUBLE_EQ(learning_rate(recipe(0.2), -1), learning_rate(recipe(0.2), 0));
  EXPECT_DOUBLE_EQ(learning_rate(recipe(0.2), 1.5), learning_rate(recipe(0.2), 1));
}

TEST(Schedule, WithoutWarmupStartsAtThePeak) { EXPECT_DOUBLE_EQ(learning_rate(recipe(0), 0), 2); }

TEST(Schedule, EmaDecayGrowsToItsValue) {
  Recipe with_ema = recipe(0);
  with_ema.ema = 0.95;
  EXPECT_DOUBLE_EQ(ema_decay(with_ema, 0), 0.1);
  EXPECT_DOUBLE_EQ(ema_decay(with_ema, 8), 0.5);
  EXPECT_DOUBLE_EQ(ema_decay(with_ema, 1000), 0.95);
}

}  // namespace
}  // namespace linescan
