// A failing CHECK: what it prints and the code the program ends with.
#include "base/check.h"

#include <gtest/gtest.h>

namespace pagoda {
namespace {

TEST(CheckDeathTest, NamesConditionPlaceAndWhyAndEndsWith70) {
  const int two = 2;
  EXPECT_EXIT(CHECK(two == 3, "%d is not %d", two, 3), ::testing::ExitedWithCode(70),
              "^pagoda: internal error: CHECK\\(two == 3\\) failed at .*check_test.cc:[0-9]+: 2 is "
              "not 3\n$");
}

}  // namespace
}  // namespace pagoda
