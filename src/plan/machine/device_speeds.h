// Says what follows from the speeds that a run's devices were measured to have: whether their
// shares of the work are others, and whether it pays to deal attention's shards again
// (train/work_balance.h measures them). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/step/assignment.h"
#include "plan/step/run_shape.h"

namespace pagoda {

// [device] how fast each of a run's devices is at one kind of work, as `measured`, in any unit. One
// that had no such work, which has 0 there, is taken to differ from what is known beforehand
// (`listed`, above 0) as the others do on average, and from these as it does at its other work.
// Empty if no device had any.
std::vector<double> speeds_of_all(std::span<const double> measured, std::span<const double> listed,
                                  std::span<const double> measured_other,
                                  std::span<const double> listed_other);

// Whether a device's share of the work is another than before, by more than kLeastChange of it.
// `before` and `after` need not be in the same unit.
inline constexpr double kLeastChange = 0.05;
bool shares_differ(std::span<const double> before, std::span<const double> after);

// [device] the tokens of a step that it attends to, in the layers of its stage, if shards are dealt
// like that (RunShape::shard_device).
std::vector<int64_t> attended_tokens(const RunShape& shape, const std::vector<int>& shard_device);

// The rows of experts, in all layers, that are computed where their token is attended to: all where
// weights always travel to them. Of those that routing may leave there, as with Sharing::kAuto,
// none is counted.
int64_t rows_with_token(const RunShape& shape);

// How long the busiest device attends, and computes rows_with_token(), by its measured speeds, if
// shards are dealt like that.
double busiest_device_s(const RunShape& shape, const std::vector<int>& shard_device,
                        std::span<const DeviceSetup> devices);

// Whether another deal of attention pays: a step gains kLeastDealGain of itself at least, and in
// kDealHorizon steps, or as many as are left, twice what the deal takes.
inline constexpr double kLeastDealGain = 0.05, kDealWorth = 2;
inline constexpr int64_t kDealHorizon = 40;
bool deal_pays(double gain_s, double step_s, double deal_s, int64_t steps_left);

}  // namespace pagoda
