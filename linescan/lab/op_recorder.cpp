#include "linescan/lab/op_recorder.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "linescan/base/error.h"
#include "linescan/binding/gpu_runtime.h"

namespace linescan::lab {
namespace {

using Clock = std::chrono::steady_clock;

struct Events {
  c10::Event start{c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT};
  c10::Event end{c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT};
};

struct Context : at::ObserverContext {
  int64_t span = -1, caller = -1;
};

// Index of the innermost span that runs on this thread; -1: none.
thread_local int64_t innermost = -1;

// Keeps the device busy for a while, in which the host gets ahead of it. Recorded, a step takes the host
// longer than most steps take a GPU: without a lead, the times between events would be the host's.
class Lead {
 public:
  explicit Lead(const Compute& compute)
      : square_(at::ones({kSide, kSide}, at::TensorOptions(at::kFloat).device(compute.device))) {
    const std::vector<double> seconds = gpu_runtime().time(2, [this] { multiply(); }, {});
    count_ = static_cast<int>(std::ceil(kSeconds / std::max(seconds.back(), 1e-4)));
  }
  void give() const {
    for (int i = 0; i < count_; ++i) multiply();
  }

 private:
  static constexpr double kSeconds = 0.03;
  static constexpr int64_t kSide = 4096;

  void multiply() const { at::mm(square_, square_); }

  at::Tensor square_;
  int count_ = 0;
};

class Recorder {
 public:
  explicit Recorder(const Compute& compute) : compute_(compute) {
    if (compute.on_gpu()) {
      const Lead lead(compute);  // by its end the device is idle
      stream_ = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(compute.device);
      origin_.emplace(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
      whole_.emplace();
      begun_ = Clock::now();
      mark(*origin_);
      lead.give();
      mark(whole_->start);
    } else {
      begun_ = Clock::now();
    }
    collect_parts(&parts_);
  }
  ~Recorder() { collect_parts(nullptr); }

  std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function) {
    auto context = std::make_unique<Context>();
    context->caller = innermost;
    Events* events = nullptr;
    {
      const std::lock_guard lock(mutex_);
      context->span = static_cast<int64_t>(running_.size());
      Running& running = running_.emplace_back();
      const Running* caller = innermost < 0 ? nullptr : &running_[innermost];
      running.part = part_of(function, caller);
      Span& span = running.span;
      span.name = function.name();
      span.caller = innermost;
      span.category =
          categorise(span.name, running.part, caller ? caller->span.category : Category::kRest);
      const auto id = std::this_thread::get_id();
      span.thread = threads_.emplace(id, static_cast<int>(threads_.size())).first->second;
      // An event costs the host as much as a small operator. Inside of its own kind one would tell
      // nothing new, and the rest is what no other kind has taken.
      const Category around = caller ? caller->span.category : Category::kRest;
      if (stream_ && span.category != around) events = &running.events.emplace();
      span.start = now();
    }
    if (events != nullptr) mark(events->start);
    innermost = context->span;
    return context;
  }

  void end(const Context& context) {
    innermost = context.caller;
    Running* running;
    {
      const std::lock_guard lock(mutex_);
      running = &running_[context.span];  // elements of a deque stay where they are
    }
    running->span.end = now();
    if (running->events) mark(running->events->end);
  }

  // Once nothing is started any more.
  Recording finish() {
    Recording recording;
    recording.on_gpu = compute_.on_gpu();
    recording.seconds = now();
    if (stream_) {
      mark(whole_->end);
      gpu_runtime().synchronize(compute_.device);
      recording.seconds = since_origin(whole_->end) - since_origin(whole_->start);
    }
    for (Running& running : running_) {
      if (running.events) {
        running.span.on_device = true;
        running.span.device_start = since_origin(running.events->start);
        running.span.device_end = since_origin(running.events->end);
      }
      recording.spans.push_back(std::move(running.span));
    }
    return recording;
  }

 private:
  struct Running {
    Span span;
    Part part = Part::kOther;
    std::optional<Events> events;
  };

  double now() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }
  double since_origin(const c10::Event& event) const { return origin_->elapsedTime(event) * 1e-3; }
  void mark(c10::Event& event) { event.record(*stream_); }

  // A node of the backward pass works for the part whose scope made it, which is closed by then; what it
  // calls works for the same.
  Part part_of(const at::RecordFunction& function, const Running* caller) const {
    if (function.scope() == at::RecordScope::BACKWARD_FUNCTION && function.seqNr() >= 0) {
      const auto number = static_cast<uint64_t>(function.seqNr());
      for (const PartInterval& interval : parts_)
        if (interval.first <= number && number < interval.end) return interval.part;
    }
    const Part here = current_part();
    return here == Part::kOther && caller != nullptr ? caller->part : here;
  }

  const Compute compute_;
  // On a GPU: the one that the work is put into. A thread of the backward pass has another one in force
  // while it goes from node to node.
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> origin_;  // when the host's clock was at begun_
  std::optional<Events> whole_;
  Clock::time_point begun_;
  std::vector<PartInterval> parts_;
  std::mutex mutex_;
  std::deque<Running> running_;
  std::map<std::thread::id, int> threads_;
};

// The callbacks are plain functions.
std::atomic<Recorder*> active{nullptr};

// Callbacks for as long as the object lives.
class Observation {
 public:
  explicit Observation(Recorder& recorder) {
    Recorder* none = nullptr;
    if (!active.compare_exchange_strong(none, &recorder))
      throw_error<Unsupported>("record_operators: a recording is under way already");
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& function) { return active.load()->start(function); },
            [](const at::RecordFunction&, at::ObserverContext* context) {
              active.load()->end(*static_cast<Context*>(context));
            })
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~Observation() {
    at::removeCallback(handle_);
    active = nullptr;
  }
  Observation(const Observation&) = delete;

 private:
  at::CallbackHandle handle_ = 0;
};

}  // namespace

Recording record_operators(const Compute& compute, const std::function<void()>& work) {
  Recorder recorder(compute);
  {
    const Observation observation(recorder);
    work();
  }
  return recorder.finish();
}

}  // namespace linescan::lab
