#include "plan/machine/device_profile.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/bytes.h"
#include "base/si_units.h"
#include "plan/step/task_table.h"

namespace pagoda {
namespace {

constexpr double kMostUs = 1e12;  // sanity limit of a cost

struct CostLine {
  std::string_view device;
  TaskKind kind = TaskKind::kAdam;
  Cost cost;
};

// A number, and what is behind it.
bool read_number(std::string_view& text, double& value) {
  const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !(value >= 0 && value <= kMostUs)) return false;
  text.remove_prefix(static_cast<size_t>(after - text.data()));
  if (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return true;
}

// "cpu/8:24, attention: 120.5 3.25", and "cpu/8:24, expert: 40 3.25 80.5" where tasks are computed
// together: fixed_s, unit_s and start_s.
std::optional<CostLine> parse_cost(std::string_view text) {
  CostLine line;
  const size_t comma = text.find(", ");
  if (comma == std::string_view::npos) return {};
  line.device = text.substr(0, comma);
  text.remove_prefix(comma + 2);
  const size_t colon = text.find(": ");
  if (colon == std::string_view::npos) return {};
  const std::string_view name = text.substr(0, colon);
  text.remove_prefix(colon + 2);
  const auto row = std::find_if(kTaskTable.begin(), kTaskTable.end(),
                                [&](const TaskRow& r) { return name == r.name; });
  double fixed_us = 0, unit_us = 0, start_us = 0;
  if (row == kTaskTable.end() || !read_number(text, fixed_us) || !read_number(text, unit_us)) {
    return {};
  }
  if (!text.empty() && (!read_number(text, start_us) || !text.empty())) return {};
  line.kind = row->kind;
  line.cost = {
      .fixed_s = kMicro * fixed_us, .unit_s = kMicro * unit_us, .start_s = kMicro * start_us};
  return line;
}

}  // namespace

std::string profile_key(const ModelShape& m, int64_t microbatch_tokens, int64_t sequence_len) {
  const AttentionSizes& a = m.attention;
  return strf(
      "d %lld, %lld heads of %lld over %lld, experts of %lld, %lld of them a token, shared "
      "%lld, dense %lld, vocabulary %lld, microbatches of %lld in rows of %lld",
      (long long)m.hidden_size, (long long)a.heads, (long long)a.head_dim, (long long)a.kv_heads,
      (long long)m.expert_ffn, (long long)m.experts_per_token, (long long)m.shared_ffn,
      (long long)m.dense_ffn, (long long)m.vocab_size, (long long)microbatch_tokens,
      (long long)sequence_len);
}

void add_device(const std::string& name, const MeasuredCosts& costs,
                MachineSheet::Profile& profile) {
  profile.devices.push_back(name);
  for (size_t kind = 0; kind < costs.size(); ++kind) {
    if (!costs[kind]) continue;
    const Cost& cost = *costs[kind];
    std::string text = strf("%s, %s: %.6g %.6g", name.c_str(), kTaskTable[kind].name,
                            cost.fixed_s / kMicro, cost.unit_s / kMicro);
    if (cost.start_s > 0) text += strf(" %.6g", cost.start_s / kMicro);
    profile.costs.push_back(text);
  }
}

Status check_profile(const MachineSheet::Profile& profile) {
  for (const std::string& text : profile.costs) {
    const std::optional<CostLine> line = parse_cost(text);
    if (!line) {
      return Status(Exit::kUsage, "profile.costs: \"" + text +
                                      "\" must be as \"cpu/8:24, attention: 120.5 3.25\", in us");
    }
    const auto& names = profile.devices;
    if (std::find(names.begin(), names.end(), line->device) == names.end()) {
      return Status(Exit::kUsage, "profile.costs: \"" + text +
                                      "\" is of a device that profile.devices does not name");
    }
  }
  if (profile.least_kept >= 0 && profile.most_kept >= 0) return Status();
  return Status(Exit::kUsage, "profile.least_kept and most_kept must not be negative");
}

std::optional<MeasuredCosts> measured_costs(const MachineSheet::Profile& profile,
                                            const std::string& key, const std::string& device) {
  if (profile.model != key) return {};
  MeasuredCosts costs;
  bool any = false;
  for (const std::string& text : profile.costs) {
    const std::optional<CostLine> line = parse_cost(text);
    if (!line || line->device != device) continue;
    costs[static_cast<size_t>(line->kind)] = line->cost;
    any = true;
  }
  if (!any) return {};
  return costs;
}

}  // namespace pagoda
