#include "plan/step/rank_part.h"

namespace pagoda {

Task with_own_places(const RunShape& shape, Task task) {
  const int first = shape.own_devices().first;
  for (uint8_t i = 0; i < task.num_uses; ++i) {
    Place& place = task.uses[i].place;
    if (place.tier == Tier::kDevice) place = Place::on_device(place.device - first);
  }
  return task;
}

TaskList own_part(const RunShape& shape, const TaskList& all) {
  TaskList own;
  for (const Task& task : all) {
    if (runs_here(shape, task)) own.push_back(with_own_places(shape, task));
  }
  return own;
}

void add_own_uses(const RunShape& shape, const TaskList& all, std::vector<PageUse>& uses) {
  if (shape.ranks() == 1) return add_uses(all, uses);
  add_uses(own_part(shape, all), uses);
}

}  // namespace pagoda
