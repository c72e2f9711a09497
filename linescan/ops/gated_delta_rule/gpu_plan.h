// How gated_delta_rule will run on a GPU: a plain value, made by a pure function, printable without
// running anything.
#pragma once

#include <cstdint>

#include "linescan/base/string_forward.h"
#include "linescan/ops/gated_delta_rule/gpu_pieces.h"
#include "linescan/ops/gated_delta_rule/plan.h"

namespace linescan {

struct Gpu;

// One kernel's launch.
struct DeltaLaunch {
  int64_t grid = 0, block = 0, shared_bytes = 0;

  bool operator==(const DeltaLaunch&) const = default;
};

// mode chunk: "records" (what a chunk is by itself: a block a chunk and head of q, or some of its value heads), then "scan" (states, and
// outputs or what the backward pass needs: a block a sequence, value head and part of V, or an equal share of the walks), or a scan
// that makes the records, too; backward also
// "reverse_scan" and "gradients" (a block a chunk and head of q). mode recurrent: "scan" alone.
struct GatedDeltaRuleGpuPlan {
  static constexpr const char* kOperator = "gated_delta_rule";

  Pass pass = Pass::kForward;
  GatedDeltaRuleMode mode = GatedDeltaRuleMode::kChunk;  // never kAuto

  int64_t chunk = 0, padded_keys = 0, padded_values = 0;
  int64_t record_bytes = 0;  // of a chunk and value head
  int64_t record_parts = 1;  // blocks that share the value heads of a chunk and head of q
  int64_t chunks = 0;  // records; packed sequences count one more each, whether they need it or not
  int64_t column_warps = 0;     // of a scan's block: warps side by side along V, 16 columns each
                                // (recurrent: one of 32)
  int64_t key_warps = 0;        // and along K
  int64_t loader_warps = 0;     // and those that only move what the others compute with
  int64_t column_parts = 0;     // blocks along V
  int64_t stages = 0;           // chunks of a scan in shared memory at once
  int64_t gradient_stages = 0;  // slices of V in the gradients' kernel's shared memory at once
  bool warp_groups = false;     // scans and gradients by the kernels of warp groups
  bool makes_records = false;   // of these, forward: a scan of 128 columns of V that makes them
  bool deep_groups = false;     // as warp_groups, with 129 to 256 keys
  bool shares_walks = false;  // of these: scans with fewer blocks than walks deal out chunks evenly
  bool whole_sequences = false;  // a warp a sequence and value head, without records
  // Of these, backward: chunks whose states a warp keeps; 0: every chunk has a place.
  int64_t slot_chunks = 0;
  // Of the workspace, for a block of the gradients' kernel of warp groups.
  int64_t gradient_slot_floats = 0;
  DeltaLaunch records, scan, reverse_scan, gradients;
  // Where segments are split: their walks alone, forward or in reverse, and the chain.
  DeltaLaunch ends, chain;
  int64_t unit_parts = 0;  // forward, blocks along a transition's columns
  // Backward: everything above is of one. Forward: states are kept in front of its segments.
  GatedDeltaRulePiece piece;
  int64_t pieces = 1;
  // Numbers of a boundary's states and of a segment's transitions. What is kept ends with the last boundary's.
  int64_t kept_step = 0, transition_step = 0;

  // Offsets into the workspace, in bytes.
  int64_t records_at = 0, states_at = 0, state_gradients_at = 0, corrections_at = 0,
          parameter_sums_at = 0, gradient_slots_at = 0, carry_at = 0;
  // Numbers from one chunk's corrections to the next one's. Where records are in the workspace and corrections find room there, they take
  // the place of P, which the reverse scan is the last to read: states come behind it then.
  int64_t correction_step = 0;
  bool corrections_take_place = false;
  // Backward, where neither scan waits for the other and the one in reverse leaves multiprocessors idle: at once, on two streams.
  bool scans_side_by_side = false;
  // Where segments are split, what lies at boundaries: states that nobody gave room for, or gradients; forward, transitions.
  int64_t boundaries_at = 0, transitions_at = 0;
  // Of blocks that share walks: states that they hand over; and signals, zeros at the start of a pass.
  int64_t handovers_at = 0, signals_at = 0, signals_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t kept_bytes = 0;  // what the forward pass leaves for the backward pass

  int64_t bytes = 0;            // every input read once, every output written once
  int64_t multiplications = 0;  // multiply-adds of the products with states

  bool operator==(const GatedDeltaRuleGpuPlan&) const = default;
};

// Throws Unsupported where a block's shared memory does not hold what a kernel needs.
GatedDeltaRuleGpuPlan plan(const GatedDeltaRuleSize& size, bool packed, Pass pass, const Gpu& gpu);
// With pieces of the caller's choice: tokens and segment are the length or multiples of 64, tokens one of the segment; packed
// sequences come with all of their tokens, have segments only if they are split and else may come some heads at a time; small heads that
// warps walk come whole. A backward pass without kept states comes whole, too, if its sequences are not packed.
GatedDeltaRuleGpuPlan plan(const GatedDeltaRuleSize& size, bool packed, Pass pass, const Gpu& gpu,
                           GatedDeltaRulePiece piece);

// How it goes about it, in a few words.
std::string variant_of(const GatedDeltaRuleGpuPlan& plan);
std::string to_string(const GatedDeltaRuleGpuPlan& plan);

}  // namespace linescan
