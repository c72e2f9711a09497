// Tests on the GPU: skipped where there is none, or where this build has no code for it. In a
// process of their own, as CTest runs them: what runs before may have made LibTorch believe that
// there is no GPU (compute.h).
#pragma once

#include <gtest/gtest.h>

#include "linescan/base/error.h"
#include "linescan/models/compute.h"

namespace linescan {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      compute_ = open_compute("cuda");
    } catch (const Unsupported& error) {
      GTEST_SKIP() << error.what();
    }
  }

  Compute compute_;  // in float32
};

}  // namespace linescan
