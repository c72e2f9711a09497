// The learning rate over a run: a straight rise to the peak, then half a cosine down.
#pragma once

namespace linescan {

struct Recipe;

// The learning rate at `progress` in [0, 1], the share of the budget that is spent (steps under an
// epoch budget, seconds of training steps under a minutes budget). Rises from lr / 100 to lr during
// `warmup`, then falls to lr * final_lr. Progress outside of [0, 1] is taken as the nearer end.
double learning_rate(const Recipe& recipe, double progress);

// Decay of the averaged weights after `step` updates: min(recipe.ema, (1 + step) / (10 + step)), so
// that the average forgets its random start and short runs gain from it too.
double ema_decay(const Recipe& recipe, long step);

}  // namespace linescan
