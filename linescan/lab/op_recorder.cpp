#include "linescan/lab/op_recorder.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
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
  c10::Event pause{c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT};  // up to the start
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
  Recorder(const Compute& compute, double pause) : compute_(compute), pause_(pause) {
    if (compute.on_gpu()) {
      gpu_runtime().synchronize(compute.device);
      stream_ = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(compute.device);
      origin_.emplace(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
      whole_.emplace();
      begun_ = Clock::now();
      mark(*origin_);
      mark(whole_->pause);
      if (pause_ > 0) gpu_runtime().pause(*stream_, kFirstPauses * pause_);
      for (std::optional<c10::Event>& event : calibration_)
        mark(event.emplace(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT));
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
    if (events != nullptr) begin(*events);
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
    recording.seconds = recording.host_seconds = now();
    if (!stream_) {
      for (Running& running : running_) recording.spans.push_back(std::move(running.span));
      return recording;
    }
    mark(whole_->end);
    gpu_runtime().synchronize(compute_.device);
    const double own = own_time();
    Pauses pauses;
    const auto add_pause = [&](const Events& events) {
      pauses.add(since_origin(events.pause), since_origin(events.start) + own);
    };
    const auto time_of = [&](const c10::Event& event) {
      return pauses.without(since_origin(event));
    };
    add_pause(*whole_);
    for (const Running& running : running_)
      if (running.events) add_pause(*running.events);
    recording.seconds = time_of(whole_->end) - time_of(whole_->start);
    for (Running& running : running_) {
      if (running.events) {
        running.span.on_device = true;
        running.span.device_start = time_of(running.events->start);
        running.span.device_end = time_of(running.events->end);
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
  void begin(Events& events) {
    mark(events.pause);
    if (pause_ > 0) gpu_runtime().pause(*stream_, pause_);
    mark(events.start);
  }
  // What an event takes by itself, where the device does not wait for the host.
  double own_time() const {
    if (pause_ <= 0) return 0;
    double least = 1;
    for (std::size_t i = 1; i < calibration_.size(); ++i)
      least = std::min(least, calibration_[i - 1]->elapsedTime(*calibration_[i]) * 1e-3);
    return least;
  }

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

  static constexpr double kFirstPauses = 20;  // no part has begun yet

  const Compute compute_;
  const double pause_;
  // On a GPU: the one that the work is put into. A thread of the backward pass has another one in force
  // while it goes from node to node.
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> origin_;  // when the host's clock was at begun_
  std::optional<Events> whole_;
  std::array<std::optional<c10::Event>, 4>
      calibration_;  // one right behind the other, after a pause
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

Recording record_operators(const Compute& compute, const std::function<void()>& work,
                           double pause) {
  Recorder recorder(compute, pause);
  {
    const Observation observation(recorder);
    work();
  }
  return recorder.finish();
}

double pause_for(const Recording& recording) {
  // Parts are not all alike, and with events and pauses between them the host takes longer.
  constexpr double kMargin = 5;
  const auto parts = std::count_if(recording.spans.begin(), recording.spans.end(),
                                   [](const Span& span) { return span.on_device; });
  return parts > 0 ? kMargin * recording.host_seconds / static_cast<double>(parts) : 0;
}

}  // namespace linescan::lab
