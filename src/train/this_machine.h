// The machine that this process runs on, as a sheet: cores and memory as they are, rates of a core
// as one machine had them. `pagoda bench machine` measures its own.
#pragma once

#include "plan/machine_sheet.h"

namespace pagoda {

MachineSheet this_machine_sheet();

}  // namespace pagoda
