// The GPU's ops against the CPU's, on emulated machines. On a GPU the same cases are
// tools/gpu_check's.
#include <gtest/gtest.h>

#include "tests/testing/emulated_machines.h"

namespace pagoda {
namespace {

TEST(CudaOps, Rows) { try_emulated(check::row_cases(), Asks::kNothing); }
TEST(CudaOps, Norms) { try_emulated(check::norm_cases(), Asks::kNothing); }
TEST(CudaOps, Route) { try_emulated(check::route_cases(), Asks::kNothing); }
TEST(CudaOps, Loss) { try_emulated(check::loss_cases(), Asks::kNothing); }
TEST(CudaOps, Adam) { try_emulated(check::adam_cases(), Asks::kNothing); }

}  // namespace
}  // namespace pagoda
