#include "tests/support/cuda_on_cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
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
  std::vector<Fiber> fibers;  // stacks are kept for blocks to come, which may have more threads
  std::vector<Warp> warps;
  std::vector<unsigned char> shared;
  Barrier barrier, named[kNamedBarriers];
  int threads = 0, alive = 0, current = 0;
  bool reversed = true;  // the order in which threads are asked whether they can go on
  void* scheduler = nullptr;
  void (*thread)(void*) = nullptr;
  void* context = nullptr;
};
Block block;

#if defined(__SANITIZE_ADDRESS__)
const void* scheduler_stack = nullptr;
std::size_t scheduler_stack_bytes = 0;
bool from_scheduler = false;  // who switched last
#endif

// What the address sanitizer has to know of a switch: before it, where it goes and whether for good; in the frame that
// switches, because one that is left for good may be gone behind it ...
[[gnu::always_inline]] inline void* leave_stack(const Fiber* to, bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  const void* const stack = to ? to->stack.get() : scheduler_stack;
  const std::size_t bytes = to ? kStackBytes : scheduler_stack_bytes;
  if (for_good) {
    __sanitizer_start_switch_fiber(nullptr, stack, bytes);
    return nullptr;
  }
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack, bytes);
  return fake;
#else
  static_cast<void>(to), static_cast<void>(for_good);
  return nullptr;
#endif
}
// ... and behind it, on the stack that goes on.
void go_on(void* fake) {
#if defined(__SANITIZE_ADDRESS__)
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake, &stack, &bytes);
  if (std::exchange(from_scheduler, false)) scheduler_stack = stack, scheduler_stack_bytes = bytes;
#else
  static_cast<void>(fake);
#endif
}

bool can_go_on(const Fiber& fiber) {
  return !fiber.done && (fiber.waits_for == nullptr || *fiber.waits_for != fiber.seen);
}

// The next thread behind the current one that can go on, itself last of all; null: none can.
Fiber* next_fiber() {
  const int step = block.reversed ? block.threads - 1 : 1;
  for (int i = 0, index = block.current; i < block.threads; ++i) {
    index += step;
    if (index >= block.threads) index -= block.threads;
    Fiber& fiber = block.fibers[index];
    if (!can_go_on(fiber)) continue;
    fiber.waits_for = nullptr;
    block.current = index;
    threadIdx = {static_cast<unsigned>(index), 0, 0};
    return &fiber;
  }
  return nullptr;
}

void enter_fiber(Fiber& fiber) {
  void* const fake = leave_stack(&fiber, false);
#if defined(__SANITIZE_ADDRESS__)
  from_scheduler = true;
#endif
  linescan_switch_stack(&block.scheduler, fiber.pointer);
  go_on(fake);
}

// From thread to thread; to the scheduler when none can go on.
void leave_fiber(bool for_good) {
  Fiber& fiber = block.fibers[block.current];
  const Fiber* const next = next_fiber();
  if (next == &fiber) return;
  void* const fake = leave_stack(next, for_good);
  linescan_switch_stack(&fiber.pointer, next ? next->pointer : block.scheduler);
  go_on(fake);
}

void run_thread() {
  go_on(nullptr);
  block.thread(block.context);
  block.fibers[block.current].done = true;
  --block.alive;
  leave_fiber(true);
  std::abort();
}

void start(Fiber& fiber) {
  if (!fiber.stack) {
    fiber.stack.reset(new unsigned char[kStackBytes]);
  } else {
#if defined(__SANITIZE_ADDRESS__)
    // The thread before it left its first two functions without returning; all of them where its block was given up.
    const std::size_t bytes = fiber.done ? 4096 : kStackBytes;
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack.get() + kStackBytes - bytes, bytes);
#endif
  }
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

void block_barrier() { meet(block.barrier, block.threads, true); }

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

void raise_flag(unsigned* flag) {
  if (*flag != 0)
    throw_error<DeviceError>("block {} raises a flag that nobody has taken down", blockIdx.x);
  *flag = 1;
}

void wait_flag(unsigned* flag) {
  if (*flag != 1)
    throw_error<DeviceError>("block {} waits for a flag that no block before it has raised",
                             blockIdx.x);
  *flag = 0;
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

// A B + c of the lanes, in the place of c. The emulator's own memory, and the innermost loop of most tests: not for the
// sanitizers, and so without calls.
[[gnu::no_sanitize("address", "undefined")]] void multiply_offers(unsigned char* offers,
                                                                  int depth) {
  static_assert(sizeof(Operands) == kLargestExchange);
  auto* const lanes = reinterpret_cast<Operands*>(offers);
  const int each = depth / 8, half = depth / 2;
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const Operands& own = lanes[lane];
    const int g = lane / 4, k = lane % 4 * each;
    for (int i = 0; i < each; ++i) {
      a[g][k + i] = own.a[0][i], a[g + 8][k + i] = own.a[1][i];
      a[g][half + k + i] = own.a[2][i], a[g + 8][half + k + i] = own.a[3][i];
      b[k + i][g] = own.b[0][i], b[half + k + i][g] = own.b[1][i];
    }
  }
  for (int row = 0; row < 16; ++row) {
    Operands* const of_row = lanes + row % 8 * 4;
    float sums[8];
    for (int n = 0; n < 8; ++n) sums[n] = of_row[n / 2].c[row / 8 * 2 + n % 2];
    for (int k = 0; k < depth; ++k)
      for (int n = 0; n < 8; ++n) sums[n] += a[row][k] * b[k][n];
    for (int n = 0; n < 8; ++n) of_row[n / 2].c[row / 8 * 2 + n % 2] = sums[n];
  }
}

}  // namespace

const float* multiply_with_warp(const Operands& own, int depth) {
  Warp& warp = block.warps[block.current / kLanes];
  unsigned char* const place = place_of_offer();
  const auto* const offered = ::new (place) Operands(own);
  if (warp.arrived + 1 == kLanes) multiply_offers(warp.offers[warp.exchanges % 2], depth);
  meet_warp();
  return offered->c;
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
  block.reversed = !block.reversed;
  if (threads % kLanes != 0)
    throw_error<DeviceError>("{}: {} threads a block, expected a multiple of 32", what, threads);
  if (static_cast<int>(block.fibers.size()) < threads) block.fibers.resize(threads);
  block.threads = threads;
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
    for (int i = 0; i < threads; ++i) start(block.fibers[i]);
    block.current = block.reversed ? 0 : threads - 1;  // the last to be asked
    while (block.alive > 0) {
      Fiber* const fiber = next_fiber();
      if (!fiber)
        throw_error<DeviceError>("{}: block {} waits at a barrier that not all threads reach: {}",
                                 what, b, waiting_warps());
      enter_fiber(*fiber);
    }
  }
}

}  // namespace linescan::on_cpu
