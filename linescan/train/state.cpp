#include "linescan/train/state.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "linescan/base/error.h"

namespace linescan {
namespace {

std::string to_hex(const std::vector<uint8_t>& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::vector<uint8_t> from_hex(const std::string& text, const std::string& who) {
  std::vector<uint8_t> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char* pair = text.data() + 2 * i;
    if (std::from_chars(pair, pair + 2, bytes[i], 16).ptr != pair + 2)
      throw_error<InvalidArgument>("checkpoint: {} has an rng that is not hexadecimal", who);
  }
  return bytes;
}

}  // namespace

nlohmann::json to_json(const TrainingState& state) {
  return {{"step", state.step},
          {"epoch", state.sampler.epoch},
          {"sampler_batch", state.sampler.batch},
          {"seconds", state.seconds},
          {"progress", state.progress},
          {"evaluation_due", state.evaluation_due},
          {"best_val_top1", state.best_top1},
          {"best_step", state.best_step},
          {"weights", state.use_average ? "ema" : "model"},
          {"interval",
           {{"steps", state.interval.steps},
            {"correct", state.interval.correct},
            {"loss", state.interval.loss},
            {"seconds", state.interval.seconds}}},
          {"rng", to_hex(state.rng)},
          {"threads", state.threads},
          {"instruction_set", state.instruction_set},
          {"compute",
           {{"device", state.device},
            {"precision", state.precision},
            {"rng", to_hex(state.device_rng)},
            {"loss_scale", state.loss_scale},
            {"loss_scale_steps", state.loss_scale_steps}}},
          {"version", state.version}};
}

TrainingState state_from_json(const nlohmann::json& object, const std::string& who) {
  TrainingState state;
  try {
    state.step = object.at("step");
    state.sampler.epoch = object.at("epoch");
    state.sampler.batch = object.at("sampler_batch");
    state.seconds = object.at("seconds");
    state.progress = object.at("progress");
    state.evaluation_due = object.at("evaluation_due");
    state.best_top1 = object.at("best_val_top1");
    state.best_step = object.at("best_step");
    state.use_average = object.at("weights") == "ema";
    const nlohmann::json& interval = object.at("interval");
    state.interval.steps = interval.at("steps");
    state.interval.correct = interval.at("correct");
    state.interval.loss = interval.at("loss");
    state.interval.seconds = interval.at("seconds");
    state.rng = from_hex(object.at("rng"), who);
    state.threads = object.at("threads");
    state.instruction_set = object.at("instruction_set");
    if (object.contains("compute")) {  // older files are of runs in float32 on a CPU
      const nlohmann::json& compute = object.at("compute");
      state.device = compute.at("device");
      state.precision = compute.at("precision");
      state.device_rng = from_hex(compute.at("rng"), who);
      state.loss_scale = compute.at("loss_scale");
      state.loss_scale_steps = compute.at("loss_scale_steps");
    }
    state.version = object.at("version");
  } catch (const nlohmann::json::exception& error) {
    throw_error<InvalidArgument>("checkpoint: {} is not the state of a training run: {}", who,
                                 error.what());
  }
  return state;
}

}  // namespace linescan
