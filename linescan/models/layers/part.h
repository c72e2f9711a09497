// Which part of a network is being computed: what a measurement needs to know beside an operator's
// name, because a matrix product may belong to an MLP, to attention or to a projection.
//
// Where nobody collects, a scope costs two reads of thread-local memory.
#pragma once

#include <cstdint>
#include <vector>

namespace linescan {

enum class Part { kOther, kScan, kAttention, kMlp };

// The part of what this thread computes while the object lives; the innermost one counts.
class PartScope {
 public:
  explicit PartScope(Part part);
  ~PartScope();
  PartScope(const PartScope&) = delete;
  PartScope& operator=(const PartScope&) = delete;

 private:
  Part previous_;
  uint64_t first_;
};

Part current_part();

// Autograd numbers the nodes that a thread makes: those from `first` up to, not including, `end` are
// the part's. A node in the backward pass knows its number, and so its part.
struct PartInterval {
  Part part;
  uint64_t first, end;
};

// Appends the intervals of the calling thread's scopes to `intervals` until called with nullptr.
void collect_parts(std::vector<PartInterval>* intervals);

}  // namespace linescan
