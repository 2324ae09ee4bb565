// A strategy to train on several devices (plan/search/cluster_search.h) as one step of it runs:
// what each stage or stream does when, and how full a device of each kind is. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace pagoda {

enum class StrategyWork : uint8_t {
  kForward,    // of a whole stage
  kBackward,   // of a whole stage, with what is computed again
  kAttention,  // and all but experts, both ways
  kExperts,    // both ways
  kComputing,  // of any kind
  kHead,
  kTransfer,
  kGradients,  // summed over devices
  kUpdates     // on the host
};
// In the order of StrategyWork: columns of a report, and what a page draws each as.
inline constexpr std::array<const char*, 9> kStrategyWorkNames{"forward",  "backward",  "attention",
                                                               "experts",  "computing", "head",
                                                               "transfer", "gradients", "updates"};
constexpr const char* strategy_work_name(StrategyWork work) {
  return kStrategyWorkNames[static_cast<size_t>(work)];
}

struct StrategyPiece {
  StrategyWork work = StrategyWork::kForward;
  double start_s = 0, end_s = 0;
  int64_t number = -1;  // of its lane's numbers_of; -1: none
};

struct StrategyLane {
  std::string name;
  const char* numbers_of = "";        // "microbatch"
  std::vector<StrategyPiece> pieces;  // by start
};

// Of one device.
struct StrategyMemory {
  std::string name;
  int64_t budget_bytes = 0;
  std::vector<std::pair<double, int64_t>> held;  // from a time on, ascending; bytes
};

struct StrategyTimeline {
  std::vector<StrategyLane> lanes;
  std::vector<StrategyMemory> memory;
  double end_s = 0;
};

}  // namespace pagoda
