#include "config/zebra_config.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/number_text.h"
#include "config/option_value.h"

namespace pagoda {
namespace {

constexpr int64_t kMostCount = 1 << 20;

Status check_counts(const char* key, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    int64_t count = -1;
    if (parse_int64(text, count) && count >= 0 && count <= kMostCount) continue;
    return refuse(key, text, strf("must be a count from 0 to %lld", (long long)kMostCount));
  }
  return Status();
}

bool is_auto(const std::vector<std::string>& texts) {
  return texts.size() == 1 && texts.front() == "auto";
}

Status check_lags(const RunConfig& c) {
  const std::vector<std::string>& texts = c.parallel.lags;
  if (c.auto_lags()) return Status();
  RETURN_IF_ERROR(check_counts("parallel.lags", texts));
  if (texts.size() == 3) return Status();
  return refuse("parallel.lags", texts.empty() ? "" : texts.front(),
                "must be three counts, of the head, attention and experts, for example [\"1\", "
                "\"1\", \"1\"]");
}

Status check_kept_rows(const RunConfig& c) {
  if (c.auto_kept_rows()) return Status();
  RETURN_IF_ERROR(check_counts("parallel.kept_rows", {c.parallel.kept_rows}));
  if (c.kept_rows() == 0 || c.plan.same_blocks()) return Status();
  return refuse("parallel.kept_rows", c.parallel.kept_rows,
                "the backward must take the groups of the forward; unset plan.microbatch_major and "
                "plan.padded_experts");
}

}  // namespace

// Zebra changes no bit; train.chunks does, so that a checkpoint has it.
Status check_zebra_run(const RunConfig& c) {
  if (!c.auto_offloaded()) {
    RETURN_IF_ERROR(check_counts("parallel.offloaded", c.parallel.offloaded));
  }
  RETURN_IF_ERROR(check_lags(c));
  RETURN_IF_ERROR(check_kept_rows(c));
  if (!c.zebra()) return Status();
  const auto needs = [](const char* what) { return refuse("parallel.layout", "zebra", what); };
  // The group with the fewest has so many.
  const int64_t groups = c.stages() * c.copies(), devices = c.num_devices() / groups;
  if (devices < 2 && groups > 1) {
    return needs(
        "needs two devices at least in each of parallel.stages and parallel.copies; set "
        "train.devices, or fewer of these");
  }
  if (devices < 2) return needs("needs two devices at least; set train.devices");
  if (c.parallel.attention_devices >= devices) {
    return needs("needs devices that do not attend; lower parallel.attention_devices");
  }
  if (c.plan.microbatch_major || c.plan.padded_experts) {
    return needs("has an order of its own; unset plan.microbatch_major and plan.padded_experts");
  }
  if (c.parallel.sharing == Sharing::kModel) {
    return needs("has devices without experts; unset parallel.sharing = model");
  }
  if (c.train.chunks >= 2) return Status();
  return Status(Exit::kMismatch,
                strf("parallel.layout = zebra: a step has %lld train.chunks, and two at least can "
                     "be worked at side by side; set train.chunks, which changes bits, or another "
                     "parallel.layout",
                     (long long)c.train.chunks));
}

bool RunConfig::auto_lags() const { return is_auto(parallel.lags); }
bool RunConfig::auto_offloaded() const { return is_auto(parallel.offloaded); }

std::vector<int64_t> RunConfig::offloaded() const {
  if (auto_offloaded()) return {0};
  std::vector<int64_t> counts;
  for (const std::string& text : parallel.offloaded) {
    counts.push_back(count_of(text));
  }
  return counts;
}

int64_t RunConfig::kept_rows() const { return auto_kept_rows() ? 0 : count_of(parallel.kept_rows); }

Lags RunConfig::lags() const {
  if (auto_lags()) return {1, 1, 1};
  const auto lag = [&](size_t i) {
    return static_cast<int32_t>(count_of(parallel.lags[i]));
  };
  return {lag(0), lag(1), lag(2)};
}

}  // namespace pagoda
