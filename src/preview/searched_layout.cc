// What a found layout is called, and what its run file has.
#include <algorithm>
#include <cstddef>

#include "base/options.h"
#include "preview/layout_search.h"

namespace pagoda {
namespace {

// A setting of a layout, and whether a run file of it has that in any case.
struct LayoutKey {
  const char* key;
  bool listed;
};

std::vector<LayoutKey> layout_keys(const RunConfig& config) {
  const bool zebra = config.zebra(), stages = config.stages() > 1;
  const bool sums_experts = config.train.expert_shards > 1;
  return {{"train.devices", names_gpus(parse_devices(config.train.devices).value())},
          {"train.micro_batch_tokens", true},
          {"train.chunks", true},
          {"train.shards", config.train.shards > 0},
          {"train.expert_shards", sums_experts},
          {"parallel.layout", true},
          {"parallel.attention_devices", zebra},
          {"parallel.offloaded", zebra},
          {"parallel.lags", zebra},
          {"parallel.kept_rows", zebra && !config.auto_kept_rows()},
          {"parallel.stages", zebra || config.parallel.layout == LayoutKind::kPipeline},
          {"parallel.order", stages},
          {"parallel.stage_layers", stages && !config.auto_stage_layers()},
          {"parallel.copies", sums_experts},
          {"parallel.shares", config.parallel.shares == ShareKind::kMeasured},
          {"parallel.exchange", config.parallel.exchange != ExchangeSetting::kAuto},
          {"parallel.network_gb_s", !config.parallel.network_gb_s.empty()}};
}

// [key] of layout_keys() what the run has, as a literal of TOML; "auto" of layouts and of stages is
// what it is in a run of several processes, and without a profile in any.
std::vector<std::string> layout_values(RunConfig config) {
  if (config.parallel.layout == LayoutKind::kAuto) config.parallel.layout = LayoutKind::kExperts;
  if (config.parallel.layout != LayoutKind::kExperts) config.parallel.stages = config.stages();
  OptionTable table;
  config.declare(table);
  std::vector<std::string> values;
  for (const LayoutKey& key : layout_keys(config)) values.push_back(table.find(key.key)->toml());
  return values;
}

}  // namespace

bool same_layout(const RunConfig& a, const RunConfig& b) {
  return layout_values(a) == layout_values(b);
}

std::vector<std::pair<std::string, std::string>> SearchedLayout::settings(
    const RunConfig& own) const {
  const std::vector<LayoutKey> keys = layout_keys(configs.front());
  const std::vector<std::string> found = layout_values(configs.front()),
                                 before = layout_values(own);
  std::vector<std::pair<std::string, std::string>> settings;
  for (size_t k = 0; k < keys.size(); ++k) {
    if (keys[k].listed || found[k] != before[k]) settings.emplace_back(keys[k].key, found[k]);
  }
  return settings;
}

std::string SearchedLayout::text() const {
  std::string text;
  for (const auto& [key, value] : settings(configs.front())) {
    if (key == "train.devices" || key == "parallel.network_gb_s") continue;
    text += (text.empty() ? "" : ", ") + key + " = " + value;
  }
  return (as_it_is ? "(as it is) " : "") + text;
}

std::string SearchedLayout::section(std::span<const RunConfig> own) const {
  if (std::equal(configs.begin(), configs.end(), own.begin(), same_layout)) return "";
  std::string text, section;
  for (const auto& [key, value] : settings(own.front())) {
    const size_t dot = key.find('.');
    if (key.substr(0, dot) != section) {
      section = key.substr(0, dot);
      text += "[" + section + "]\n";
    }
    text += key.substr(dot + 1) + " = " + value + "\n";
  }
  // Settings do not tell which ranks have a section in the run file: where any differ, each gets
  // one.
  const auto same_devices = [](const RunConfig& a, const RunConfig& b) {
    return a.train.devices == b.train.devices;
  };
  const auto are_alike = [&](std::span<const RunConfig> ranks) {
    return std::ranges::all_of(ranks, [&](const auto& c) { return same_devices(c, ranks[0]); });
  };
  if (std::equal(configs.begin(), configs.end(), own.begin(), same_devices)) return text;
  if (are_alike(configs) && are_alike(own)) return text;
  for (size_t r = 0; r < configs.size(); ++r) {
    text += strf("[rank.%zu.train]\ndevices = %s\n", r, layout_values(configs[r])[0].c_str());
  }
  return text;
}

}  // namespace pagoda
