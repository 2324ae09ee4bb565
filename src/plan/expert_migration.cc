#include "plan/expert_migration.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>

#include "base/bytes.h"
#include "plan/refusals.h"

namespace pagoda {
namespace {

Status check_devices(const ExpertDevices& device_of_expert, int32_t devices) {
  RETURN_IF_ERROR(check_integer("the number of devices", devices));
  RETURN_IF_ERROR(
      check_integer("the number of experts", static_cast<int64_t>(device_of_expert.size())));
  std::vector<uint8_t> has_expert(static_cast<size_t>(devices), 0);
  for (const int32_t device : device_of_expert) {
    RETURN_IF_ERROR(check_integer("the device of an expert", device, 0, devices - 1));
    has_expert[static_cast<size_t>(device)] = 1;
  }
  if (std::count(has_expert.begin(), has_expert.end(), 1) == devices) return Status();
  return Status(Exit::kUsage, "a device has no expert of the layer");
}

Status check_tokens(std::span<const int64_t> tokens_per_expert, size_t experts) {
  if (tokens_per_expert.size() != experts) {
    return Status(Exit::kUsage, strf("tokens are given for %zu experts, devices for %zu",
                                     tokens_per_expert.size(), experts));
  }
  // So that differences of sums do not wrap.
  const auto most = std::numeric_limits<int64_t>::max() / 4 / static_cast<int64_t>(experts);
  for (const int64_t tokens : tokens_per_expert) {
    RETURN_IF_ERROR(check_integer("the tokens of an expert", tokens, 0, most));
  }
  return Status();
}

class HillClimb {
 public:
  HillClimb(std::span<const int64_t> tokens, const ExpertDevices& device_of_expert,
            int32_t devices)
      : tokens_(tokens), loads_(device_loads(tokens, device_of_expert, devices)) {
    experts_.resize(static_cast<size_t>(devices));
    for (size_t e = 0; e < device_of_expert.size(); ++e) {
      experts_[static_cast<size_t>(device_of_expert[e])].push_back(static_cast<int32_t>(e));
    }
  }

  // False when no swap of the fullest device helps.
  bool swap_once(SwapPartner partner, Migration& migration);

 private:
  struct Choice {
    size_t device = 0, place = 0, other_place = 0;
    int64_t fuller = 0;  // of the two devices afterwards
  };
  // Keeps in `best` a swap that leaves the fuller of both emptier than it does.
  void try_device(size_t fullest, size_t other, std::optional<Choice>& best) const;

  std::span<const int64_t> tokens_;
  std::vector<int64_t> loads_;                 // [device]
  std::vector<std::vector<int32_t>> experts_;  // [device]
};

// For two devices, whose sum stays, this is the swap that brings their loads closest.
void HillClimb::try_device(size_t fullest, size_t other, std::optional<Choice>& best) const {
  for (size_t i = 0; i < experts_[fullest].size(); ++i) {
    for (size_t j = 0; j < experts_[other].size(); ++j) {
      const int64_t given = tokens_[static_cast<size_t>(experts_[fullest][i])] -
                            tokens_[static_cast<size_t>(experts_[other][j])];
      const int64_t fuller = std::max(loads_[fullest] - given, loads_[other] + given);
      if (fuller < (best ? best->fuller : loads_[fullest])) best = Choice{other, i, j, fuller};
    }
  }
}

bool HillClimb::swap_once(SwapPartner partner, Migration& migration) {
  const auto at = [this](auto found) { return static_cast<size_t>(found - loads_.begin()); };
  const size_t fullest = at(std::max_element(loads_.begin(), loads_.end()));
  std::optional<Choice> best;
  if (partner == SwapPartner::kEmptiest) {
    try_device(fullest, at(std::min_element(loads_.begin(), loads_.end())), best);
  } else {
    for (size_t other = 0; other < loads_.size(); ++other) {
      if (other != fullest) try_device(fullest, other, best);
    }
  }
  if (!best) return false;
  int32_t& a = experts_[fullest][best->place];
  int32_t& b = experts_[best->device][best->other_place];
  const int64_t given = tokens_[static_cast<size_t>(a)] - tokens_[static_cast<size_t>(b)];
  loads_[fullest] -= given;
  loads_[best->device] += given;
  migration.swaps.push_back({a, b});
  std::swap(migration.device_of_expert[static_cast<size_t>(a)],
            migration.device_of_expert[static_cast<size_t>(b)]);
  std::swap(a, b);
  return true;
}

MigrationCost cost_of(int64_t moved_experts, int64_t device_bytes, double bytes_per_s) {
  return {moved_experts, device_bytes, static_cast<double>(device_bytes) / bytes_per_s};
}

Status check_expert(int64_t expert_bytes, double device_bytes_per_s) {
  RETURN_IF_ERROR(check_integer("expert_bytes", expert_bytes, 1,
                              std::numeric_limits<int64_t>::max() / kMaxCount));
  return check_rate("device_bytes_per_s", device_bytes_per_s);
}

}  // namespace

std::vector<int64_t> device_loads(std::span<const int64_t> tokens_per_expert,
                                  const ExpertDevices& device_of_expert, int32_t devices) {
  CHECK(tokens_per_expert.size() == device_of_expert.size());
  std::vector<int64_t> loads(static_cast<size_t>(devices), 0);
  for (size_t e = 0; e < device_of_expert.size(); ++e) {
    CHECK(device_of_expert[e] >= 0 && device_of_expert[e] < devices);
    loads[static_cast<size_t>(device_of_expert[e])] += tokens_per_expert[e];
  }
  return loads;
}

Result<Migration> balance_by_swaps(std::span<const int64_t> tokens_per_expert,
                                   const ExpertDevices& device_of_expert, int32_t devices,
                                   SwapPartner partner, int most_swaps) {
  RETURN_IF_ERROR(check_devices(device_of_expert, devices));
  RETURN_IF_ERROR(check_tokens(tokens_per_expert, device_of_expert.size()));
  RETURN_IF_ERROR(check_integer("most_swaps", most_swaps, 0));
  HillClimb climb(tokens_per_expert, device_of_expert, devices);
  Migration migration{device_of_expert, {}};
  while (static_cast<int>(migration.swaps.size()) < most_swaps &&
         climb.swap_once(partner, migration)) {
  }
  return migration;
}

Result<MigrationCost> migration_cost(const ExpertDevices& before, const ExpertDevices& after,
                                     int32_t devices, int64_t expert_bytes,
                                     double device_bytes_per_s) {
  RETURN_IF_ERROR(check_devices(before, devices));
  RETURN_IF_ERROR(check_devices(after, devices));
  RETURN_IF_ERROR(check_expert(expert_bytes, device_bytes_per_s));
  if (before.size() != after.size()) {
    return Status(Exit::kUsage, strf("%zu experts before are not the %zu after", before.size(),
                                     after.size()));
  }
  std::vector<int64_t> sent(static_cast<size_t>(devices), 0), received = sent;
  int64_t moved = 0;
  for (size_t e = 0; e < before.size(); ++e) {
    if (before[e] == after[e]) continue;
    ++moved;
    ++sent[static_cast<size_t>(before[e])];
    ++received[static_cast<size_t>(after[e])];
  }
  const int64_t most = std::max(*std::max_element(sent.begin(), sent.end()),
                                *std::max_element(received.begin(), received.end()));
  return cost_of(moved, most * expert_bytes, device_bytes_per_s);
}

Result<MigrationCost> worst_migration_cost(int64_t num_experts, int32_t devices,
                                           int64_t expert_bytes, double device_bytes_per_s) {
  RETURN_IF_ERROR(check_integer("num_experts", num_experts));
  RETURN_IF_ERROR(check_integer("the number of devices", devices));
  RETURN_IF_ERROR(check_expert(expert_bytes, device_bytes_per_s));
  if (num_experts % devices != 0) {
    return Status(Exit::kUsage, strf("%lld experts cannot be divided among %d devices",
                                     (long long)num_experts, devices));
  }
  return cost_of(num_experts, num_experts / devices * expert_bytes, device_bytes_per_s);
}

}  // namespace pagoda
