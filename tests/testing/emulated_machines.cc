#include "tests/testing/emulated_machines.h"

#include <gtest/gtest.h>

#include "kernels/cuda/adam.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/machine/machine_emulated.h"
#include "tests/testing/op_testing.h"

namespace pagoda {
namespace {

struct Machine {
  const char* name;
  bool bf16_cores;
  int multiprocessors;
  Asks asks;  // what must be asked for it to differ from the first
};
// Another machine than the first makes no difference but to bf16. The third takes small tiles for
// small results and large ones for others.
const Machine kMachines[] = {{"large tiles", true, 1, Asks::kNothing},
                             {"fp16 tensor cores", false, 1, Asks::kUnit},
                             {"tiles of both sizes", true, 3, Asks::kUnitAndTiles}};

}  // namespace

void try_emulated(const std::vector<check::OpCase>& cases, Asks asks) {
  std::vector<std::byte> memory(size_t{64} << 20);
  TestLane lane(1);
  for (const Machine& machine : kMachines) {
    if (machine.asks > asks) continue;
    const auto ops = make_emulated_ops(machine.bf16_cores, machine.multiprocessors);
    check::Candidate candidate{ops.get(),
                               emulated::adam_update_on_device,
                               lane.stream.get(),
                               memory.data(),
                               static_cast<int64_t>(memory.size()),
                               [](bool second) { emulated::run_backwards(second); }};
    for (const check::OpCase& c : cases) {
      if (&machine != kMachines && c.name.find("bf16") == std::string::npos) continue;
      check::Trial trial(candidate);
      c.body(trial);
      EXPECT_EQ(trial.faults(), "") << c.name << ", " << machine.name;
    }
  }
}

}  // namespace pagoda
