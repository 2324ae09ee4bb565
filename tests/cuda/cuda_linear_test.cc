// The GPU's products of linear layers against the CPU's, on emulated machines.
#include <gtest/gtest.h>

#include "tests/testing/emulated_machines.h"

namespace pagoda {
namespace {

TEST(CudaLinear, MatchesTheCpu) { try_emulated(check::linear_cases(), Asks::kUnitAndTiles); }

}  // namespace
}  // namespace pagoda
