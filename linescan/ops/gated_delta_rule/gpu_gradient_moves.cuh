// The gradients' kernel of warp groups (group_gradients.cu): what it reads, on its way to shared memory, and the gradients of
// q, k and v, on their way back. By the warps that move tiles: in boxes that one thread asks for, or pack by pack where there
// are none: tokens in reverse, a chunk that ends where another packed sequence begins, or a tensor without boxes
// (describe_rows(): rows at odd addresses, expanded dimensions; also where nobody wants gradients of outputs).
#pragma once

#include "linescan/ops/gated_delta_rule/gpu_gradient_tiles.cuh"

namespace linescan {

// Of the tensors of tokens that half types have; to_v: of gX, too; valid: there are such of all that are read and of all that
// are wanted; everywhere: and every chunk comes and goes in them.
struct GradientBoxes {
  RowBoxes o, q, k, v, to_q, to_k, to_v;
  bool valid, everywhere;
};

// to[r * step + c] <- tile[r, c] for valid rows and columns. `vectors`: rows as rows_are_vectors() says.
template <int kColumns, int kThreads, typename T>
__device__ __forceinline__ void store_panels(int thread, const Panels<T>& tile, T* to, int64_t step,
                                             int valid_rows, int valid_columns, bool vectors) {
  // Eights of rows, so that a thread's packs are swizzled alike; some under way together.
  constexpr int kPacks = kColumns / 8, kPass = kThreads >= 8 * kPacks ? kThreads / kPacks : 8;
  constexpr int kAtOnce = kThreads / kPass, kPasses = 64 / kPass, kTogether = 4;
  static_assert(kPass % 8 == 0 && kPacks % kAtOnce == 0 && kPasses % kTogether == 0);
  thread = in_register(thread);
  const int first = thread / kAtOnce;
#pragma unroll 1
  for (int column = thread % kAtOnce * 8; column < min(kColumns, valid_columns);
       column += 8 * kAtOnce) {
    const T* const from = tile.at(first, column);
    T* at = to + first * step + column;
    int row = first;
#pragma unroll 1
    for (; vectors && row + (kTogether - 1) * kPass < valid_rows; row += kTogether * kPass) {
      uint4 packs[kTogether];
#pragma unroll
      for (int n = 0; n < kTogether; ++n)
        packs[n] = *reinterpret_cast<const uint4*>(from + (row - first + n * kPass) * 64);
#pragma unroll
      for (int n = 0; n < kTogether; ++n, at += kPass * step)
        *reinterpret_cast<uint4*>(at) = packs[n];
    }
#pragma unroll 1
    for (; row < valid_rows; row += kPass, at += kPass * step) {
      const auto pack = *reinterpret_cast<const uint4*>(from + (row - first) * 64);
      if (vectors) {
        *reinterpret_cast<uint4*>(at) = pack;
        continue;
      }
      const uint32_t words[] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
      for (int n = 0; n < 8; ++n)
        if (column + n < valid_columns)
          at[n] = T{static_cast<uint16_t>(words[n / 2] >> (16 * (n % 2)))};
    }
  }
}

// All that the block's items need, in the order in which the groups take it, and what they leave. kBoxes: everywhere in
// boxes. Then one thread does nearly everything, from numbers that the warp has in common, in code that is short: the groups
// wait for whatever it takes between two stages (decision 0059).
template <typename T, int kKeys, int kParts, bool kBoxes, class Tiles>
__device__ __forceinline__ void move_gradient_tiles(const Tiles& tiles, const GradientArgs<T>& args,
                                                    const GradientBoxes& boxes) {
  using Team = GradientMovers;
  using Parcel = GradientParcel<T>;
  constexpr int kChunk = Tiles::kChunk, kSlice = Tiles::kSlice, kThreads = Team::kThreads;
  constexpr int kStateBytes = kSlice * kKeys * 2, kTokenBytes = Tiles::kSquare * 2;
  constexpr int kRowBytes = kDeltaRecordRows * kChunk * 4, kPanels = kKeys / kSlice;
  const DeltaInputs<T>& in = args.in;
  const int thread = Team::thread(), slices = args.padded_values / kSlice;
  GradientTurns turns(tiles.arrivals);
  Parcel *const of_q = tiles.parcels + GradientTurns::kStages, *const of_k = of_q + 1;

  // What the groups left in a tile, which may be filled again after settle().
  const auto send = [&]<int kColumns>(const Panels<T>& tile, const Parcel& parcel,
                                      const RowBoxes& to, bool vectors) {
    if (kBoxes && thread >= 32) return;
    const auto leave = [] {  // the warp's first thread writes the next parcel there
      if (kBoxes) __syncwarp();
    };
    if (!uniform(int{parcel.to != nullptr})) return leave();
    if (!kBoxes && !parcel.boxes)
      return store_panels<kColumns, kThreads>(thread, tile, parcel.to, parcel.step, parcel.rows,
                                              parcel.columns, vectors);
    BoxPlace place = {uniform(parcel.place.number), uniform(parcel.place.head),
                      uniform(parcel.place.token), uniform(parcel.place.batch)};
    const int columns = uniform(parcel.columns);
    leave();
    if (thread != 0) return;
    for (int panel = 0; panel < kColumns / kSlice; ++panel, place.number += kSlice)
      if (panel * kSlice < columns) store_box(to, place, tile.data + panel * Tiles::kSquare);
  };
  const auto settle = [&] {
    if (thread == 0) wait_sent();
    if (!kBoxes) Team::meet();  // else nobody but thread 0 fills tiles
  };
  const auto send_values = [&](int stage) {
    send.template operator()<kSlice>(GroupStage<Tiles, T>(tiles, stage).v, tiles.parcels[stage],
                                     boxes.to_v, args.v_vectors);
  };
  const auto send_keys = [&] {
    send.template operator()<kKeys>(tiles.q, *of_q, boxes.to_q, args.key_vectors);
    send.template operator()<kKeys>(tiles.k, *of_k, boxes.to_k, args.key_vectors);
  };
  // Once the groups have left the keys, if there were any.
  const auto empty_keys = [&] {
    const bool before = turns.keys_used_before();
    turns.fill_keys();
    if (before) send_keys();
    settle();
  };

  DeltaSequences sequences = args.sequences;
  if (kBoxes) sequences.bounds = nullptr;  // as it is then: the compiler drops the search
  for (int64_t item = blockIdx.x; item < args.chunks * in.heads; item += gridDim.x) {
    const int64_t number = uniform(item / in.heads);
    const int head = static_cast<int>(item - number * in.heads);
    const DeltaChunk chunk = chunk_of(sequences, number, kChunk);
    if (chunk.tokens == 0) continue;
    const bool in_boxes =
        kBoxes ||
        (boxes.valid && tokens_are_box(chunk.walk, chunk.tokens == kChunk, args.sequences.bounds));
    const int first_token = uniform(static_cast<int>(chunk.token(0))),
              batch = uniform(static_cast<int>(chunk.walk.batch));
    const auto place = [&](int first, int of_head) -> BoxPlace {
      return {first, of_head, first_token, batch};
    };
    const auto parcel = [&](const DeltaRows<T>& to, int of_head, int first, int count) -> Parcel {
      T* const rows = to.data ? chunk.rows(to, of_head) + first : nullptr;
      return {rows,          chunk.row_step(to),    chunk.tokens,
              count - first, place(first, of_head), in_boxes};
    };
    // `gives`: the groups will leave gradients in their place.
    const auto load_keys = [&](int part, bool gives) {
      const int key = part * kKeys;
      empty_keys();
      const auto& arrivals = turns.key_arrivals();
      arrivals.expect(thread, 0, in_boxes ? 2 * kPanels * kTokenBytes : 0);
      const auto load = [&](const Panels<T>& tile, const DeltaRows<const T>& from,
                            const RowBoxes& from_boxes) {
        if (!in_boxes)
          load_panels<kKeys, kThreads>(thread, tile, chunk.rows(from, head) + key,
                                       chunk.row_step(from), chunk.tokens, in.K - key, in.vectors);
        else if (thread == 0)
          for (int panel = 0; panel < kPanels; ++panel)
            fetch_box(from_boxes, place(key + panel * kSlice, head),
                      tile.data + panel * Tiles::kSquare, arrivals.barrier(0));
      };
      load(tiles.k, in.k, boxes.k);
      load(tiles.q, in.q, boxes.q);
      if (thread == 0) {
        *of_q = gives ? parcel(args.q, head, key, in.K) : Parcel{};
        *of_k = gives ? parcel(args.k, head, key, in.K) : Parcel{};
      }
      turns.keys_filled();
    };
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      const bool last_part = part + 1 == kParts;
#pragma unroll 1
      for (int i = 0; i < in.group(); ++i) {
        const int h = head * in.group() + i;
        const int64_t row = number * in.value_heads + h;
        float* const rows = tiles.record_rows(turns.next_record());
#pragma unroll 1
        for (int slice = 0; slice < slices; ++slice) {
          const bool before = turns.used_before();
          const int v = slice * kSlice, at = turns.fill();
          const int64_t unit = row * slices + slice;
          const int64_t state = (unit * kParts + part) * kSlice * kKeys;
          const GroupStage<Tiles, T> stage(tiles, at);
          if (before) send_values(at);
          const auto& bulk = turns.arrivals();
          bulk.expect(thread, at,
                      2 * kStateBytes + kTokenBytes + (slice == 0 ? kRowBytes : 0) +
                          (in_boxes ? (last_part ? 3 : 2) * kTokenBytes : 0));
          // 32 bits are enough for what has 16 KiB of states each, and a product of them is short.
          bulk.copy(thread, at, stage.u.data,
                    args.corrections + int64_t{1} * static_cast<int>(unit) * args.correction_step,
                    kTokenBytes);
          bulk.copy(thread, at, stage.S.data, args.states + state, kStateBytes);
          bulk.copy(thread, at, stage.gS.data, args.state_gradients + state, kStateBytes);
          if (slice == 0)
            bulk.copy(thread, at, rows, delta_record<T>(args.records, row, kChunk).rows, kRowBytes);
          const auto load = [&](const Panels<T>& tile, const auto& from, const RowBoxes& from_boxes,
                                bool vectors) {
            if (!in_boxes)
              load_panels<kSlice, kThreads>(
                  thread, tile, from.data ? chunk.rows(from, h) + v : nullptr, chunk.row_step(from),
                  from.data ? chunk.tokens : 0, in.V - v, vectors);
            else if (thread == 0)
              fetch_box(from_boxes, place(v, h), tile.data, bulk.barrier(at));
          };
          load(stage.go, args.o, boxes.o, args.o_vectors);
          load(stage.gx, args.v, boxes.to_v, args.v_vectors);
          settle();
          if (last_part) load(stage.v, in.v, boxes.v, in.vectors);
          if (thread == 0) tiles.parcels[at] = last_part ? parcel(args.v, h, v, in.V) : Parcel{};
          turns.filled();
          // Wanted when the value head's last slice is through; both stages are to be under way before.
          if (i == 0 && slice == min(1, slices - 1)) load_keys(part, last_part || !in.norm);
        }
      }
    }
#pragma unroll 1
    for (int part = kParts - 2; in.norm && part >= 0; --part) load_keys(part, true);
  }
  turns.for_last(send_values);
  empty_keys();
}

}  // namespace linescan
