// The GPU's attention against the CPU's, on emulated machines.
#include <gtest/gtest.h>

#include "tests/testing/emulated_machines.h"

namespace pagoda {
namespace {

TEST(CudaAttention, MatchesTheCpu) { try_emulated(check::attention_cases(), Asks::kUnit); }

}  // namespace
}  // namespace pagoda
