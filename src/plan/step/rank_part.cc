#include "plan/step/rank_part.h"

#include <algorithm>

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

std::pair<int, int> transfer_ends(const RunShape& shape, const Task& task) {
  const int from = sends(task.kind) ? task.device : task.peer;
  const int to = sends(task.kind) ? task.peer : task.device;
  const bool page = task.kind == TaskKind::kSendPage || task.kind == TaskKind::kReceivePage;
  if (!page) return {device_end(from), device_end(to)};
  const bool of_expert = task.expert >= 0;
  return {host_end(shape, shape.rank_of(from)),
          of_expert ? device_end(to) : host_end(shape, shape.rank_of(to))};
}

namespace {

PageKind kind_of(const PageTable& pages, const Task& send) {
  const PageTable::Page& page = pages.pages[send.uses[0].page];
  return pages.classes[page.slot_class].kind;
}

// Whether both sends carry rows of the same wave the same way. Sums go one by one: they may have
// been received themselves.
bool go_together(const PageTable& pages, const Task& a, const Task& b) {
  return a.wave >= 0 && a.wave == b.wave && a.phase == b.phase && a.layer == b.layer &&
         a.first_microbatch == b.first_microbatch && kind_of(pages, a) == kind_of(pages, b);
}

// Whether the second of these sends would wait for the first: one lane receives both, or both are
// parts of what comes into one page. A send's receive follows it.
bool waits(const TaskList& all, size_t first, size_t second) {
  CHECK(second + 1 < all.size() && all[second + 1].kind == TaskKind::kReceive);
  if (all[first].peer != all[second].peer) return false;
  return all[first + 1].lane == all[second + 1].lane || all[first].device == all[second].device;
}

}  // namespace

std::vector<bool> transfer_rounds(const RunShape& shape, const PageTable& pages,
                                  const TaskList& all) {
  std::vector<bool> ends(all.size(), false);
  std::vector<size_t> open;  // sends of the round
  for (size_t i = 0; i < all.size(); ++i) {
    const Task& send = all[i];
    if (send.kind != TaskKind::kSend) continue;
    if (shape.rank_of(send.device) == shape.rank_of(send.peer)) continue;
    ends[i] = std::any_of(open.begin(), open.end(), [&](size_t other) {
      return waits(all, other, i) || !go_together(pages, all[other], send);
    });
    if (ends[i]) open.clear();
    open.push_back(i);
  }
  return ends;
}

EndedRounds ended_rounds(const RunShape& shape, const PageTable& pages, const TaskList& all) {
  const std::vector<bool> ends = transfer_rounds(shape, pages, all);
  EndedRounds rounds;
  for (size_t i = 0; i < all.size(); ++i) {
    const Task& task = all[i];
    rounds.all += ends[i] ? 1 : 0;
    if (!runs_here(shape, task)) continue;
    const bool carried = task.kind == TaskKind::kSend || task.kind == TaskKind::kReceive;
    const bool crosses = carried && shape.rank_of(task.device) != shape.rank_of(task.peer);
    rounds.before.push_back(crosses ? rounds.all : -1);
  }
  ++rounds.all;  // with the list
  // What is no transfer comes behind the rounds that end before the next one.
  int next = rounds.all;
  for (size_t i = rounds.before.size(); i-- > 0;) {
    int& before = rounds.before[i];
    if (before < 0) before = next;
    next = before;
  }
  return rounds;
}

}  // namespace pagoda
