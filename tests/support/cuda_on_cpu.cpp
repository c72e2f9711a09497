#include "tests/support/cuda_on_cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "linescan/base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;

// Saves the registers that a call must keep on the running stack, stores its pointer at *save, and
// goes on where the stack `load` was left.
asm(R"(
.text
.globl linescan_switch_stack
.type linescan_switch_stack,@function
linescan_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size linescan_switch_stack,.-linescan_switch_stack
)");
extern "C" void linescan_switch_stack(void** save, void* load);

namespace linescan::on_cpu {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr std::size_t kAlignment = 1024;  // of dynamic shared memory
constexpr int kLanes = 32;
constexpr int kNamedBarriers = 16;  // number 0 is block_barrier's

struct Warp {
  int arrived = 0, exchanges = 0;  // lanes at the exchange under way; exchanges completed
  alignas(16) unsigned char offers[2][kLanes * kLargestExchange];
};

struct Barrier {
  int arrived = 0, completed = 0;
};

struct Fiber {
  std::unique_ptr<unsigned char[]> stack;
  void* pointer = nullptr;
  const int* waits_for = nullptr;  // goes on when *waits_for differs from `seen`
  int seen = 0;
  bool done = false;
};

// The block that runs; blocks run one after another.
struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<unsigned char> shared;
  Barrier barrier, named[kNamedBarriers];
  int alive = 0, current = 0;
  void* scheduler = nullptr;
  void (*thread)(void*) = nullptr;
  void* context = nullptr;
};
Block block;

const void* scheduler_stack = nullptr;
std::size_t scheduler_stack_bytes = 0;

void enter_fiber(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, fiber.stack.get(), kStackBytes);
#endif
  linescan_switch_stack(&block.scheduler, fiber.pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void leave_fiber(bool for_good) {
  Fiber& fiber = block.fibers[block.current];
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, scheduler_stack,
                                 scheduler_stack_bytes);
#else
  static_cast<void>(for_good);
#endif
  linescan_switch_stack(&fiber.pointer, block.scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

void run_thread() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
  block.thread(block.context);
  block.fibers[block.current].done = true;
  --block.alive;
  leave_fiber(true);
  std::abort();
}

void start(Fiber& fiber) {
  if (!fiber.stack) fiber.stack.reset(new unsigned char[kStackBytes]);
#if defined(__SANITIZE_ADDRESS__)
  // The thread before it left the stack without ever returning.
  ASAN_UNPOISON_MEMORY_REGION(fiber.stack.get(), kStackBytes);
#endif
  // As after six pushes and a call from nowhere: `ret` enters run_thread with an aligned stack.
  auto* top = reinterpret_cast<void**>(
      (reinterpret_cast<std::uintptr_t>(fiber.stack.get()) + kStackBytes) & ~std::uintptr_t{15});
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&run_thread);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.pointer = top;
  fiber.waits_for = nullptr;
  fiber.done = false;
}

void wait_for_change(const int& counter, int seen) {
  Fiber& fiber = block.fibers[block.current];
  fiber.waits_for = &counter;
  fiber.seen = seen;
  leave_fiber(false);
}

}  // namespace

namespace {

void meet(Barrier& barrier, int threads, bool waits) {
  const int seen = barrier.completed;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.completed;
  } else if (waits) {
    wait_for_change(barrier.completed, seen);
  }
}

}  // namespace

void block_barrier() { meet(block.barrier, static_cast<int>(block.fibers.size()), true); }

void named_barrier(int barrier, int threads, bool waits) {
  if (barrier < 1 || barrier >= kNamedBarriers)
    throw_error<DeviceError>("barrier {}: expected 1 to {}", barrier, kNamedBarriers - 1);
  meet(block.named[barrier], threads, waits);
}

void begin_signal(uint64_t* signal) { ::new (signal) int(0); }

void give_signal(uint64_t* signal) { ++*reinterpret_cast<int*>(signal); }

void wait_signal(const uint64_t* signal, int turn) {
  const int& given = *reinterpret_cast<const int*>(signal);
  if (given > turn + 1)  // the barrier's one bit would say that the turn is still to come
    throw_error<DeviceError>("a signal waited for turn {} when {} were given", turn, given);
  while (given == turn) wait_for_change(given, turn);
}

unsigned char* place_of_offer() {
  Warp& warp = block.warps[block.current / kLanes];
  return warp.offers[warp.exchanges % 2] + block.current % kLanes * kLargestExchange;
}

const unsigned char* meet_warp() {
  Warp& warp = block.warps[block.current / kLanes];
  const int seen = warp.exchanges;
  const unsigned char* offers = warp.offers[seen % 2];
  if (++warp.arrived == kLanes) {
    warp.arrived = 0;
    ++warp.exchanges;
  } else {
    wait_for_change(warp.exchanges, seen);
  }
  return offers;
}

namespace {

// "warp 0 at barrier 3, warp 8 in an exchange": by the first thread of each that has not ended.
std::string waiting_warps() {
  std::string text;
  for (std::size_t w = 0; w < block.warps.size(); ++w) {
    const auto first = block.fibers.begin() + static_cast<std::ptrdiff_t>(w * kLanes);
    const auto fiber = std::find_if(first, first + kLanes, [](const Fiber& f) { return !f.done; });
    if (fiber == first + kLanes) continue;
    std::string at = "in an exchange";
    if (fiber->waits_for == &block.barrier.completed) at = "at __syncthreads()";
    for (int i = 1; i < kNamedBarriers; ++i)
      if (fiber->waits_for == &block.named[i].completed) at = fmt::format("at barrier {}", i);
    text += fmt::format("{}warp {} {}", text.empty() ? "" : ", ", w, at);
  }
  return text;
}

}  // namespace

unsigned char* dynamic_shared_memory() {
  auto address = reinterpret_cast<std::uintptr_t>(block.shared.data());
  return block.shared.data() + (kAlignment - address % kAlignment) % kAlignment;
}

void run_grid(const char* what, int64_t grid, int threads, int64_t shared_bytes,
              void (*thread)(void*), void* context) {
  static bool reversed = true;
  reversed = !reversed;
  if (threads % kLanes != 0)
    throw_error<DeviceError>("{}: {} threads a block, expected a multiple of 32", what, threads);
  block.fibers.resize(threads);
  block.warps.assign(threads / kLanes, {});
  block.thread = thread;
  block.context = context;
  blockDim = {static_cast<unsigned>(threads)};
  gridDim = {static_cast<unsigned>(grid)};
  for (int64_t b = 0; b < grid; ++b) {
    blockIdx = {static_cast<unsigned>(b), 0, 0};
    // Exactly what was asked for, so that the sanitizer sees the end; and a little to align the start.
    block.shared.assign(static_cast<std::size_t>(shared_bytes) + kAlignment - 1, 0xFF);
    block.barrier.arrived = 0;
    for (Barrier& barrier : block.named) barrier.arrived = 0;
    block.alive = threads;
    for (Fiber& fiber : block.fibers) start(fiber);
    while (block.alive > 0) {
      bool progress = false;
      for (int i = 0; i < threads; ++i) {
        const int index = reversed ? threads - 1 - i : i;
        Fiber& fiber = block.fibers[index];
        if (fiber.done || (fiber.waits_for != nullptr && *fiber.waits_for == fiber.seen)) continue;
        fiber.waits_for = nullptr;
        block.current = index;
        threadIdx = {static_cast<unsigned>(index), 0, 0};
        enter_fiber(fiber);
        progress = true;
      }
      if (!progress)
        throw_error<DeviceError>("{}: block {} waits at a barrier that not all threads reach: {}",
                                 what, b, waiting_warps());
    }
  }
}

}  // namespace linescan::on_cpu
