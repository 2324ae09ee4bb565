// The timeline of one step of a strategy to train on nodes of two kinds
// (plan/search/cluster_search.h): the work of each stage or stream, and the memory in use on a
// device of each kind. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace pagoda {

enum class StrategyWork : uint8_t {
  kAttention,  // all but experts, forward and backward
  kExperts,    // forward and backward
  kComputing,  // any kind of computing
  kHead,
  kTransfer,
  kGradients,  // summed over devices
  kUpdates     // of weights and states, on the devices or on the hosts
};
// [StrategyWork] the name of a report's column, and of a page's style.
inline constexpr std::array<const char*, 7> kStrategyWorkNames{
    "attention", "experts", "computing", "head", "transfer", "gradients", "updates"};
constexpr const char* strategy_work_name(StrategyWork work) {
  return kStrategyWorkNames[static_cast<size_t>(work)];
}

struct StrategyPiece {
  StrategyWork work = StrategyWork::kComputing;
  double start_s = 0, end_s = 0;
  int64_t number = -1;  // index into its lane's numbers_of; -1: none
};

struct StrategyLane {
  std::string name;
  const char* numbers_of = "";        // "microbatch"
  std::vector<StrategyPiece> pieces;  // by start
};

// The memory in use on one device.
struct StrategyMemory {
  std::string name;
  int64_t budget_bytes = 0;
  std::vector<std::pair<double, int64_t>> held;  // (time from which on, bytes), ascending
};

struct StrategyTimeline {
  std::vector<StrategyLane> lanes;
  std::vector<StrategyMemory> memory;
  double end_s = 0;
};

}  // namespace pagoda
