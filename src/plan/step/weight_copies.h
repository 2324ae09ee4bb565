// Tells which ranks have the newest weights of records that are at home on another one.
//
// A rank's host has those of copied records (RunShape::is_copied). Weights and state are pages of
// the home; other ranks compute with copies of the weights, which come from the home's host memory
// one layer ahead of their use (StepPlan::send_weights), behind the record's update. A copy stays
// good until the next one, through forward, backward and evaluations between steps. It may be
// evicted to the rank's page file like any scratch page.
//
// A device has those of its guests (plan/step/expert_seats.h), each in a page that another layer's
// guest takes from it. There they stay good until then, or until the next update.
//
// The account follows from the tasks alone, so every rank keeps the same one of all ranks. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "plan/step/run_shape.h"
#include "plan/step/task.h"

namespace pagoda {

class WeightCopies {
 public:
  explicit WeightCopies(const RunShape& shape);

  // Whether the rank, which is not the record's home, has its newest weights.
  bool is_good(int64_t record, int rank) const { return good_[place(record, rank)] != 0; }
  // Whether the page of a guest has the newest weights of the record.
  bool is_good_guest(int64_t record, PageId page) const;
  void set_good(int64_t record, bool good);  // on all ranks; guests have none behind it
  // Call for the tasks of all ranks, in their order.
  void account(std::span<const Task> tasks);

 private:
  size_t place(int64_t record, int rank) const {
    return static_cast<size_t>(record) * static_cast<size_t>(ranks_) + static_cast<size_t>(rank);
  }
  struct Guest {
    int64_t record = -1, change = 0;
  };

  int ranks_;
  std::vector<int> device_rank_;
  std::vector<uint8_t> good_;     // [record][rank]; empty with one rank
  std::vector<int64_t> changes_;  // [record] of its weights so far; likewise
  std::map<PageId, Guest> guests_;
};

}  // namespace pagoda
