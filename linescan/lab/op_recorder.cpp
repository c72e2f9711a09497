#include "linescan/lab/op_recorder.h"

#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <chrono>
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

class Recorder {
 public:
  explicit Recorder(const Compute& compute) : compute_(compute) {
    if (compute.on_gpu()) {
      guard_.emplace(c10::DeviceType::CUDA);
      whole_.emplace();
      mark(whole_->start);
    }
    begun_ = Clock::now();
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
      if (guard_) events = &running.events.emplace();
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
    if (guard_) {
      mark(whole_->end);
      gpu_runtime().synchronize(compute_.device);
      recording.seconds = since_start(whole_->end);
    }
    for (Running& running : running_) {
      if (running.events) {
        running.span.device_start = since_start(running.events->start);
        running.span.device_end = since_start(running.events->end);
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
  double since_start(const c10::Event& event) const {
    return whole_->start.elapsedTime(event) * 1e-3;
  }
  void mark(c10::Event& event) { event.record(guard_->getStream(compute_.device)); }

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
  std::optional<c10::impl::VirtualGuardImpl> guard_;
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
