// The faults that can be planted (plant.h): what each changes in a run.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "linescan/base/error.h"
#include "linescan/models/module_watch.h"
#include "linescan/train/doctor/plant.h"
#include "linescan/train/doctor/planted_task.h"

namespace linescan {

// A place to fall asleep in, until somebody who has seen it lets everyone go.
class Bed {
 public:
  void sleep() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return open_; });
    throw Error("the planted sleep was ended");
  }
  void wake_all() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    wake_.notify_all();
  }
  void make() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool open_ = false;
};

// What a fault changes.
struct Planting {
  RunConfig config;
  Poison poison;
  ModuleFilter modules = {};  // of the network
  bool full_disk = false, cut_data = false;
};
// What faults need for as long as the plant lives.
struct Ground {
  Bed bed;
  std::vector<at::Tensor> kept;
};

// Changes `planting` as the fault does. Throws InvalidArgument for a name that faults() does not have.
void plant_fault(const std::string& fault, Planting& planting, Ground& ground);

}  // namespace linescan
