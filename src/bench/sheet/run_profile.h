// `pagoda bench machine RUN`: HeterMoE's profiler (section 5). One device of each kind that the run
// has, all together, train a few steps of the model's first layers with random weights and tokens,
// in every other one with a single token a microbatch, so that some experts have many rows; in
// equal shares and with experts on each. What a device's tasks take goes to the machine's sheet,
// those of its exchanges too. (By itself a device would find its caches warmer.) The numbers of
// experts that fit at least and at most are those of the memory plan (plan/memory/memory_plan.h).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/machine/machine_profile.h"
#include "plan/machine/machine_sheet.h"

namespace pagoda {

struct RunProfile {
  MachineSheet::Profile profile;
  // What a device takes for a microbatch of random tokens in a layer with experts, forward and
  // backward: all but the experts, as many rows of experts as the microbatch has choices, and
  // copies of rows that go to other devices or come from them, 0 for one device.
  struct Device {
    std::string name;
    double attention_s = 0, experts_s = 0, exchange_s = 0;
    // How many times the processor time of the device's thread it took, by kind of work. These are
    // what "cpu/8:24" asks for: experts 8, attention 24. (A core that does nothing else and never
    // rests may take less for the same work, since its caches stay warm.) 0: of a GPU, whose work
    // takes no processor time.
    double attention_slowness = 1, experts_slowness = 1;
  };
  std::vector<Device> devices;

  // The devices, and as HeterMoE's Figure 2 by how much each is faster than the slowest one; and
  // the counts of kept experts, if zebra can run. For the log.
  std::vector<std::string> lines() const;
};

// The tasks of one of a run's devices, in some steps.
struct DeviceTasks {
  std::array<std::vector<CostSample>, kTaskKinds> samples;
  int64_t microbatches = 0;  // times layers with experts and steps
  int64_t expert_rows = 0;   // computed forward
};
// `rows`: of experts, of a microbatch in a layer.
RunProfile::Device device_figures(const std::string& name, const DeviceTasks& device, int64_t rows);

// Makes the sheet one of all GPUs that the run lists, each with the memory of the smallest: a sheet
// is of one GPU until then, and its rates are that one's. What they send each other is taken to go
// through the host's memory. Without GPUs nothing changes.
void take_gpus(const RunConfig& config, MachineSheet& machine);

// `machine`: its sheet, of whose memory the budgets are parts. `directory`: an existing folder, on
// whose drive a scratch folder is made and removed. `rounds`: so many steps, two at least for
// experts with many rows. kUsage: a GPU that the
// run does not list, or whose rates the sheet has not. kHostMemory and kDeviceMemory where two
// layers do not fit, and the errors of read_model_sizes and check_layers. Stops between steps when
// a signal asks. REQUIRES: config.validate(), take_gpus().
Result<RunProfile> profile_run(const RunConfig& config, MachineSheet machine,
                               const std::string& directory, int rounds);

}  // namespace pagoda
