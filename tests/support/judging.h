// The assertion that every operator test ends in: a kernel's result against the double reference.
#pragma once

#include <gtest/gtest.h>

#include "linescan/ops/judged.h"
#include "tests/support/tensor.h"

namespace linescan::testing {

// c: see the operator's README, section Numerics.
inline void expect_close(const char* name, const Tensor& got, const Judged& expected, double c) {
  const Verdict verdict = judge(got.view(), expected, c);
  EXPECT_LE(verdict.worst_ratio, 1)
      << name << to_string(got.view().shape) << " at element " << verdict.index << ": got "
      << verdict.got << ", expected " << verdict.expected << ", error " << verdict.error
      << ", bound " << verdict.bound;
  EXPECT_TRUE(got.margins_intact()) << name << ": wrote outside the tensor";
}

}  // namespace linescan::testing
