// The devices of a run, as train.devices names them: kind[:index][/slow[:attention]][*count], in
// several texts or in one with commas between. "cuda:1" is a GPU, "cuda*2" the first two, "cpu*4"
// four CPU devices that divide the threads between them, "cpu/8" one of a single thread that is 8
// times slower, and "cpu/8:24" one that is 8 times slower at experts and 24 times at the rest.
// "auto" is one device that the machine decides on. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "plan/machine/machine_sheet.h"
#include "plan/step/assignment.h"

namespace pagoda {

struct ListedDevice {
  Processor kind = Processor::kCpu;
  int index = 0;  // of a GPU: CUDA's number
  Throttle throttle;

  std::string text() const;  // as parse_devices() reads it: "cuda:1", "cpu", "cpu/8:24"
};

inline constexpr int kMostDevices = 64;

// Empty for "auto". kUsage, without the option's name: what is no device, a GPU that is named twice
// or slowed, CPUs beside GPUs, too many.
Result<std::vector<ListedDevice>> parse_devices(const std::vector<std::string>& texts);
// All of a list are GPUs, or none is.
bool names_gpus(const std::vector<ListedDevice>& devices);

}  // namespace pagoda
