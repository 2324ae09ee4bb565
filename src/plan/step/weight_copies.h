// Tells which ranks have the newest weights of copied records (RunShape::is_copied). Their weights
// and state are pages of the home; other ranks compute with copies of the weights, which come
// from the home's host memory one layer ahead of their use (StepPlan::send_weights), behind the
// record's update. A copy stays good until the next one, through forward, backward and evaluations
// between steps. It may be evicted to the rank's page file like any scratch page.
//
// The account follows from the tasks alone, so every rank keeps the same one of all ranks. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/step/run_shape.h"
#include "plan/step/task.h"

namespace pagoda {

class WeightCopies {
 public:
  explicit WeightCopies(const RunShape& shape);

  // Whether the rank, which is not the record's home, has its newest weights.
  bool is_good(int64_t record, int rank) const { return good_[place(record, rank)] != 0; }
  void set_good(int64_t record, bool good);  // on all ranks
  // Call for the tasks of all ranks, in their order.
  void account(const TaskList& tasks);

 private:
  size_t place(int64_t record, int rank) const {
    return static_cast<size_t>(record) * static_cast<size_t>(ranks_) + static_cast<size_t>(rank);
  }

  int ranks_;
  std::vector<int> device_rank_;
  std::vector<uint8_t> good_;  // [record][rank]; empty with one rank
};

}  // namespace pagoda
