// Reads the files of machines and clusters, which are TOML like run files (cli/option_file.h) and
// of which every key is checked; and routing traces.
#pragma once

#include <string>

#include "plan/machine/machine_sheet.h"
#include "plan/step/routing_trace.h"

namespace pagoda {

// kNoInput when there is no such file; kUsage, in a line that names it, for a file that does not
// parse or has invalid values.
Result<MachineSheet> read_machine_sheet(const std::string& path);
// Reads a sheet from the content of a file, which errors call `name`.
Result<MachineSheet> parse_machine_sheet(const std::string& text, const std::string& name);
// Reads a cluster's sheet and those of the machines that it names.
Result<ClusterSheet> read_cluster_sheet(const std::string& path);

// Reads what train.trace_routing recorded. kNoInput when there is no such file; the errors of
// parse_routing_trace(), which name it.
Result<RoutingTrace> read_routing_trace(const std::string& path);

}  // namespace pagoda
