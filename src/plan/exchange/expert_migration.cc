#include "plan/exchange/expert_migration.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "plan/refusals.h"

namespace pagoda {
namespace {

Status check_devices(const ExpertDevices& device_of_expert, int32_t devices) {
  RETURN_IF_ERROR(check_integer("the number of devices", devices));
  RETURN_IF_ERROR(
      check_integer("the number of experts", static_cast<int64_t>(device_of_expert.size())));
  for (const int32_t device : device_of_expert) {
    RETURN_IF_ERROR(check_integer("the device of an expert", device, 0, devices - 1));
  }
  return Status();
}

Status check_groups(const ExpertDevices& device_of_expert, int32_t devices) {
  RETURN_IF_ERROR(check_devices(device_of_expert, devices));
  std::vector<uint8_t> has_expert(static_cast<size_t>(devices), 0);
  for (const int32_t device : device_of_expert) has_expert[static_cast<size_t>(device)] = 1;
  if (std::count(has_expert.begin(), has_expert.end(), 1) == devices) return Status();
  return Status(Exit::kUsage, "a device has no expert of the layer");
}

Status check_tokens(std::span<const int64_t> tokens_per_expert, size_t experts) {
  if (tokens_per_expert.size() != experts) {
    return Status(Exit::kUsage, strf("tokens are given for %zu experts, devices for %zu",
                                     tokens_per_expert.size(), experts));
  }
  // The limit keeps differences of sums from wrapping.
  const auto most = std::numeric_limits<int64_t>::max() / 4 / static_cast<int64_t>(experts);
  for (const int64_t tokens : tokens_per_expert) {
    RETURN_IF_ERROR(check_integer("the tokens of an expert", tokens, 0, most));
  }
  return Status();
}

class HillClimb {
 public:
  // token_s: [device]; kind: [expert]
  HillClimb(std::span<const int64_t> tokens, const ExpertDevices& device_of_expert,
            std::vector<double> token_s, std::vector<int32_t> kind)
      : tokens_(tokens), kind_(std::move(kind)), token_s_(std::move(token_s)) {
    const auto devices = static_cast<int32_t>(token_s_.size());
    for (const int64_t load : device_loads(tokens, device_of_expert, devices)) {
      loads_.push_back(static_cast<double>(load) * token_s_[loads_.size()]);
    }
    experts_.resize(token_s_.size());
    for (size_t e = 0; e < device_of_expert.size(); ++e) {
      experts_[static_cast<size_t>(device_of_expert[e])].push_back(static_cast<int32_t>(e));
    }
  }

  // False when no swap of the fullest device helps.
  bool climb(SwapPartner partner, Migration& migration);

 private:
  struct Choice {
    size_t device = 0;
    size_t given = 0, taken = 0;  // places in experts_ of the fullest device, and of this one
    double fuller = 0;            // load of the fuller of the two devices afterwards
  };

  size_t fullest() const {
    return static_cast<size_t>(std::max_element(loads_.begin(), loads_.end()) - loads_.begin());
  }
  int64_t tokens(size_t device, size_t place) const {
    return tokens_[static_cast<size_t>(experts_[device][place])];
  }
  int32_t kind(size_t device, size_t place) const {
    return kind_[static_cast<size_t>(experts_[device][place])];
  }
  void try_swap(size_t fullest, Choice choice, std::optional<Choice>& best) const;
  void try_device(size_t fullest, size_t other, std::optional<Choice>& best) const;
  void carry_out(size_t fullest, const Choice& choice, Migration& migration);

  void give(size_t from, size_t to, int64_t tokens) {
    loads_[from] -= static_cast<double>(tokens) * token_s_[from];
    loads_[to] += static_cast<double>(tokens) * token_s_[to];
  }

  std::span<const int64_t> tokens_;
  std::vector<int32_t> kind_;                  // [expert]
  std::vector<double> token_s_, loads_;        // [device]
  std::vector<std::vector<int32_t>> experts_;  // [device]
};

// Keeps in `best` a swap that leaves the fuller of both devices emptier than it does. For two
// devices, whose sum stays, the best one brings their loads closest.
void HillClimb::try_swap(size_t fullest, Choice choice, std::optional<Choice>& best) const {
  const auto given = static_cast<double>(tokens(fullest, choice.given) -
                                         tokens(choice.device, choice.taken));
  choice.fuller = std::max(loads_[fullest] - given * token_s_[fullest],
                           loads_[choice.device] + given * token_s_[choice.device]);
  if (choice.fuller < (best ? best->fuller : loads_[fullest])) best = choice;
}

void HillClimb::try_device(size_t fullest, size_t other, std::optional<Choice>& best) const {
  for (size_t i = 0; i < experts_[fullest].size(); ++i) {
    for (size_t j = 0; j < experts_[other].size(); ++j) {
      if (kind(fullest, i) == kind(other, j)) try_swap(fullest, {other, i, j}, best);
    }
  }
}

void HillClimb::carry_out(size_t fullest, const Choice& choice, Migration& migration) {
  int32_t& a = experts_[fullest][choice.given];
  int32_t& b = experts_[choice.device][choice.taken];
  give(fullest, choice.device, tokens_[static_cast<size_t>(a)] - tokens_[static_cast<size_t>(b)]);
  migration.swaps.push_back({a, b});
  std::swap(migration.device_of_expert[static_cast<size_t>(a)],
            migration.device_of_expert[static_cast<size_t>(b)]);
  std::swap(a, b);
}

bool HillClimb::climb(SwapPartner partner, Migration& migration) {
  const size_t from = fullest();
  std::optional<Choice> best;
  if (partner == SwapPartner::kEmptiest) {
    const auto emptiest = std::min_element(loads_.begin(), loads_.end()) - loads_.begin();
    try_device(from, static_cast<size_t>(emptiest), best);
  } else {
    for (size_t other = 0; other < loads_.size(); ++other) {
      if (other != from) try_device(from, other, best);
    }
  }
  if (!best) return false;
  carry_out(from, *best, migration);
  return true;
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
                                   SwapPartner partner, int most_swaps,
                                   std::span<const double> token_s, std::span<const int32_t> kind) {
  RETURN_IF_ERROR(check_groups(device_of_expert, devices));
  RETURN_IF_ERROR(check_tokens(tokens_per_expert, device_of_expert.size()));
  RETURN_IF_ERROR(check_integer("most_swaps", most_swaps, 0));
  std::vector<double> times(static_cast<size_t>(devices), 1);
  if (!token_s.empty()) {
    RETURN_IF_ERROR(check_count("times of a token", token_s.size(), times.size()));
    RETURN_IF_ERROR(check_rates("times of a token", token_s));
    times.assign(token_s.begin(), token_s.end());
  }
  std::vector<int32_t> kinds(device_of_expert.size(), 0);
  if (!kind.empty()) {
    RETURN_IF_ERROR(check_count("kinds of experts", kind.size(), kinds.size()));
    kinds.assign(kind.begin(), kind.end());
  }
  HillClimb climb(tokens_per_expert, device_of_expert, std::move(times), std::move(kinds));
  Migration migration{device_of_expert, {}};
  for (int swaps = 0; swaps < most_swaps && climb.climb(partner, migration);) ++swaps;
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
  const int64_t bytes = most * expert_bytes;
  return MigrationCost{moved, bytes, static_cast<double>(bytes) / device_bytes_per_s};
}

}  // namespace pagoda
