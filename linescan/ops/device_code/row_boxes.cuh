// Boxes of a tensor [batch, tokens, heads, numbers] of half types: 64 tokens of a head, 64 numbers wide, which the copy
// engine of compute capability 9.0 moves to and from a panel in shared memory (group_product.cuh) when one thread asks.
// What the tensor does not have comes as zeros and is not stored. Elsewhere there are none.
#pragma once

#include "linescan/ops/device_code/copies.cuh"

namespace linescan {

// The engine's description of a tensor, a parameter of a kernel: __grid_constant__.
struct alignas(64) RowBoxes {
  unsigned char bytes[128];
};

// Sizes and strides of numbers, heads, tokens and batch, in numbers; the first stride is one. False: there are no boxes of
// this tensor, or none on this device.
bool describe_rows(RowBoxes& boxes, const void* data, const int64_t (&sizes)[4],
                   const int64_t (&strides)[4]);

// Where a box starts.
struct BoxPlace {
  int number, head, token, batch;
};

#ifdef LINESCAN_BULK_COPIES
inline constexpr bool kHasBoxes = true;

// By one thread; `barrier`: where the box arrives, 8192 bytes.
__device__ __forceinline__ void fetch_box(const RowBoxes& boxes, const BoxPlace& place, void* panel,
                                          unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4, %5}], [%6];" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(panel))),
      "l"(&boxes), "r"(place.number), "r"(place.head), "r"(place.token), "r"(place.batch),
      "r"(barrier)
      : "memory");
}
// By one thread: into the second-level cache, for a fetch to come.
__device__ __forceinline__ void prefetch_box(const RowBoxes& boxes, const BoxPlace& place) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&boxes),
      "r"(place.number), "r"(place.head), "r"(place.token), "r"(place.batch)
      : "memory");
}
__device__ __forceinline__ void prefetch_bulk(const void* global, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
// By one thread, when the panel is published (group_publish()); it can be written again after wait_sent() of the same thread.
__device__ __forceinline__ void store_box(const RowBoxes& boxes, const BoxPlace& place,
                                          const void* panel) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::
          "l"(&boxes),
      "r"(place.number), "r"(place.head), "r"(place.token), "r"(place.batch),
      "r"(static_cast<unsigned>(__cvta_generic_to_shared(panel)))
      : "memory");
}

#else
inline constexpr bool kHasBoxes = false;

__device__ __forceinline__ void fetch_box(const RowBoxes&, const BoxPlace&, void*, unsigned) {}
__device__ __forceinline__ void prefetch_box(const RowBoxes&, const BoxPlace&) {}
__device__ __forceinline__ void prefetch_bulk(const void*, int) {}
__device__ __forceinline__ void store_box(const RowBoxes&, const BoxPlace&, const void*) {}
#endif

}  // namespace linescan
