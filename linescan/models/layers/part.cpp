#include "linescan/models/layers/part.h"

#include <ATen/SequenceNumber.h>

namespace linescan {
namespace {

thread_local Part part_of_thread = Part::kOther;
thread_local std::vector<PartInterval>* collected = nullptr;

}  // namespace

PartScope::PartScope(Part part) : previous_(part_of_thread), first_(at::sequence_number::peek()) {
  part_of_thread = part;
}

PartScope::~PartScope() {
  if (collected != nullptr)
    collected->push_back({part_of_thread, first_, at::sequence_number::peek()});
  part_of_thread = previous_;
}

Part current_part() { return part_of_thread; }

void collect_parts(std::vector<PartInterval>* intervals) { collected = intervals; }

}  // namespace linescan
