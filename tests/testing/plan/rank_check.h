// Checks that ranks keep to their own records and have the newest weights of the others': accounts
// for the copies of dense weights that were sent, and of experts' to devices whose guests they are,
// and after how many updates. And that transfers in turn are received right behind their sends,
// which is why turns cannot deadlock (parallel/mpi_link.h). Part of the validator.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "plan/step/pages.h"
#include "plan/step/run_shape.h"
#include "plan/step/task.h"
#include "tests/testing/plan/plan_fault.h"

namespace pagoda {

class RankCheck {
 public:
  // Nothing is owned.
  RankCheck(const RunShape* shape, const PageTable* pages, PlanFaults* faults);

  void begin_step();
  // Takes the tasks of all ranks.
  void check(const Task& task);

 private:
  struct SentPage {
    int64_t record = 0, bytes = 0, updates = 0;
  };
  void fault(PlanRule rule, const Task& task, const char* what);
  void check_use(const Task& task, const PageUse& use);
  void check_send(const Task& task);
  void check_receive(const Task& task);
  void check_weights(const Task& task);
  void check_turn(const Task& task);

  const RunShape& shape_;
  const PageTable& pages_;
  PlanFaults& faults_;
  std::vector<int64_t> updates_;                             // [record] so far
  std::map<std::pair<int64_t, int>, int64_t> copies_;        // [record, rank] made after so many
  std::map<std::pair<int, int>, std::deque<SentPage>> sent_;  // [from, to] and not received yet
  std::map<PageId, SentPage> guests_;                         // what such a page holds
  std::optional<std::pair<int, int>> turn_;  // [from, to] of what is sent in turn, until it is
                                             // received
};

}  // namespace pagoda
