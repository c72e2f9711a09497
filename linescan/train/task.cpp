#include "linescan/train/task.h"

#include "linescan/device/cpu.h"
#include "linescan/train/image_task.h"
#include "linescan/train/sequence_memory.h"
#include "linescan/train/sequence_task.h"

namespace linescan {

std::unique_ptr<Task> make_task(RunConfig* config, const Assignments* assignments) {
  if (config->task != kImages) {
    expect_sequences_fit(*config, cpu().memory_bytes);
    return std::make_unique<SequenceTask>(*config);
  }
  Dataset data = load_dataset(config->data, config->recipe.limit_train);
  if (assignments) fit_to_data(config, *assignments, data.train, data.classes.size());
  return std::make_unique<ImageTask>(*config, std::move(data));
}

}  // namespace linescan
