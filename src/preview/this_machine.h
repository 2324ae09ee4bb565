// The sheet of the machine that this process runs on. Cores and memory are the machine's own, rates
// of a core are those of one measured machine, and rates of a GPU come from a datasheet of its
// class. `pagoda bench machine` measures the real rates.
//
// A GPU's class is the newest architecture up to its own for which a number is known here: its peak
// of dense bf16 products with sums in fp32, its memory and its PCIe are those of NVIDIA's
// datasheets (T4 for sm_75, A100 SXM sm_80, A40 sm_86, GeForce RTX 4090 sm_89, H100 SXM sm_90, B200
// sm_100, GeForce RTX 5090 sm_120). Products are assumed to reach 0.75 of the peak, attention half
// of it, memory nine tenths and copies four fifths of their rates. Several are all taken for the
// first, with the memory of the smallest, and send to each other at the rate of copies.
#pragma once

#include <vector>

#include "device/gpus.h"
#include "plan/machine/machine_sheet.h"

namespace pagoda {

// `gpus`: those that compute, beside this machine's cores, memory and drive; none: the cores
// compute. The sheet's name says where the rates are from.
MachineSheet this_machine_sheet(const std::vector<Gpu>& gpus = {});

}  // namespace pagoda
