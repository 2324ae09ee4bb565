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
                     "which changes bits; parallel.sharing = rows or auto needs none of it",
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

// Rows stay in their copy, and so do its experts.
Status check_expert_copies(const RunConfig& c) {
  const int64_t copies = c.parallel.copies;
  const std::string text = std::to_string(copies);
  if (copies == 1) return Status();
  if (copies * c.stages() > c.num_devices()) {
    return refuse("parallel.copies", text,
                  strf("each needs a device in each of %d stages, and there are %lld; set "
                       "train.devices, or fewer copies",
                       c.stages(), (long long)c.num_devices()));
  }
  const auto needs = [&](const char* what) { return refuse("parallel.copies", text, what); };
  const Sharing sharing = c.parallel.sharing;
  if (sharing == Sharing::kData || sharing == Sharing::kModel) {
    return needs("keep their experts where they are; set parallel.sharing to auto or rows");
  }
  if (c.parallel.migrate_steps > 0) {
    return needs("keep their experts where they are; set parallel.migrate_steps = 0");
  }
  if (c.pinned_share() > 0) return needs("pin no experts; set memory.pin to auto");
  if (!c.plan.same_blocks()) {
    return needs(
        "take the same groups forward and backward; unset plan.microbatch_major and "
        "plan.padded_experts");
  }
  return Status();
}

// A copy sums the gradients of its own shards. The checkpoint fixes how many there are.
Status check_copied_sums(const RunConfig& c) {
  if (c.parallel.copies == 1 || c.train.micro_batch_tokens == 0) return Status();
  const int64_t shards = c.sums().shards, copies = c.parallel.copies;
  if (c.train.expert_shards == shards && shards >= copies) return Status();
  return Status(
      Exit::kMismatch,
      strf("parallel.copies = %lld: needs as many train.shards at least, and "
           "train.expert_shards as many as these, and a step has %lld and %lld; set them, "
           "which changes bits, or fewer copies",
           (long long)copies, (long long)shards, (long long)c.train.expert_shards));
}

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
