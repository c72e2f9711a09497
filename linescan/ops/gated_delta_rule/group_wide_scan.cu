// gated_delta_rule, the scan of group_scan.cu with outputs where heads are many: a block has 128 columns of V. Two warp
// groups carry S^T of 64 columns each and compute their outputs; they share k, q, A and P, and while one rounds what a
// product gave, the other's products run. A third group moves data.
//
// Outputs stand where v was, and leave from there.
//
// Numerics:  as group_scan.cu.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_group_scan.cuh"

namespace linescan {
namespace {

using enum DepthIs;

constexpr int kChains = 2;

// kStops: states at boundaries on the way, too.
template <typename T, int kKeys, bool kStops>
struct GroupWideScan {
  using Tiles = GroupScanTiles<T, kKeys, true, kChains * 64>;
  static constexpr int kChunk = Tiles::kChunk, kDepth = kChunk / 16;
  using Turns = GroupTurns<kChains, /*kDesk=*/false>;
  using Item = DeltaScanItem<kChunk>;

  const DeltaScanArgs<T>& args;
  const GroupScanBoxes& boxes;
  const GroupLanes lanes = {};

  // The group that moves data.
  __device__ __forceinline__ void move(const Item& at, Turns& turns) const {
    const GroupScanSource<T> source(args.in, args.sequences, at, args.in.v, args.in.vectors,
                                    args.records);
    const GroupScanOutputs<T> outputs(args.o, args.vectors, args.in.V, at);
    turns.move(
        at.chunks,
        [&](int stage, int64_t number, const auto& arrivals) {
          source.fetch(Tiles(stage), number, boxes, arrivals, stage);
        },
        [&](int stage, int64_t number) {
          outputs.template send<MovingGroup, Tiles::kValues>(number, Tiles(stage).v, source, boxes);
          wait_senders<MovingGroup>();
        });
  }

  // The groups that carry S^T.
  __device__ __forceinline__ void carry(const Item& at, Turns& turns, int chain) const {
    GroupState<T, kKeys, kStops> state(args, at, at.first_column + 64 * chain);
    FragmentA<T> rounded[kDepth];
    int stage = at.chunks > 0 ? turns.take() : 0;
#pragma unroll 1
    for (int64_t number = 0; number < at.chunks; ++number) {
      state.stop_at(number, args, at);
      const Tiles tile(stage);
      const Panels<T> own = {tile.v.data + chain * kChunk * 64, kChunk};
      Sums<kChunk / 8> sums, reads;
      group_begin(sums);
      group_multiply<kColumns>(sums, state.rounded, GroupOperand<T>{tile.k}, false);
      group_commit();
      group_begin(reads);
      group_multiply<kColumns>(reads, state.rounded, GroupOperand<T>{tile.q}, false);
      group_commit();
      FragmentA<T> v[kDepth];
      lanes.get_columns(v, own);
      const TokenFactors<kDepth> beta(tile, kBeta);
      const TokenFactors<kDepth> correction =
          correction_factors(beta, TokenFactors<kDepth>(tile, kReadK));
      group_wait<1>(sums);
      round_scaled(rounded, sums, correction, scaled_tokens(v, beta));
      // u^T
      group_begin(sums);
      group_multiply<kColumns>(sums, rounded, GroupOperand<T>{tile.A}, false);
      group_commit();
      state.sums.scale(tile.rows[kDecay * kChunk]);
      group_wait<1>(reads);
      scale_tokens(reads, TokenFactors<kDepth>(tile, kReadQ));
      const TokenFactors<kDepth> write(tile, kWrite);
      group_wait<0>(sums);
      round_scaled(rounded, sums, write);
      group_begin(state.sums);
      group_multiply<kRows>(state.sums, rounded, GroupOperand<T>{tile.k});
      group_commit();
      // o^T = (read_q o Q S)^T + (P u)^T
      FragmentA<T> u[kDepth];
      round_sums(u, sums);
      group_begin(reads);
      group_multiply<kColumns>(reads, u, GroupOperand<T>{tile.P});
      group_commit();
      const int next = number + 1 < at.chunks ? turns.take() : 0;
      group_wait<1>(state.sums);
      round_sums(state.rounded, state.sums);
      group_wait<0>(reads);
      round_sums(u, reads);
      lanes.put_columns(own, u);  // a warp's own columns: nobody else reads v there
      group_publish();
      turns.used(stage);
      stage = next;
    }
    turns.restart();
    state.end(args, at);
  }
};

template <typename T, int kKeys, bool kStops>
__global__ void __launch_bounds__(DeltaLayout::kGroupOutputThreads, 1)
    group_wide_scan_kernel(DeltaScanArgs<T> args, const __grid_constant__ GroupScanBoxes boxes) {
  using Scan = GroupWideScan<T, kKeys, kStops>;
  using Item = typename Scan::Item;
  const Scan scan = {args, boxes};
  typename Scan::Turns turns(
      args.cut.stages,
      reinterpret_cast<uint64_t*>(group_memory() + args.cut.stages * Scan::Tiles::kStageBytes));
  if (threadIdx.x == 0) turns.begin();
  __syncthreads();
  // The same in a warp; the shuffle says so to the compiler.
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroup, 0);
  if (group == kChains) {
    group_gives_registers<56>();
    for_each_scan_item<kKeys>(args, [&](const Item& at) { scan.move(at, turns); });
  } else {
    group_takes_registers<224>();
    for_each_scan_item<kKeys>(args, [&](const Item& at) { scan.carry(at, turns, group); });
  }
}

}  // namespace

template <typename T>
void launch_delta_group_wide_scan(const DeltaScanArgs<T>& args, int64_t padded_keys,
                                  const LaunchShape& shape, GpuStream stream) {
  const auto kernel_of = [&]<int kKeys>() {
    return args.segments.stop_tokens > 0 ? group_wide_scan_kernel<T, kKeys, true>
                                         : group_wide_scan_kernel<T, kKeys, false>;
  };
  launch("gated_delta_rule, scan",
         padded_keys == 64 ? kernel_of.template operator()<64>()
                           : kernel_of.template operator()<128>(),
         shape, stream, args, group_scan_boxes(args.in, args.sequences, args.in.v, args.o));
}
template void launch_delta_group_wide_scan(const DeltaScanArgs<BFloat16>&, int64_t,
                                           const LaunchShape&, GpuStream);
template void launch_delta_group_wide_scan(const DeltaScanArgs<Float16>&, int64_t,
                                           const LaunchShape&, GpuStream);

}  // namespace linescan
