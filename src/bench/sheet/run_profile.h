// `pagoda bench machine RUN`: HeterMoE's profiler (section 5). Each device of the run trains, by
// itself, a few steps of the model's first layers with random weights and tokens; what its tasks
// take goes to the machine's sheet. The numbers of experts that fit at least and at most are those
// of the memory plan (plan/memory/memory_plan.h).
#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/machine/machine_sheet.h"

namespace pagoda {

struct RunProfile {
  MachineSheet::Profile profile;
  // What a device takes for a microbatch in a layer with experts, forward and backward: all but the
  // experts, and as many rows as it has choices in experts of a row block each.
  struct Device {
    std::string name;
    double attention_s = 0, experts_s = 0;
    // How many times as long it took as one core that is not slowed, by kind of work. These are
    // what "cpu/8:24" asks for: experts 8, attention 24.
    double attention_slowness = 1, experts_slowness = 1;
  };
  std::vector<Device> devices;

  // The devices, and as HeterMoE's Figure 2 by how much each is faster than the slowest one. For
  // the log.
  std::vector<std::string> lines() const;
};

// `directory`: an existing folder, on whose drive a scratch folder is made and removed. `rounds`:
// steps of each device and of one core that is not slowed, which take turns. kUsage: GPUs, which
// are alike and need no profile. kHostMemory where two layers do not fit the machine, and the
// errors of read_model_sizes. Stops between steps when a signal asks. REQUIRES: config.validate().
Result<RunProfile> profile_run(const RunConfig& config, const std::string& directory, int rounds);

}  // namespace pagoda
