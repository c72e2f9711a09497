// Matrix products of four neighbouring warps: sums [64, 8 kTiles], of which warp w has rows 16 w to 16 w + 15
// as multiply() leaves them. On sm_90a they are its warp group instructions, which run beside the warps
// and read shared memory by themselves; everywhere else, products of the single warps.
//
//   group_begin(sums);          sums and operands in registers may be read from here on
//   group_multiply..(sums, ..); any number of them
//   group_commit();
//   group_wait<0>(sums);        until here, hands off the sums and what is multiplied
//
// Between products that add to the same sums group_begin() stands alone: what other registers were given is then seen.
//
// Half types. Warp 0 of a group has a number that is a multiple of four.
#pragma once

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/device_code/tile_product.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LINESCAN_WARP_GROUPS
#endif

namespace linescan {

// A matrix of 16-bit numbers in shared memory, cut into panels of 64 columns. In a panel the eight packs of
// eight columns of a row stand in an order that changes with the row, so that neither eight rows of a pack nor
// a row's packs share banks (the swizzle of 128 bytes of the instructions). `data` is a multiple of 1024 bytes.
template <typename T>
struct Panels {
  T* data;
  int rows;  // a multiple of 8

  __device__ __forceinline__ T* at(int row, int column) const {
    return data + (column / 64 * rows + row) * 64 + ((column / 8 ^ row) % 8 * 8 + column % 8);
  }
};

// The block's dynamic shared memory, a multiple of 1024 bytes.
__device__ __forceinline__ unsigned char* group_memory() {
#ifdef LINESCAN_CUDA_ON_CPU
  return shared_memory();
#else
  extern __shared__ __align__(1024) unsigned char linescan_group_memory[];
  return linescan_group_memory;
#endif
}

// Registers a thread from here on, a multiple of eight; all four warps of a group call it, in one branch of the kernel.
template <int kRegisters>
__device__ __forceinline__ void group_gives_registers() {
#ifdef LINESCAN_WARP_GROUPS
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void group_takes_registers() {
#ifdef LINESCAN_WARP_GROUPS
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// The thread's warp. Operands that differ from group to group start at addresses that follow from it.
__device__ __forceinline__ int uniform_warp() {
  return uniform(static_cast<int>(threadIdx.x) / 32);
}

// What this thread stored to shared memory so far may be read by products, and by copies in bulk (copies.cuh), after the next
// barrier. What copy_async() brought needs no more than wait_copies() and a barrier: NVIDIA's CUTLASS relies on that, too
// (sm90_mma_multistage_gmma_ss_warpspecialized.hpp). Expensive: waits for all that the thread has under way in memory.
__device__ __forceinline__ void group_publish() {
#ifdef LINESCAN_BULK_COPIES  // wherever there are warp groups, and elsewhere
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// What stands where in an operand of depth k: the numbers of one k in a column of the matrix, or in a row.
enum class DepthIs { kColumns, kRows };

// A block of a matrix that starts at a row (a multiple of 8) and column (of 64; where depth is rows, 32). The same for all threads
// of a group.
template <typename T>
struct GroupOperand {
  Panels<T> matrix;
  int row = 0, column = 0;
};

// The counterpart of load_matrices(): the warp's four 8 x 8 matrices to rows in shared memory, lanes 8 i to 8 i + 7
// give those of matrix i. transposed: a row in memory is a column of the matrix.
template <bool kTransposed>
__device__ __forceinline__ void store_matrices(void* row, const uint32_t (&words)[4]) {
#ifdef LINESCAN_WARP_GROUPS
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
#else
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto to =
        __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(row), 8 * i + lane / 4);
    reinterpret_cast<uint32_t*>(to)[lane % 4] = kTransposed ? transpose_8x8(words[i]) : words[i];
  }
#endif
}

// The warp's part of an operand A, at depth k.
template <DepthIs kDepth, typename T>
__device__ __forceinline__ void load_a(FragmentA<T>& a, const GroupOperand<T>& from, int k) {
  const int lane = threadIdx.x % 32, m = threadIdx.x / 32 % 4 * 16;
  if constexpr (kDepth == DepthIs::kColumns)
    load_matrices(a.words,
                  from.matrix.at(from.row + m + lane % 16, from.column + k + lane / 16 * 8));
  else
    load_matrices_transposed(a.words, from.matrix.at(from.row + k + lane % 8 + lane / 16 * 8,
                                                     from.column + m + lane / 8 % 2 * 8));
}

#ifdef LINESCAN_WARP_GROUPS

namespace warp_group {

// Where an operand starts and how it goes on, as the instructions take it; addresses in steps of 16 bytes.
template <DepthIs kDepth, typename T>
__device__ __forceinline__ uint32_t place_of(const GroupOperand<T>& operand) {
  const int row = operand.row, column = operand.column;
  const T* const at =
      operand.matrix.data + (column / 64 * operand.matrix.rows + row) * 64 + column % 64;
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(at)) >> 4;
  const uint32_t to_next_panel = operand.matrix.rows * 8;
  return to_next_panel << 16 | address;
}
__device__ __forceinline__ uint64_t descriptor(uint32_t place) {
  constexpr uint32_t kEightRows = 64, kSwizzle128 = 1u << 30;
  return uint64_t{kEightRows | kSwizzle128} << 32 | place;
}
// What is added to it for the numbers of depth from k on; the operand starts with a panel.
template <DepthIs kDepth>
__device__ __forceinline__ constexpr uint32_t advance(int k, int rows) {
  return kDepth == DepthIs::kRows ? k * 8 : k / 64 * rows * 8 + k % 64 / 8;
}

// multiply(sums, a, b, add): a is a descriptor, or the registers of a FragmentA.
template <typename T, int kTiles>
struct Instruction;

#define LINESCAN_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LINESCAN_NAMES_16 \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LINESCAN_NAMES_32 \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define LINESCAN_NAMES_48 \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LINESCAN_TILE(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define LINESCAN_TILES(i) \
  LINESCAN_TILE(i), LINESCAN_TILE(i + 1), LINESCAN_TILE(i + 2), LINESCAN_TILE(i + 3)
// Names, and tiles of the sums; `p1` to `p7`: the names behind those of the sums.
#define LINESCAN_INSTRUCTION(Type, type, tiles, shape, names, p1, p2, p3, p4, p5, p6, p7, ...)    \
  template <>                                                                                     \
  struct Instruction<Type, tiles> {                                                               \
    template <int kTransposeA, int kTransposeB>                                                   \
    static __device__ __forceinline__ void multiply(float (&d)[tiles][4], uint64_t a, uint64_t b, \
                                                    int add) {                                    \
      asm volatile("{.reg .pred add; setp.ne.b32 add, " p3                                        \
                   ", 0; wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names    \
                   "}, " p1 ", " p2 ", add, 1, 1, " p4 ", " p5 ";}"                               \
                   : __VA_ARGS__                                                                  \
                   : "l"(a), "l"(b), "r"(add), "n"(kTransposeA), "n"(kTransposeB));               \
    }                                                                                             \
    template <int kTransposeB>                                                                    \
    static __device__ __forceinline__ void multiply(float (&d)[tiles][4],                         \
                                                    const FragmentA<Type>& a, uint64_t b,         \
                                                    int add) {                                    \
      asm volatile("{.reg .pred add; setp.ne.b32 add, " p6                                        \
                   ", 0; wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names    \
                   "}, {" p1 ", " p2 ", " p3 ", " p4 "}, " p5 ", add, 1, 1, " p7 ";}"             \
                   : __VA_ARGS__                                                                  \
                   : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "l"(b),  \
                     "r"(add), "n"(kTransposeB));                                                 \
    }                                                                                             \
  };
#define LINESCAN_INSTRUCTIONS(Type, type)                                                          \
  LINESCAN_INSTRUCTION(Type, type, 4, "m64n32k16", LINESCAN_NAMES_0, "%16", "%17", "%18", "%19",   \
                       "%20", "%21", "%22", LINESCAN_TILES(0))                                     \
  LINESCAN_INSTRUCTION(Type, type, 8, "m64n64k16", LINESCAN_NAMES_0 ", " LINESCAN_NAMES_16, "%32", \
                       "%33", "%34", "%35", "%36", "%37", "%38", LINESCAN_TILES(0),                \
                       LINESCAN_TILES(4))                                                          \
  LINESCAN_INSTRUCTION(Type, type, 16, "m64n128k16",                                               \
                       LINESCAN_NAMES_0 ", " LINESCAN_NAMES_16 ", " LINESCAN_NAMES_32              \
                                        ", " LINESCAN_NAMES_48,                                    \
                       "%64", "%65", "%66", "%67", "%68", "%69", "%70", LINESCAN_TILES(0),         \
                       LINESCAN_TILES(4), LINESCAN_TILES(8), LINESCAN_TILES(12))
LINESCAN_INSTRUCTIONS(BFloat16, "bf16")
LINESCAN_INSTRUCTIONS(Float16, "f16")
#undef LINESCAN_INSTRUCTIONS
#undef LINESCAN_INSTRUCTION
#undef LINESCAN_TILES
#undef LINESCAN_TILE
#undef LINESCAN_NAMES_48
#undef LINESCAN_NAMES_32
#undef LINESCAN_NAMES_16
#undef LINESCAN_NAMES_0

// The compiler does not move what reads or writes the sums across this.
template <int kTiles>
__device__ __forceinline__ void pin(Sums<kTiles>& sums) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+f"(sums.tiles[i][j])::"memory");
}

}  // namespace warp_group

template <int... kTiles>
__device__ __forceinline__ void group_begin(Sums<kTiles>&... sums) {
  (warp_group::pin(sums), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void group_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending committed products, the last ones, are under way.
template <int kPending, int... kTiles>
__device__ __forceinline__ void group_wait(Sums<kTiles>&... sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  (warp_group::pin(sums), ...);
}

#else

template <int... kTiles>
__device__ __forceinline__ void group_begin(Sums<kTiles>&...) {}
__device__ __forceinline__ void group_commit() {}
template <int kPending, int... kTiles>
__device__ __forceinline__ void group_wait(Sums<kTiles>&...) {}

// Two fragments of B for 16 columns of the sums from n on.
template <DepthIs kDepth, typename T>
__device__ __forceinline__ void load_b(FragmentB<T> (&b)[2], const GroupOperand<T>& from, int n,
                                       int k) {
  const int lane = threadIdx.x % 32;
  uint32_t words[4];
  if constexpr (kDepth == DepthIs::kColumns)
    load_matrices(words, from.matrix.at(from.row + n + lane % 8 + lane / 16 * 8,
                                        from.column + k + lane / 8 % 2 * 8));
  else
    load_matrices_transposed(
        words, from.matrix.at(from.row + k + lane % 16, from.column + n + lane / 16 * 8));
#pragma unroll
  for (int i = 0; i < 4; ++i) b[i >> 1].words[i & 1] = words[i];
}
#endif  // LINESCAN_WARP_GROUPS

// sums += A B, A [64, 16 kDepth] in registers; without `add` sums = A B, whatever they were.
template <DepthIs kOfB, typename T, int kTiles, int kDepth>
__device__ __forceinline__ void group_multiply(Sums<kTiles>& sums, const FragmentA<T> (&a)[kDepth],
                                               const GroupOperand<T>& b, bool add = true) {
#ifdef LINESCAN_WARP_GROUPS
  const uint32_t right = warp_group::place_of<kOfB>(b);
#pragma unroll
  for (int k = 0; k < kDepth; ++k)
    warp_group::Instruction<T, kTiles>::template multiply<kOfB == DepthIs::kRows>(
        sums.tiles, a[k],
        warp_group::descriptor(right + warp_group::advance<kOfB>(16 * k, b.matrix.rows)),
        add || k > 0);
#else
  if (!add) sums.clear();
#pragma unroll
  for (int k = 0; k < kDepth; ++k)
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      FragmentB<T> right[2];
      load_b<kOfB>(right, b, 16 * n, 16 * k);
      multiply_add(sums, n, a[k], right);
    }
#endif
}
// The same with A in shared memory.
template <DepthIs kOfA, DepthIs kOfB, int kDepth, typename T, int kTiles>
__device__ __forceinline__ void group_multiply(Sums<kTiles>& sums, const GroupOperand<T>& a,
                                               const GroupOperand<T>& b, bool add = true) {
#ifdef LINESCAN_WARP_GROUPS
  const uint32_t left = warp_group::place_of<kOfA>(a), right = warp_group::place_of<kOfB>(b);
#pragma unroll
  for (int k = 0; k < kDepth; k += 16)
    warp_group::Instruction<T, kTiles>::template multiply<kOfA == DepthIs::kRows,
                                                          kOfB == DepthIs::kRows>(
        sums.tiles, warp_group::descriptor(left + warp_group::advance<kOfA>(k, a.matrix.rows)),
        warp_group::descriptor(right + warp_group::advance<kOfB>(k, b.matrix.rows)), add || k > 0);
#else
  if (!add) sums.clear();
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    FragmentA<T> left;
    load_a<kOfA>(left, a, k);
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      FragmentB<T> right[2];
      load_b<kOfB>(right, b, 16 * n, k);
      multiply_add(sums, n, left, right);
    }
  }
#endif
}

}  // namespace linescan
