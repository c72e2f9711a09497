#include "linescan/base/activity.h"

#include <gtest/gtest.h>

#include <thread>

namespace linescan {
namespace {

struct Plan {
  static constexpr const char* kOperator = "scan";
  int tiles = 0;
};
std::string to_string(const Plan& plan) { return "tiles=" + std::to_string(plan.tiles); }

TEST(Activity, ModulesNestAndAnotherThreadSeesThem) {
  const int64_t entered = activity().modules;
  EXPECT_EQ(running_module(), "");
  {
    const ModuleRunning outer("layers.0");
    {
      const ModuleRunning inner("op");
      EXPECT_EQ(running_module(), "layers.0.op");
      std::thread([&] {
        EXPECT_EQ(activity().module, "layers.0.op");
        EXPECT_EQ(activity().modules, entered + 2);
        EXPECT_EQ(running_module(), "");  // this thread runs nothing
      }).join();
    }
    EXPECT_EQ(activity().module, "layers.0");
  }
  EXPECT_EQ(activity().module, "");
}

TEST(Activity, AnEndlessPathIsCutOffAndGivenBack) {
  const std::string name(200, 'a');
  {
    const ModuleRunning one(name), two(name), three(name);
    EXPECT_EQ(running_module().size(), 256u);
  }
  EXPECT_EQ(running_module(), "");
}

TEST(Activity, AModuleThatAnExceptionLeavesIsRemembered) {
  try {
    const ModuleRunning outer("stem");
    const ModuleRunning inner("conv");
    throw 1;
  } catch (int) {
    EXPECT_EQ(failed_module(), "stem.conv");
  }
  const ModuleRunning next("head");
  EXPECT_EQ(failed_module(), "");
}

TEST(Activity, TheLastOperatorIsKeptWithItsPlan) {
  const int64_t before = activity().ops;
  {
    Plan plan{7};
    const OperatorRunning running(plan);
    plan.tiles = 8;  // a copy was taken
    const Activity now = activity();
    EXPECT_EQ(now.op, "scan");
    EXPECT_EQ(now.plan, "tiles=7");
    EXPECT_TRUE(now.op_running);
    EXPECT_EQ(now.ops, before + 1);
  }
  EXPECT_FALSE(activity().op_running);
  EXPECT_EQ(activity().op, "scan");
}

TEST(Activity, TheEndOfAnEarlierOperatorDoesNotHideALaterOne) {
  auto* first = new OperatorRunning(Plan{1});
  const OperatorRunning second(Plan{2});
  delete first;
  EXPECT_EQ(activity().plan, "tiles=2");
  EXPECT_TRUE(activity().op_running);
}

}  // namespace
}  // namespace linescan
