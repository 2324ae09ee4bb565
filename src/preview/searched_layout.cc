// What a found layout is called, and what its run file has.
#include <cstddef>

#include "base/options.h"
#include "preview/layout_search.h"

namespace pagoda {
namespace {

bool lists_gpus(const RunConfig& config) {
  return names_gpus(parse_devices(config.train.devices).value());
}

}  // namespace

std::vector<std::pair<std::string, std::string>> SearchedLayout::settings() const {
  RunConfig copy = configs.front();
  OptionTable table;
  copy.declare(table);
  std::vector<const char*> keys;
  if (lists_gpus(copy)) keys.push_back("train.devices");
  keys.insert(keys.end(), {"train.micro_batch_tokens", "train.chunks"});
  if (copy.train.shards > 0) keys.push_back("train.shards");
  if (copy.train.expert_shards > 1) keys.push_back("train.expert_shards");
  keys.push_back("parallel.layout");
  if (copy.zebra()) {
    keys.insert(keys.end(), {"parallel.attention_devices", "parallel.offloaded", "parallel.lags"});
    if (!copy.auto_kept_rows()) keys.push_back("parallel.kept_rows");
  }
  if (copy.stages() > 1) keys.insert(keys.end(), {"parallel.stages", "parallel.order"});
  if (copy.stages() > 1 && !copy.auto_stage_layers()) keys.push_back("parallel.stage_layers");
  if (copy.train.expert_shards > 1) keys.push_back("parallel.copies");
  if (copy.parallel.shares == ShareKind::kMeasured) keys.push_back("parallel.shares");
  if (copy.parallel.exchange != ExchangeSetting::kAuto) keys.push_back("parallel.exchange");
  if (!copy.parallel.network_gb_s.empty()) keys.push_back("parallel.network_gb_s");
  std::vector<std::pair<std::string, std::string>> settings;
  for (const char* key : keys) settings.emplace_back(key, table.find(key)->toml());
  return settings;
}

std::string SearchedLayout::text() const {
  std::string text;
  for (const auto& [key, value] : settings()) {
    if (key == "train.devices" || key == "parallel.network_gb_s") continue;
    text += (text.empty() ? "" : ", ") + key + " = " + value;
  }
  return (as_it_is ? "(as it is) " : "") + text;
}

std::string SearchedLayout::section() const {
  std::string text, section;
  for (const auto& [key, value] : settings()) {
    const size_t dot = key.find('.');
    if (key.substr(0, dot) != section) {
      section = key.substr(0, dot);
      text += "[" + section + "]\n";
    }
    text += key.substr(dot + 1) + " = " + value + "\n";
  }
  // Ranks whose machines have other numbers of GPUs.
  for (size_t r = 1; r < configs.size(); ++r) {
    if (configs[r].train.devices == configs.front().train.devices) continue;
    text += strf("[rank.%zu.train]\ndevices = [%s]\n", r,
                 toml_string(configs[r].train.devices.front()).c_str());
  }
  return text;
}

}  // namespace pagoda
