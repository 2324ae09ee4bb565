#include "preview/row_speeds.h"

#include <algorithm>

#include "plan/machine/task_costs.h"

namespace pagoda {

std::vector<double> row_speeds(const ModelShape& model, std::span<const PlannedRank> ranks) {
  std::vector<double> speeds;
  for (const PlannedRank& rank : ranks) {
    const RunShape& run = rank.run.shape;
    CostSettings work;
    work.sequence_len = rank.run.sequence_len;
    work.devices = rank.run.devices;
    const MachineProfile costs = task_costs(*rank.sheet, model, run, work);
    const DeviceRange own = run.own_devices();
    for (int d = own.first; d < own.end(); ++d) {
      const bool alike = costs.device_tasks.empty();
      speeds.push_back(
          row_speed(alike ? costs.tasks : costs.device_tasks[static_cast<size_t>(d)], run));
    }
  }
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  for (double& speed : speeds) speed /= fastest;
  return speeds;
}

}  // namespace pagoda
