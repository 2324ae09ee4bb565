// Decides when experts of a run exchange homes, and which: so that routing which favours some
// experts loads all devices evenly (Piper, section VI), and only where that pays. An exchange
// keeps the number of experts that each device has of a layer, as Algorithm 2 does, so that memory
// stays divided as it is. No bit of a result follows from it. Pure.
//
// The loads are running means over the steps so far. A layer's experts move where all of this
// holds, with E steps between two decisions:
//  - it gains the time of more of the busiest device's rows than four standard deviations of these:
//    rows that fall on devices by chance, evenly on average, have a variance of about their number;
//  - what E * kHorizon steps gain is at least kWorth times what the move takes;
//  - all moves together are expected to take at most kMostShare of E steps, the best ones first;
//  - all of them together gain at least kLeastGain of a step.
// Both thresholds keep experts from going back and forth: who moved gains nothing by moving back.
// A gain is that of devices which go through a layer's waves together (plan/step/expert_blocks.h),
// whose rows may be divided evenly and still wait for one another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/exchange/expert_migration.h"
#include "plan/step/run_shape.h"
#include "plan/step/step_schedule.h"

namespace pagoda {

// Two experts of one layer, as records, that get each other's home.
struct HomeSwap {
  int64_t a = 0, b = 0;
  bool operator==(const HomeSwap&) const = default;
};

// [layer][E] the rows of a step that load homes: those that no guest computes
// (plan/step/expert_seats.h). Empty for dense layers.
std::vector<std::vector<int64_t>> home_loads(const RunShape& shape, const Routing& routing);

// Means of each expert's rows in a step: plain ones over the first `span` steps, and then ones in
// which a step weighs 1 / span.
class RowMeans {
 public:
  explicit RowMeans(int64_t span) : span_(span) {}
  // A step's home_loads().
  void add(std::span<const std::vector<int64_t>> rows);
  int64_t steps() const { return steps_; }
  double weight() const;  // how many steps the means are about
  // (E); empty for a dense layer, or before the first step.
  std::span<const double> of_layer(int64_t layer) const;

 private:
  int64_t span_, steps_ = 0;
  std::vector<std::vector<double>> means_;  // [layer][E]
};

// What a step was measured to take. All ranks must say the same.
struct StepTimes {
  double step_s = 0;
  // [device] the time that a row of an expert takes, in both phases; 0: it had none.
  std::vector<double> row_s;
  double bytes_per_s = 0;  // each way between two ranks; of no matter with one rank
};

struct HomeMoves {
  std::vector<HomeSwap> swaps;  // in their order
  double gain_s = 0;            // by which a step becomes shorter
  double move_s = 0;            // the time of the moves, once
  int64_t bytes = 0;            // they leave ranks; of each exchange, half from either
  // Those that go one way, one behind the other, while all layers' moves are made: ranks that have
  // no exchange with each other make theirs at once.
  int64_t in_turn_bytes = 0;
};

inline constexpr double kHorizon = 4, kWorth = 2, kMostShare = 0.05, kLeastGain = 0.01;

// What goes with an expert to another rank: its weights, and its state if it trains.
int64_t moved_bytes(const RunShape& shape, int64_t record);

// Whether two experts may exchange homes: they are of one layer, and alike in size. In zebra both
// are on devices that attend, or both on others.
bool may_exchange(const RunShape& shape, const HomeSwap& swap);

// The swaps that bring the layer's devices closest to each other in time, by balance_by_swaps() of
// these means, each between experts that may_exchange(): for whoever does not ask what that costs.
// With seats by step a rank's devices count as one. Empty for a dense layer, or where its experts
// are on one device. `row_s`: StepTimes's, in any unit. `partner`: a run's are kAny.
std::vector<HomeSwap> balancing_swaps(const RunShape& shape, int64_t layer, const RowMeans& means,
                                      std::span<const double> row_s,
                                      SwapPartner partner = SwapPartner::kAny);

// The moves that pay, or none. `every`: steps between decisions. O(layers * swaps * E^2).
HomeMoves choose_moves(const RunShape& shape, const RowMeans& means, const StepTimes& times,
                       int64_t every);

}  // namespace pagoda
