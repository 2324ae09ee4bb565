#include "preview/this_machine.h"

#include <algorithm>

#include "base/bytes.h"
#include "hardware/machine.h"

namespace pagoda {
namespace {

// Datasheet rates of a whole GPU.
struct GpuClass {
  int capability = 0;  // 10 * major + minor, from which on it is the class
  double tflops = 0, memory_gb_s = 0, pcie_gb_s = 0;
};
constexpr GpuClass kGpuClasses[] = {{75, 65, 320, 15.75},      {80, 312, 2039, 31.5},
                                    {86, 149.7, 696, 31.5},    {89, 165.2, 1008, 31.5},
                                    {90, 989, 3350, 63},       {100, 2250, 8000, 63},
                                    {120, 209.5, 1792, 63}};

constexpr double kExchangeUs = 10;  // of a transfer between two GPUs, beside its bytes

void set_gpus(const std::vector<Gpu>& gpus, MachineSheet& m) {
  const Gpu& gpu = gpus.front();
  GpuClass found = kGpuClasses[0];
  for (const GpuClass& c : kGpuClasses) {
    if (c.capability <= 10 * gpu.major + gpu.minor) found = c;
  }
  const std::string count = gpus.size() > 1 ? strf("%zu devices like ", gpus.size()) : "";
  m.machine.name = count + gpu.text() + ", with rates of a datasheet for its class";
  m.device.kind = Processor::kGpu;
  m.device.count = std::ssize(gpus);
  int64_t least_bytes = gpu.memory_bytes;
  for (const Gpu& other : gpus) least_bytes = std::min(least_bytes, other.memory_bytes);
  m.device.memory = MemorySize::of_bytes(least_bytes);
  m.device.peak_tflops = found.tflops;
  m.device.gemm_tflops = 0.75 * found.tflops;
  m.device.attention_tflops = 0.5 * found.tflops;
  m.device.attention_half_tokens = 256;
  m.device.weight_gb_s = m.device.memory_gb_s = 0.9 * found.memory_gb_s;
  m.host.copy_gb_s = 0.8 * found.pcie_gb_s;
  m.link.gb_s = m.host.copy_gb_s;
  m.link.latency_us = kExchangeUs;
}

}  // namespace

// The rates of a core are half of those measured on a machine of two cores with AMX.
MachineSheet this_machine_sheet(const std::vector<Gpu>& gpus) {
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
  if (!gpus.empty()) set_gpus(gpus, m);
  return m;
}

}  // namespace pagoda
