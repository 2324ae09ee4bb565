#include "config/sharing_config.h"

#include <algorithm>
#include <string>

#include "config/option_value.h"
#include "config/saved_options.h"

namespace pagoda {
namespace {

constexpr int64_t kMostShare = 1 << 20;

std::vector<int64_t> numbers_of(const std::vector<std::string>& texts) {
  std::vector<int64_t> numbers;
  for (const std::string& text : texts) numbers.push_back(count_of(text));
  return numbers;
}

// Several devices compute parts of an expert's gradient only where it is summed by shards.
Status check_data(const RunConfig& c) {
  const int64_t shards = c.sums().shards;
  if (shards > 1 && c.train.expert_shards == shards) return Status();
  return refuse("parallel.sharing", "\"data\"",
                strf("needs train.expert_shards = %lld, as many as train.shards and 2 at least, "
                     "which changes bits; rows and auto do not",
                     (long long)std::max<int64_t>(shards, 2)));
}

Status check_model(const RunConfig& c) {
  const std::vector<int64_t> shares = c.hidden_shares();
  if (shares.empty()) {
    return refuse("parallel.sharing", "\"model\"",
                  "needs parallel.hidden_shares, which determine bits: a number for each device, "
                  "by its speed");
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] >= 1 && shares[i] <= kMostShare) continue;
    return refuse("parallel.hidden_shares", c.parallel.hidden_shares[i],
                  strf("must be whole numbers from 1 to %lld", (long long)kMostShare));
  }
  const auto needs = [](const char* what) { return refuse("parallel.sharing", "\"model\"", what); };
  if (c.stages() > 1) {
    return needs("is for parallel.layout = experts, where all devices compute a layer's experts");
  }
  if (c.parallel.migrate_steps > 0) {
    return needs("has a part of each expert on each device; set parallel.migrate_steps = 0");
  }
  if (c.optim.clip == ClipKind::kPerExpert) {
    return needs("has no norm of a whole expert; set optim.clip to global or none");
  }
  return Status();
}

}  // namespace

Status check_sharing(const RunConfig& c) {
  const bool divided = c.train.micro_batch_tokens > 0;  // else it is chosen so that sums divide
  if (c.parallel.sharing == Sharing::kData && divided) RETURN_IF_ERROR(check_data(c));
  if (c.parallel.sharing == Sharing::kModel) return check_model(c);
  if (c.parallel.hidden_shares.empty()) return Status();
  return refuse("parallel.hidden_shares", c.parallel.hidden_shares.front(),
                "cut experts where parallel.sharing = model; leave them out, or set that");
}

std::vector<int64_t> RunConfig::hidden_shares() const { return numbers_of(parallel.hidden_shares); }

std::vector<int64_t> RunConfig::saved_hidden_shares(const std::string& toml) {
  return numbers_of(SavedOptions(toml).texts("parallel.hidden_shares"));
}

}  // namespace pagoda
