// The machine that this process runs on, as a sheet: cores and memory as they are, rates of a core
// as one machine had them, and those of a GPU by a datasheet of its class. `pagoda bench machine`
// measures its own.
//
// A GPU's class is the newest architecture up to its own for which a number is known here: peak of
// dense bf16 products with sums in fp32, memory and PCIe by NVIDIA's datasheets (T4 for sm_75, A100
// SXM sm_80, A40 sm_86, GeForce RTX 4090 sm_89, H100 SXM sm_90, B200 sm_100, GeForce RTX 5090
// sm_120). Of them 0.75 are assumed for products, half for attention, nine tenths for memory and
// four fifths of PCIe for copies.
#pragma once

#include <optional>

#include "device/gpus.h"
#include "plan/machine/machine_sheet.h"

namespace pagoda {

// `gpu`: that computes, beside this machine's cores, memory and drive; none: the cores do. Its name
// says where the rates are from.
MachineSheet this_machine_sheet(const std::optional<Gpu>& gpu = std::nullopt);

}  // namespace pagoda
