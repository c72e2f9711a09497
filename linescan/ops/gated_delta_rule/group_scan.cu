// gated_delta_rule, the scan over the chunks of a sequence by warp groups: what chunk_scan.cu computes, for half
// types, 64 or 128 keys, where products of warp groups are to be had.
//
//   u = A (beta o (V - read_k o (K S)))        o = read_q o (Q S) + P u        S <- decay S + K^T (write o u)
//
// Held transposed as there: the sums of one product are, rounded, the left operand of the next.
//
// Numerics:  S and all sums in float32; operands of products are rounded to T.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_group_scan.cuh"

namespace linescan {
namespace {

using enum DepthIs;

// What a scan leaves: outputs, which a group of their own computes, perhaps with states at boundaries on the way; states and corrections
// of all chunks; or nothing but ends, and then two blocks share a multiprocessor.
enum class ScanLeaves { kOutputs, kOutputsAndStops, kChunks, kEnds };

template <typename T, int kKeys, ScanLeaves kLeaves>
struct GroupScan {
  static constexpr bool kStops = kLeaves == ScanLeaves::kOutputsAndStops;
  static constexpr bool kOutputs = kStops || kLeaves == ScanLeaves::kOutputs;
  static constexpr bool kEnds = kLeaves == ScanLeaves::kEnds;

  using Tiles = GroupScanTiles<T, kKeys, kOutputs>;
  using Desk = GroupDesk<Tiles, T, kKeys>;
  static constexpr int kChunk = Tiles::kChunk, kDepth = kChunk / 16;
  static constexpr int kUsers = kOutputs ? 2 : 1;  // of a stage
  static constexpr int kThreads =
      kOutputs ? DeltaLayout::kGroupOutputThreads : DeltaLayout::kGroupScanThreads;
  using Turns = GroupTurns<kUsers>;
  using Item = DeltaScanItem<kChunk>;

  const DeltaScanArgs<T>& args;
  const GroupScanBoxes& boxes;
  const GroupLanes lanes = {};

  __device__ __forceinline__ Desk desk(int64_t number) const {
    return Desk(args.cut.stages, number);
  }
  // Where copies arrive, behind what else a block has in shared memory.
  static __device__ __forceinline__ uint64_t* arrivals(int stages) {
    return kEnds ? Desk::behind_stages(stages) : Desk::arrivals(stages);
  }

  // The group that moves data.
  __device__ __forceinline__ void move(const Item& at, Turns& turns) const {
    const GroupScanWorkspace<kKeys, T> workspace = {args.states, args.corrections, args.cut,
                                                    at.first_column};
    const GroupScanSource<T> source(args.in, args.sequences, at, args.in.v, args.in.vectors,
                                    args.records);
    const GroupScanOutputs<T> outputs(args.o, args.vectors, args.in.V, at);
    turns.move(
        at.chunks,
        [&](int stage, int64_t number, const auto& arrivals) {
          source.fetch(Tiles(stage), number, boxes, arrivals, stage);
        },
        [&](int, int64_t number) {
          const Desk from = desk(number);
          if constexpr (kOutputs) {
            outputs.template send<MovingGroup, 64>(number, from.tokens, source, boxes);
          } else if constexpr (!kEnds) {
            workspace.template send_state<MovingGroup>(at.row(number), from.state);
            workspace.template send_corrections<MovingGroup>(at.row(number), from.tokens);
          }
          wait_senders<MovingGroup>();
        });
  }

  // The group that makes outputs: o^T = (read_q o Q S)^T + (P u)^T
  __device__ __forceinline__ void make_outputs(const Item& at, Turns& turns) const {
#pragma unroll 1
    for (int64_t number = 0; number < at.chunks; ++number) {
      const int stage = turns.take();
      const Tiles tile(stage);
      const Desk from = desk(number);
      const TokenFactors<kDepth> read(tile, kReadQ);
      turns.wait_state(number);
      FragmentA<T> left[kKeys / 16], u[kDepth];
      lanes.get_rows(left, from.state);
      Sums<kChunk / 8> reads;
      group_begin(reads);
      group_multiply<kColumns>(reads, left, GroupOperand<T>{tile.q}, false);
      group_commit();
      group_wait<0>(reads);
      scale_tokens(reads, read);
      turns.wait_tokens(number);
      lanes.get_columns(u, from.tokens);
      group_begin(reads);
      group_multiply<kColumns>(reads, u, GroupOperand<T>{tile.P});
      group_commit();
      group_wait<0>(reads);
      round_sums(u, reads);
      lanes.put_columns(from.tokens, u);  // a warp's own columns: nobody else reads u there
      group_publish();
      turns.used(stage);
    }
    turns.restart();
  }

  // The group that carries S^T. Between its products is nothing that could be read or computed beside them.
  __device__ __forceinline__ void carry(const Item& at, Turns& turns) const {
    GroupState<T, kKeys, kStops> state(args, at, at.first_column);
    FragmentA<T> rounded[kDepth];
    int stage = at.chunks > 0 ? turns.take() : 0;
#pragma unroll 1
    for (int64_t number = 0; number < at.chunks; ++number) {
      state.stop_at(number, args, at);
      const Tiles tile(stage);
      const Desk to = desk(number);
      Sums<kChunk / 8> sums;
      group_begin(sums);
      group_multiply<kColumns>(sums, state.rounded, GroupOperand<T>{tile.k}, false);
      group_commit();
      FragmentA<T> v[kDepth];
      lanes.get_columns(v, tile.v);
      turns.before_putting(number);
      if constexpr (!kEnds) lanes.put_rows(to.state, state.rounded);
      if constexpr (kOutputs) turns.has_put_state(number);
      const TokenFactors<kDepth> beta(tile, kBeta);
      const TokenFactors<kDepth> correction =
          correction_factors(beta, TokenFactors<kDepth>(tile, kReadK));
      Sums<kChunk / 8> values = scaled_tokens(v, beta);
      group_wait<0>(sums, values);
      round_scaled(rounded, sums, correction, values);
      // u^T
      group_begin(sums);
      group_multiply<kColumns>(sums, rounded, GroupOperand<T>{tile.A}, false);
      group_commit();
      state.sums.scale(tile.rows[kDecay * kChunk]);
      const TokenFactors<kDepth> write(tile, kWrite);
      group_wait<0>(sums);
      round_scaled(rounded, sums, write);
      group_begin(state.sums);
      group_multiply<kRows>(state.sums, rounded, GroupOperand<T>{tile.k});
      group_commit();
      if constexpr (!kEnds) {
        FragmentA<T> u[kDepth];
        round_sums(u, sums);
        if constexpr (kOutputs) {
          lanes.put_columns(to.tokens, u);
        } else {
          lanes.put_rows(to.tokens, u);
          group_publish();
        }
      }
      if constexpr (kOutputs) turns.has_put_tokens(number);
      const int next = number + 1 < at.chunks ? turns.take() : 0;
      group_wait<0>(state.sums);
      turns.used(stage);
      stage = next;
      round_sums(state.rounded, state.sums);
    }
    turns.close(at.chunks);
    if constexpr (kOutputs || kEnds) state.end(args, at);
  }
};

template <typename T, int kKeys, ScanLeaves kLeaves>
__global__ void __launch_bounds__(GroupScan<T, kKeys, kLeaves>::kThreads,
                                  kLeaves == ScanLeaves::kEnds ? 2 : 1)
    group_scan_kernel(DeltaScanArgs<T> args, const __grid_constant__ GroupScanBoxes boxes) {
  using Scan = GroupScan<T, kKeys, kLeaves>;
  constexpr bool kOutputs = Scan::kOutputs;
  using Item = typename Scan::Item;
  const Scan scan = {args, boxes};
  typename Scan::Turns turns(args.cut.stages, Scan::arrivals(args.cut.stages));
  if (threadIdx.x == 0) turns.begin();
  __syncthreads();
  // The same in a warp; the shuffle says so to the compiler.
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroup, 0);
  if (group == Scan::kUsers) {
    if constexpr (kOutputs) group_gives_registers<104>();
    if constexpr (Scan::kEnds) group_gives_registers<64>();
    for_each_scan_item<kKeys>(args, [&](const Item& at) { scan.move(at, turns); });
  } else if (kOutputs && group == 1) {
    for_each_scan_item<kKeys>(args, [&](const Item& at) { scan.make_outputs(at, turns); });
  } else {
    if constexpr (kOutputs) group_takes_registers<232>();
    if constexpr (Scan::kEnds) group_takes_registers<192>();
    for_each_scan_item<kKeys>(args, [&](const Item& at) { scan.carry(at, turns); });
  }
}

}  // namespace

template <typename T>
void launch_delta_group_scan(const DeltaScanArgs<T>& args, bool outputs, int64_t padded_keys,
                             const LaunchShape& shape, GpuStream stream) {
  const auto kernel_of = [&]<int kKeys>() {
    if (!outputs)
      return args.states ? group_scan_kernel<T, kKeys, ScanLeaves::kChunks>
                         : group_scan_kernel<T, kKeys, ScanLeaves::kEnds>;
    return args.segments.stop_tokens > 0 ? group_scan_kernel<T, kKeys, ScanLeaves::kOutputsAndStops>
                                         : group_scan_kernel<T, kKeys, ScanLeaves::kOutputs>;
  };
  const auto kernel = padded_keys == 64 ? kernel_of.template operator()<64>()
                                        : kernel_of.template operator()<128>();
  launch("gated_delta_rule, scan", kernel, shape, stream, args,
         group_scan_boxes(args.in, args.sequences, args.in.v, args.o));
}
template void launch_delta_group_scan(const DeltaScanArgs<BFloat16>&, bool, int64_t,
                                      const LaunchShape&, GpuStream);
template void launch_delta_group_scan(const DeltaScanArgs<Float16>&, bool, int64_t,
                                      const LaunchShape&, GpuStream);

}  // namespace linescan
