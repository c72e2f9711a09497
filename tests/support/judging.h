// The assertion that every operator test ends in: kernels' results against the double reference.
#pragma once

#include <gtest/gtest.h>

#include "linescan/ops/sample_tensor.h"

namespace linescan::testing {

inline void expect_passed(const std::vector<NamedVerdict>& verdicts) {
  for (const NamedVerdict& v : verdicts)
    EXPECT_TRUE(v.passed()) << v.name << " at element " << v.verdict.index << ": got "
                            << v.verdict.got << ", expected " << v.verdict.expected << ", error "
                            << v.verdict.error << ", bound " << v.verdict.bound
                            << (v.margins_intact ? "" : "; wrote outside the tensor");
}

}  // namespace linescan::testing
