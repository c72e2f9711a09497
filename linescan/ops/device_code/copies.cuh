// Copies from global to shared memory that are under way while the block computes.
#pragma once

#include "linescan/ops/device_code/cuda.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define LINESCAN_BULK_COPIES
#endif

namespace linescan {

// kBytes (4, 8 or 16) arrive at `shared`; both addresses are multiples of kBytes.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
#ifdef LINESCAN_CUDA_ON_CPU
  std::memcpy(shared, global, kBytes);
#else
  // A tile is a part of a 128-byte line in the shortest case; its neighbour is wanted next.
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::"r"(to), "l"(global),
                 "n"(kBytes)
                 : "memory");
#endif
}

// Sixteen bytes, or nothing, without a branch.
__device__ __forceinline__ void copy_async_if(bool yes, void* shared, const void* global) {
#ifdef LINESCAN_CUDA_ON_CPU
  if (yes) std::memcpy(shared, global, 16);
#else
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n"
      "@p cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(static_cast<int>(yes))
      : "memory");
#endif
}

// kBytes (4, 8 or 16) arrive at `shared`: `valid` of them from `global`, the rest zero. Both addresses
// are multiples of kBytes; nothing behind the valid bytes is read.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global, int valid) {
#ifdef LINESCAN_CUDA_ON_CPU
  if (valid > 0) std::memcpy(shared, global, valid);  // otherwise there may be no address
  std::memset(static_cast<unsigned char*>(shared) + valid, 0, kBytes - valid);
#else
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                 "r"(valid)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %3, %2;" ::"r"(to), "l"(global),
                 "r"(valid), "n"(kBytes)
                 : "memory");
#endif
}

// Contiguous bytes from shared to global memory by the copy engine of compute capability 9.0, when one thread asks; everything
// is a multiple of 16 bytes. What is sent has been published (group_publish()), and can be written again after wait_sent()
// of the same thread.
#ifdef LINESCAN_BULK_COPIES
inline constexpr bool kHasBulkCopies = true;

__device__ __forceinline__ void send_bulk(void* global, const void* shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait_sent() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
#else
inline constexpr bool kHasBulkCopies = false;

__device__ __forceinline__ void send_bulk(void*, const void*, int) {}
__device__ __forceinline__ void wait_sent() {}
#endif

// Places in shared memory that a team of threads fills over and over while others, the readers, work on what was there
// before.
//
//   of the team                                  of the readers
//   arrivals.expect(place, bytes);               arrivals.wait(place);
//   arrivals.copy(place, to, from, n); ..
//   copy_async(..); ..
//   arrivals.arrive(place);
//
// Of ordinary stores no arrival speaks: who makes some has a __threadfence_block() behind them. `bytes`: of all that copy() and
// fetch_box() (row_boxes.cuh) bring in this turn, possibly none. That the readers are through with a place the team is told
// otherwise. Where the hardware has copies in bulk (compute capability 9.0 on) one thread asks for them, nobody but the
// readers waits, and arrivals are barriers in shared memory; elsewhere the team copies pack by pack, waits when it arrives, and
// places are barriers of the block from kFirstBarrier on. A team of 0, where there are copies in bulk: one thread only expects and copies.
template <int kTeam, int kReaders, int kPlaces, int kFirstBarrier>
class Arrivals {
 public:
  // `barriers` [kPlaces] in shared memory.
  __device__ __forceinline__ explicit Arrivals([[maybe_unused]] uint64_t* barriers) {
#ifdef LINESCAN_BULK_COPIES
    barriers_ = static_cast<unsigned>(__cvta_generic_to_shared(barriers));
#endif
  }
  // By one thread; the block meets before anything else.
  __device__ __forceinline__ void begin() const {
#ifdef LINESCAN_BULK_COPIES
    for (int place = 0; place < kPlaces; ++place)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier(place)), "n"(kTeam + 1)
                   : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }

  // ---- The team, of which `thread` is one ----
  __device__ __forceinline__ void expect([[maybe_unused]] int thread, [[maybe_unused]] int place,
                                         [[maybe_unused]] unsigned bytes) const {
#ifdef LINESCAN_BULK_COPIES
    if (thread == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier(place)),
                   "r"(bytes)
                   : "memory");
#endif
  }
  // Contiguous memory; everything is a multiple of 16 bytes.
  __device__ __forceinline__ void copy(int thread, [[maybe_unused]] int place, void* shared,
                                       const void* global, int bytes) const {
#ifdef LINESCAN_BULK_COPIES
    if (thread == 0)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
          "l"(global), "r"(bytes), "r"(barrier(place))
          : "memory");
#else
    static_assert(kTeam > 0);
#pragma unroll 8
    for (int at = 16 * thread; at < bytes; at += 16 * kTeam)
      copy_async<16>(static_cast<std::byte*>(shared) + at,
                     static_cast<const std::byte*>(global) + at);
#endif
  }
  __device__ __forceinline__ void arrive(int place) const {
#ifdef LINESCAN_BULK_COPIES
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier(place))
                 : "memory");
#else
    commit_copies();
    wait_copies<0>();
    barrier_arrive(kFirstBarrier + place, kTeam + kReaders);
#endif
  }

  // ---- The readers ----
  __device__ __forceinline__ void wait(int place) {
#ifdef LINESCAN_BULK_COPIES
    unsigned arrived = 0;
    while (!arrived)
      asm volatile(
          "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
          "p;}"
          : "=r"(arrived)
          : "r"(barrier(place)), "r"(turns_ >> place & 1)
          : "memory");
    turns_ ^= 1u << place;
#else
    barrier_wait(kFirstBarrier + place, kTeam + kReaders);
#endif
  }

  // For copies that know barriers in shared memory (row_boxes.cuh).
#ifdef LINESCAN_BULK_COPIES
  __device__ __forceinline__ unsigned barrier(int place) const { return barriers_ + 8 * place; }

 private:
  unsigned barriers_, turns_ = 0;  // a bit a place
#else
  __device__ __forceinline__ unsigned barrier(int) const { return 0; }
#endif
};

}  // namespace linescan
