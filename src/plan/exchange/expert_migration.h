// Moves experts between the devices of an expert-parallel group, so that routing which favours some
// experts loads all devices evenly (Piper, section VI). It finds swaps by hill-climbing and counts
// what they cost. A swap keeps the number of experts of each device. `pagoda plan --routing` says
// what that would bring; plan/exchange/home_moves.h does it in a run. Pure.
//
// Algorithm 2 swaps between the fullest device and the emptiest, taking each time the pair of
// experts that brings their loads closest, while that helps. Taking the best swap of the fullest
// device with any other (the one after which the fuller of the two is emptiest) gets closer to the
// optimum in no more than a few swaps, at (devices - 1) times the work; finding the optimum is
// NP-hard.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace pagoda {

// device_of_expert[e] in [0, devices), for each expert of a layer.
using ExpertDevices = std::vector<int32_t>;

enum class SwapPartner : uint8_t {
  kEmptiest,  // the printed algorithm's
  kAny,
};

struct ExpertSwap {
  int32_t a = 0;  // on the fullest device before the swap
  int32_t b = 0;
};

struct Migration {
  ExpertDevices device_of_expert;
  std::vector<ExpertSwap> swaps;  // in order
};

inline constexpr int kMostSwaps = 100;  // T of Algorithm 2

// The sum of tokens of the experts of each device.
// REQUIRES: equal sizes, devices in range.
std::vector<int64_t> device_loads(std::span<const int64_t> tokens_per_expert,
                                  const ExpertDevices& device_of_expert, int32_t devices);

// Improves `device_of_expert` for tokens_per_expert (num_experts). Among equal choices it takes the
// first, counting devices and experts from below. Every swap lowers the sum of the squares of
// loads, so it ends. kUsage: no expert or device, sizes that differ, a device out of range or
// without an expert, tokens that are negative or too many to be summed, times of another number or
// not above zero, kinds of another number. O(swaps * (E / devices)^2), kAny: times devices.
// `token_s`: [device] how long a token takes it, by which loads are measured; empty: devices are
// equal, as in the paper. `kind`: [expert] all load their devices, and those of a kind are swapped
// with each other; empty: all are of one.
Result<Migration> balance_by_swaps(std::span<const int64_t> tokens_per_expert,
                                   const ExpertDevices& device_of_expert, int32_t devices,
                                   SwapPartner partner = SwapPartner::kAny,
                                   int most_swaps = kMostSwaps,
                                   std::span<const double> token_s = {},
                                   std::span<const int32_t> kind = {});

struct MigrationCost {
  int64_t moved_experts = 0;
  int64_t device_bytes = 0;  // the most that one device sends or receives
  double seconds = 0;        // time of an all-to-all in which every device sends and receives at
                             // once
};

// The cost of going from one assignment to another. An expert is moved with its weights, gradients,
// fp32 weights and moments: expert_bytes, 48 d d_ffn for Piper's 16 bytes a parameter. A device may
// have no expert, before or after. kUsage: no expert or device, sizes that differ, a device out of
// range, expert_bytes or the rate not above zero. O(E).
Result<MigrationCost> migration_cost(const ExpertDevices& before, const ExpertDevices& after,
                                     int32_t devices, int64_t expert_bytes,
                                     double device_bytes_per_s);

}  // namespace pagoda
