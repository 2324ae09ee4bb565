#include "train/this_machine.h"

#include "base/machine.h"

namespace pagoda {

// Of a core: half of what configs/machines/cpu-2-cores.toml has.
MachineSheet this_machine_sheet() {
  MachineSheet m;
  const auto cores = static_cast<double>(usable_cores());
  m.machine.name = "this machine, with rates of another's cores (measure it: pagoda bench machine)";
  m.device.peak_tflops = 3.2 * cores;
  m.device.gemm_tflops = 0.75 * cores;
  m.device.weight_gb_s = 23 * cores;
  m.device.attention_tflops = 0.46 * cores;
  m.device.attention_half_tokens = 295;
  m.device.memory_gb_s = 22 * cores;
  m.device.launch_us = 5;
  m.host.cores = cores;
  m.host.memory = MemorySize::of_bytes(machine_memory().usable_bytes());
  m.host.copy_gb_s = 7.7;
  m.host.checksum_gb_s = 14;
  m.host.adam_gb_s = 24 * cores;
  m.disk.read_gb_s = 2.1;
  m.disk.write_gb_s = 2.8;
  return m;
}

}  // namespace pagoda
