// Files of machines and clusters: TOML, read as run files are (cli/option_file.h), every key
// checked.
#pragma once

#include <string>

#include "plan/machine/machine_sheet.h"

namespace pagoda {

// kNoInput when there is no such file; kUsage, in a line that names it, for what does not parse or
// makes no sense.
Result<MachineSheet> read_machine_sheet(const std::string& path);
// Likewise, from the content of a file that errors call `name`.
Result<MachineSheet> parse_machine_sheet(const std::string& text, const std::string& name);
// And the machines that it names.
Result<ClusterSheet> read_cluster_sheet(const std::string& path);

}  // namespace pagoda
