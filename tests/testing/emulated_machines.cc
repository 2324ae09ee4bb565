#include "tests/testing/emulated_machines.h"

#include <gtest/gtest.h>

#include "kernels/cuda/adam.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/expert_ops.h"
#include "kernels/cuda/machine_emulated.h"
#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

struct Machine {
  const char* name;
  bool tensor_cores;
  int multiprocessors;
  bool all_types;  // false: what it is makes no difference but to bf16
};
// The second takes small tiles for small results and large ones for others.
const Machine kMachines[] = {{"large tiles", true, 1, true},
                             {"tiles of both sizes", true, 3, false},
                             {"no tensor cores", false, 1, false}};

}  // namespace

void try_emulated(const std::vector<check::OpCase>& cases) {
  std::vector<std::byte> memory(size_t{64} << 20);
  TestLane lane(1);
  for (const Machine& machine : kMachines) {
    const auto ops = make_emulated_ops(machine.tensor_cores, machine.multiprocessors);
    const auto experts = make_emulated_expert_ops(machine.tensor_cores, machine.multiprocessors);
    check::Candidate candidate{ops.get(), experts.get(), emulated::adam_update_on_device,
                               lane.stream.get(), memory.data(),
                               static_cast<int64_t>(memory.size()),
                               [](bool second) { emulated::run_backwards(second); }};
    for (const check::OpCase& c : cases) {
      if (!machine.all_types && c.name.find("bf16") == std::string::npos) continue;
      check::Trial trial(candidate);
      c.body(trial);
      EXPECT_EQ(trial.faults(), "") << c.name << ", " << machine.name;
    }
  }
}

}  // namespace pagoda
