// The GPU's operators over experts against the CPU's, on emulated machines.
#include <gtest/gtest.h>

#include "tests/testing/emulated_machines.h"

namespace pagoda {
namespace {

TEST(CudaExperts, GroupsMatchTheCpuAndExpertsAlone) {
  try_emulated(check::grouped_cases(), Asks::kUnitAndTiles);
}

}  // namespace
}  // namespace pagoda
