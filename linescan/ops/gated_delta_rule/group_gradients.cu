// gated_delta_rule, the gradients of what went in, by warp groups: what chunk_gradients.cu computes, for half types
// and 33 to 256 keys, where products of warp groups are to be had.
//
// A block takes a chunk and a head of q and k, and goes through the value heads that read them; with more than 128
// keys twice, for half of the keys each time. Two groups of four warps share the keys; each has all 64 tokens, 16 a
// warp, and what the products give. V goes by in slices of 64. Of the products of tokens with tokens the first group has
// H = E o (gO u^T), the second N = -E o (gX u^T) and M (gpu_gradient_pairs.cuh). Two warps move tiles
// (gpu_gradient_moves.cuh), two finish the gradients of gates (gpu_gradient_sums.cuh); turns are in
// gpu_gradient_tiles.cuh.
//
// Numerics:  sums in float32; operands of products are rounded to T; what passes over a token is summed up from terms with
//            eleven bits (tf32), which have float32's range.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_gradient_moves.cuh"
#include "linescan/ops/gated_delta_rule/gpu_gradient_pairs.cuh"
#include "linescan/ops/gated_delta_rule/gpu_gradient_sums.cuh"

namespace linescan {
namespace {

using enum DepthIs;

// A block's place in the workspace, where keys come in parts: a thread's sums over value heads of all parts but the last,
// which wait for the norm, and for the finishers, of every value head, the gradients of gates and beta from the parts so far.
class GroupSlot {
 public:
  template <typename T>
  __device__ __forceinline__ explicit GroupSlot(const GradientArgs<T>& args)
      : gates_(args.slots + blockIdx.x * args.slot_floats),
        sums_(gates_ + args.in.group() * 2 * DeltaLayout::kPanel) {}

  __device__ __forceinline__ float* gates() const { return gates_; }
  template <int kTiles>
  __device__ __forceinline__ void put(int part, const Sums<kTiles>& gq,
                                      const Sums<kTiles>& gk) const {
    gq.put(at(2 * part, kTiles), DeltaLayout::kGroupThreads);
    gk.put(at(2 * part + 1, kTiles), DeltaLayout::kGroupThreads);
  }
  // What was put.
  template <int kTiles>
  __device__ __forceinline__ void get(int part, Sums<kTiles>& gq, Sums<kTiles>& gk) const {
    gq.get(at(2 * part, kTiles), DeltaLayout::kGroupThreads);
    gk.get(at(2 * part + 1, kTiles), DeltaLayout::kGroupThreads);
  }

 private:
  float *gates_, *sums_;

  __device__ __forceinline__ float4* at(int which, int tiles) const {
    return reinterpret_cast<float4*>(sums_) + which * tiles * DeltaLayout::kGroupThreads +
           threadIdx.x;
  }
};

// tile <- the gradients of its rows x from n gy (chunk_gradients.cu), a thread's share, for the movers. norms: what
// add_row_dots() leaves, or null where there is no norm.
template <typename T, class Tiles, int kTiles>
__device__ __forceinline__ void leave_rows(const GradientPlace<Tiles>& place,
                                           const Sums<kTiles>& sums, const Panels<T>& tile,
                                           const float* norms) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = place.token + place.g + 8 * r;
    const float along = norms ? norms[token] / (norms[Tiles::kChunk + token] + 1e-6f) : 0.f;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      auto* const pair =
          reinterpret_cast<uint32_t*>(tile.at(token, place.key + 8 * i + 2 * place.q));
      const Two<T> x = {*pair};
      const float* const g = &sums.tiles[i][2 * r];
      *pair = norms ? pair_from_floats<T>(g[0] - along * x[0], g[1] - along * x[1])
                    : pair_from_floats<T>(g[0], g[1]);
    }
  }
}

// Eight numbers of half types, at a multiple of 16 bytes.
template <typename T>
__device__ __forceinline__ uint4& pack_at(T* numbers) {
  return *reinterpret_cast<uint4*>(numbers);
}
template <typename T>
__device__ __forceinline__ float dot_of_packs(const uint4& a, const uint4& b) {
  const uint32_t a_words[] = {a.x, a.y, a.z, a.w}, b_words[] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const Two<T> of_a = {a_words[n]}, of_b = {b_words[n]};
    sum = fmaf(of_a[1], of_b[1], fmaf(of_a[0], of_b[0], sum));
  }
  return sum;
}
template <typename T>
__device__ __forceinline__ uint4 scaled_pack(float factor, const uint4& pack) {
  const auto times_factor = [&](uint32_t word) {
    const Two<T> two = {word};
    return pair_from_floats<T>(factor * two[0], factor * two[1]);
  };
  return make_uint4(times_factor(pack.x), times_factor(pack.y), times_factor(pack.z),
                    times_factor(pack.w));
}

// kKeys of a part.
template <typename T, int kKeys, int kParts>
__global__ void __launch_bounds__(DeltaLayout::kGroupThreads + DeltaLayout::kGroupMovers +
                                      DeltaLayout::kGroupFinishers,
                                  1)
    group_gradients_kernel(GradientArgs<T> args, const __grid_constant__ GradientBoxes boxes) {
  using Tiles = GroupTiles<T, kKeys>;
  using Stage = GroupStage<Tiles, T>;
  using Turns = GradientTurns;
  constexpr int kChunk = Tiles::kChunk, kSlice = Tiles::kSlice, kThreads = Tiles::kThreads;
  constexpr int kKeyTiles = Tiles::kOwn / 8;
  const Tiles tiles;
  const GroupSlot slot(args);
  Turns turns(tiles.arrivals);
  if (threadIdx.x == 0) turns.begin();
  __syncthreads();
  // Sums of 128 keys leave the others no more than 56 registers, too few for movers of both ways.
  if (threadIdx.x >= kThreads) {
    group_gives_registers<(kKeys == 64 ? 88 : 56)>();
    if (threadIdx.x >= kThreads + GradientMovers::kThreads)
      return finish_gates<T, kParts>(tiles, args, slot.gates());
    if constexpr (kHasBoxes)
      if (boxes.everywhere) return move_gradient_tiles<T, kKeys, kParts, true>(tiles, args, boxes);
    return move_gradient_tiles<T, kKeys, kParts, false>(tiles, args, boxes);
  }
  group_takes_registers<(kKeys == 64 ? 208 : 224)>();
  const DeltaInputs<T>& in = args.in;
  // Where a thread has its numbers is found anew for every step: addresses that the compiler finds ahead do not fit into
  // registers.
  const int warp = uniform_warp();
  const unsigned kept_lane = keep_own(threadIdx.x % 32);
  const auto find_lane = [&] { return static_cast<int>(in_register(kept_lane)); };
  const auto find_place = [&] { return GradientPlace<Tiles>(warp, find_lane()); };
  const int group = warp / 4, first_key = Tiles::kOwn * group;
  DeltaDecays<kChunk>& decays = *tiles.decays;
  const int slices = args.padded_values / kSlice;
  // A token's threads, where the work is neither keys nor pairs, and their numbers of a slice.
  constexpr int kLanes = kThreads / kChunk, kLaneValues = kSlice / kLanes;
  static_assert(kLanes == 4);  // as many as share a row of sums

  for (int64_t item = blockIdx.x; item < args.chunks * in.heads; item += gridDim.x) {
    // No others are empty, and finding out takes a division.
    if (args.sequences.bounds && chunk_of(args.sequences, item / in.heads, kChunk).tokens == 0)
      continue;
    Sums<kKeyTiles> gq, gk;  // of all value heads
    float* const norms = in.norm ? tiles.norms : nullptr;
    const auto leave_gradients = [&] {
      const GradientPlace<Tiles> place = find_place();
      leave_rows(place, gq, tiles.q, norms);
      leave_rows(place, gk, tiles.k, norms ? norms + 2 * kChunk : nullptr);
      group_publish();
      turns.leave_keys();
    };
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      gq.clear();
      gk.clear();
#pragma unroll 1
      for (int i = 0; i < in.group(); ++i) {
        const float* const rows = tiles.record_rows(turns.next_record());
        const auto row = [&](DeltaRow which, int token) { return rows[which * kChunk + token]; };
        Sums<kKeyTiles> q_reads, k_writes, k_reads;
        Sums<kChunk / 8> pairs;
        const auto multiply = [&](const Stage& stage, bool add) {
          group_begin(q_reads, k_writes, k_reads, pairs);
          group_multiply<kColumns, kRows, kSlice, T>(
              pairs, {{group == 0 ? stage.go.data : stage.gx.data, kChunk}}, {stage.u}, add);
          group_multiply<kColumns, kRows, kSlice, T>(q_reads, {stage.go}, {stage.S, 0, first_key},
                                                     add);
          group_multiply<kRows, kRows, kSlice, T>(k_writes, {stage.u}, {stage.gS, 0, first_key},
                                                  add);
          group_multiply<kColumns, kRows, kSlice, T>(k_reads, {stage.gx}, {stage.S, 0, first_key},
                                                     add);
          group_commit();
        };
        // Beside the products: <gS', S>, gX . v and the gradient of v, which takes the place of v.
        float state_dot = 0, v_dot = 0;
        const auto add_dots = [&](const Stage& stage) {
          const int thread = 32 * warp + find_lane();
          const int own_token = thread / kLanes, own_lane = thread % kLanes;
#pragma unroll
          for (int n = 0; n < kSlice * kKeys / 8 / kThreads; ++n) {
            // The same place in both, whatever it is.
            const int at = 8 * (thread + n * kThreads);
            state_dot += dot_of_packs<T>(pack_at(stage.S.data + at), pack_at(stage.gS.data + at));
          }
          if (part + 1 < kParts) return group_publish();  // that the stage has been read
          const float beta = row(kBeta, own_token);
#pragma unroll
          for (int n = 0; n < kLaneValues; n += 8) {
            const int column = own_lane * kLaneValues + n;
            const uint4 gx = pack_at(stage.gx.at(own_token, column));
            uint4& v = pack_at(stage.v.at(own_token, column));
            v_dot += dot_of_packs<T>(gx, v);
            v = scaled_pack<T>(beta, gx);
          }
          group_publish();
        };
        // The first slice stands alone: sums that it begins are nobody's before, and so are their registers.
        Stage stage(tiles, turns.take());
        multiply(stage, false);
        {
          const int thread = 32 * warp + find_lane(), own_token = thread / kLanes;
          decays.template fill<kThreads>(rows + kGate * kChunk, thread);
          // What columns are scaled by in rows of later blocks; fill() gave the number to this thread.
          if (thread % kLanes == 0)
            decays.ahead[own_token] =
                exp2_approx(decays.ahead[own_token]) * row(kFactorK, own_token);
        }
#pragma unroll 1
        for (int slice = 1;; ++slice) {
          add_dots(stage);
          group_wait<0>(q_reads, k_writes, k_reads, pairs);
          turns.used();
          if (slice == slices) break;
          stage = {tiles, turns.take()};
          multiply(stage, true);
        }
        state_dot = sum_of_lanes(state_dot, 32);
        v_dot = sum_of_lanes(v_dot, kLanes);
        if (i == 0) turns.take_keys();

        // ---- Tokens with the state ----
        const GradientPlace<Tiles> place = find_place();
        const auto own = [&](DeltaRow which, int r) {
          return row(which, place.token + place.g + 8 * r);
        };
        float reads[2], writes[2], to_beta[2];
        {
          float dot[2] = {};
          place.template for_key_pairs<T>(tiles.q, [&](int tile, int r, Two<T> q) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              const float read = q_reads.tiles[tile][2 * r + n];
              float& sum = gq.tiles[tile][2 * r + n];
              dot[r] = fmaf(q[n], read, dot[r]);
              sum = fmaf(own(kReadQ, r), read, sum);
            }
          });
#pragma unroll
          for (int r = 0; r < 2; ++r) reads[r] = own(kReadQ, r) * dot[r];
        }
        {
          float write_dot[2] = {}, read_dot[2] = {}, correction[2];
#pragma unroll
          for (int r = 0; r < 2; ++r) correction[r] = -own(kBeta, r) * own(kReadK, r);
          place.template for_key_pairs<T>(tiles.k, [&](int tile, int r, Two<T> k) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              const float of_write = k_writes.tiles[tile][2 * r + n],
                          of_read = k_reads.tiles[tile][2 * r + n];
              write_dot[r] = fmaf(k[n], of_write, write_dot[r]);
              read_dot[r] = fmaf(k[n], of_read, read_dot[r]);
              float& sum = gk.tiles[tile][2 * r + n];
              sum = fmaf(correction[r], of_read, fmaf(own(kWrite, r), of_write, sum));
            }
          });
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            to_beta[r] = -own(kReadK, r) * sum_of_quad(read_dot[r]);
            reads[r] = sum_of_quad(reads[r]) + own(kBeta, r) * to_beta[r];
            writes[r] = own(kWrite, r) * sum_of_quad(write_dot[r]);
          }
        }
        Sums<kChunk / 8> square;  // q k^T or k k^T
        group_begin(square);
        group_multiply<kColumns, kColumns, kKeys, T>(
            square, {{group == 0 ? tiles.q.data : tiles.k.data, kChunk}}, {tiles.k}, false);
        group_commit();
        turns.wait_open();
        if (place.q == 0)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int token = place.token + place.g + 8 * r;
            tiles.share(kReads, group)[token] = reads[r];
            tiles.share(kWrites, group)[token] = writes[r];
          }
        if (place.g == 0 && place.q == 0)
          tiles.share(kWarpSums)[warp] = rows[kDecay * kChunk] * state_dot;
        if (place.q == 0) tiles.share(kCorrection)[8 * warp + place.g] = v_dot;

        // ---- H, or N and M, and what passes over tokens ----
        const PairFactors<Tiles> factors(place, decays, rows);
        group_wait<0>(square);
        float row_sums[2];
        weigh_pairs<T>(tiles, place, factors, pairs, square, row_sums);
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (place.q == 0)
            tiles.share(kToBeta, group)[place.token + place.g + 8 * r] =
                group == 0 ? to_beta[r] : to_beta[r] + row_sums[r];
        turns.close();
        group_publish();
        Tiles::meet();

        // ---- Tokens with tokens ----
        group_begin(gq, gk);
        group_multiply<kColumns, kRows, kChunk, T>(gq, {tiles.H}, {tiles.k, 0, first_key});
        group_multiply<kRows, kRows, kChunk, T>(gk, {tiles.H}, {tiles.q, 0, first_key});
        group_multiply<kColumns, kRows, kChunk, T>(gk, {tiles.M}, {tiles.k, 0, first_key});
        group_multiply<kRows, kRows, kChunk, T>(gk, {tiles.M}, {tiles.k, 0, first_key});
        group_commit();
        group_wait<0>(gq, gk);
      }

      // ---- All value heads are through ----
      Tiles::meet();  // products have read the keys
      if (norms) {
        auto* const parts = reinterpret_cast<float*>(tiles.H.data);
        const GradientPlace<Tiles> place = find_place();
        add_row_dots<T>(place, gq, tiles.q, parts, norms, part == 0);
        add_row_dots<T>(place, gk, tiles.k, parts, norms + 2 * kChunk, part == 0);
      }
      if (part + 1 < kParts && norms) {  // which wait for the other keys
        slot.put(part, gq, gk);
        turns.leave_keys();
      } else {
        leave_gradients();
      }
    }
#pragma unroll 1
    for (int part = kParts - 2; norms && part >= 0; --part) {
      turns.take_keys();
      slot.get(part, gq, gk);
      leave_gradients();
    }
  }
}

}  // namespace

template <typename T>
void launch_delta_group_gradients(const GradientArgs<T>& args, int64_t padded_keys,
                                  const LaunchShape& shape, GpuStream stream) {
  const DeltaInputs<T>& in = args.in;
  const auto describe = [&](RowBoxes& boxes, const auto& rows, int64_t heads, int64_t numbers) {
    return describe_tokens(boxes, rows, heads, numbers, args.sequences);
  };
  const auto describe_result = [&](RowBoxes& boxes, const DeltaRows<T>& rows, int64_t heads,
                                   int64_t numbers) {
    return !rows.data || describe(boxes, rows, heads, numbers);
  };
  GradientBoxes boxes = {};
  boxes.valid =
      describe(boxes.o, args.o, in.value_heads, in.V) && describe(boxes.q, in.q, in.heads, in.K) &&
      describe(boxes.k, in.k, in.heads, in.K) && describe(boxes.v, in.v, in.value_heads, in.V) &&
      describe_result(boxes.to_q, args.q, in.heads, in.K) &&
      describe_result(boxes.to_k, args.k, in.heads, in.K) &&
      describe(boxes.to_v, args.v, in.value_heads, in.V);
  boxes.everywhere = boxes.valid && all_tokens_are_boxes(args.sequences);
  const auto kernel = padded_keys == 256   ? group_gradients_kernel<T, 128, 2>
                      : padded_keys == 128 ? group_gradients_kernel<T, 128, 1>
                                           : group_gradients_kernel<T, 64, 1>;
  launch("gated_delta_rule, gradients", kernel, shape, stream, args, boxes);
}
template void launch_delta_group_gradients(const GradientArgs<BFloat16>&, int64_t,
                                           const LaunchShape&, GpuStream);
template void launch_delta_group_gradients(const GradientArgs<Float16>&, int64_t,
                                           const LaunchShape&, GpuStream);

}  // namespace linescan
