// How scans walk sequences in segments: their numbers, who walks which of them, and what lies at the boundaries between them.
// Whole sequences are walked where nothing is said.
//
// A batch item's segments are 0, 1 .., one behind the other. Those of packed sequences are numbered as chunks are: sequence
// s has its first one at floor(start / tokens) + s, however short it is; numbers that are left out belong to nobody.
#pragma once

#include "linescan/ops/gated_delta_rule/gpu_kernels.h"
#include "linescan/ops/gated_delta_rule/gpu_tokens.cuh"

namespace linescan {

// What the walks of segments have to do with each other.
enum class DeltaSegmentsAre {
  kInTurn,      // each starts from what the one before it left
  kSideBySide,  // each starts from a state that is there
  kAlone  // each starts from zero, but for the first of the walk, and leaves its end and its transition for the
          // chain that makes them states (segment_chain.cu)
};
// Which of every sequence's are walked.
enum class DeltaSegmentsTaken { kAll, kAllButFirst, kAllButLast, kLast };

// A walk: a segment of a sequence, or the whole of it.
struct DeltaStretch {
  DeltaWalk walk;
  int64_t sequence, segment;  // segment: its number, and that of the boundary in front of it
  int64_t first_chunk;        // its number
  bool exists, first, last;   // first, last: of its sequence
};

// Boundaries have states or gradients of states. S behind a segment of nothing but decays and corrections is its transition
// times S. A transition is [terms, keys], each term's numbers neighbours: what becomes of a unit vector. `turned`, for
// gradients: the same transitions with keys as terms.
struct DeltaSegments {
  DeltaSegmentsAre are = DeltaSegmentsAre::kInTurn;
  DeltaSegmentsTaken taken = DeltaSegmentsTaken::kAll;
  int64_t tokens = 0;       // of one, a multiple of a chunk's; 0: whole sequences
  int64_t stop_tokens = 0;  // of walks of whole sequences, between states left on the way; 0: none
  int64_t first = 0, count = 1;                    // numbers, of every batch item
  DeltaStates boundaries = {};                     // behind segment 0
  DeltaStates transitions = {}, turned = {};       // of segment 1; null: not there
  int64_t boundary_step = 0, transition_step = 0;  // numbers from one to the next

  // In front of a segment.
  __host__ __device__ DeltaStates boundary(int64_t segment) const {
    return moved(boundaries, (segment - 1) * boundary_step);
  }
  __host__ __device__ DeltaStates transition(int64_t segment) const {
    return moved(transitions, (segment - 1) * transition_step);
  }
  __host__ __device__ DeltaStates turned_transition(int64_t segment) const {
    return turned.data ? moved(turned, (segment - 1) * transition_step) : turned;
  }

  // The number of a sequence's first segment, and how many it has.
  __device__ __forceinline__ int64_t first_of(const DeltaSequences& all, int64_t sequence) const {
    return all.bounds ? all.first_chunk(sequence, tokens) : 0;
  }
  __device__ __forceinline__ int64_t count_of(const DeltaSequences& all, int64_t sequence) const {
    return max((all.walk(sequence).length + tokens - 1) / tokens, int64_t{1});
  }

  // The walk of that number.
  __device__ __forceinline__ DeltaStretch stretch(const DeltaSequences& all, int64_t number,
                                                  int chunk) const {
    if (tokens == 0)
      return {all.walk(number), number, 0, all.first_chunk(number, chunk), true, true, true};
    DeltaStretch at;
    at.segment = all.bounds ? number : first + number % count;
    at.sequence = all.bounds ? all.of_chunk(number, tokens) : number / count;
    const int64_t own = at.segment - first_of(all, at.sequence);
    at.first_chunk = all.first_chunk(at.sequence, chunk) + own * (tokens / chunk);
    const DeltaWalk whole = all.walk(at.sequence);
    const int64_t start = own * tokens, left = whole.length - start;
    at.first = own == 0;
    at.last = left <= tokens;
    at.walk = {whole.batch, whole.token(start), min(tokens, left), whole.step};
    using enum DeltaSegmentsTaken;
    // Numbers are left out in front of the first sequence, whose start need not be 0, and behind the last segment of any.
    at.exists = own >= 0 && (at.first || left > 0) && !(taken == kAllButFirst && at.first) &&
                !(taken == kAllButLast && at.last) && !(taken == kLast && !at.last);
    return at;
  }

 private:
  __host__ __device__ static DeltaStates moved(DeltaStates states, int64_t numbers) {
    states.data += numbers;
    return states;
  }
};

// Of a problem, or of a piece of one, with boundaries so many numbers apart. A forward pass has transitions in the workspace
// and leaves turned ones, if somebody wants them; a backward pass reads those.
inline DeltaSegments delta_segments(const GatedDeltaRuleProblem& p,
                                    const GatedDeltaRuleGpuPlan& plan, float* boundaries,
                                    int64_t boundary_step, float* turned, std::byte* workspace) {
  const int64_t keys = plan.padded_keys, item = p.v.shape[2] * keys * keys;
  const auto squares = [&](float* data, int64_t key, int64_t term) {
    return DeltaStates{data, p.packed ? 0 : item, keys * keys, key, term};
  };
  const bool forward = plan.pass == Pass::kForward;
  float* const own = reinterpret_cast<float*>(workspace + plan.transitions_at);
  DeltaSegments segments;
  segments.tokens = plan.piece.segment;
  segments.count = delta_segment_count(p, plan);
  segments.boundaries =
      delta_states(contiguous_view(boundaries, DType::kFloat32, gpu_state_shape(p, p.q.shape[0])),
                   p.inputs.state_v_first);
  if (p.packed) segments.boundaries.sequence = 0;  // numbers of segments tell sequences apart
  segments.transitions = forward ? squares(own, 1, keys) : squares(turned, 1, keys);
  if (forward) segments.turned = squares(turned, keys, 1);
  segments.boundary_step = boundary_step;
  segments.transition_step = plan.transition_step;
  return segments;
}

// Where the walk of a whole sequence leaves its state on the way: at the boundaries of segments that it passes. Little is kept in
// registers for it.
template <int kChunk>
class DeltaStops {
 public:
  // Of a walk that starts behind so many chunks.
  __device__ __forceinline__ explicit DeltaStops(const DeltaSegments& segments, int64_t chunks = 0)
      : segments_(segments),
        next_(segments.stop_tokens > 0 ? max((chunks + step() - 1) / step(), int64_t{1}) * step()
                                       : -1) {}

  // Whether a boundary lies behind so many chunks.
  __device__ __forceinline__ bool is_at(int64_t chunks) const { return chunks == next_; }
  // That boundary.
  __device__ __forceinline__ DeltaStates pass() {
    const DeltaStates boundary = segments_.boundary(next_ / step());
    next_ += step();
    return boundary;
  }

 private:
  const DeltaSegments& segments_;
  int64_t next_;

  __device__ __forceinline__ int64_t step() const { return segments_.stop_tokens / kChunk; }
};

// Some of the segments. Which ones these are of packed sequences only the device knows; of others there are fewer walks.
inline DeltaSegments taking(DeltaSegments segments, DeltaSegmentsTaken taken, DeltaSegmentsAre are,
                            bool packed) {
  segments.taken = taken;
  segments.are = are;
  if (packed || taken == DeltaSegmentsTaken::kAll) return segments;
  const int64_t others = segments.count - 1;
  if (taken == DeltaSegmentsTaken::kAllButFirst) segments.first = 1;
  if (taken == DeltaSegmentsTaken::kLast) segments.first = others;
  segments.count = taken == DeltaSegmentsTaken::kLast ? 1 : others;
  return segments;
}

// Numbers of walks.
inline int64_t delta_walks(const GatedDeltaRuleProblem& p, const DeltaSegments& segments) {
  return p.packed && segments.tokens > 0 ? segments.count : size_of(p).sequences * segments.count;
}

}  // namespace linescan
