// A configuration as text: its hash, its run file, and what differs from another one's.
#include <xxhash.h>

#include <map>

#include "base/number_text.h"
#include "config/run_config.h"
#include "config/saved_options.h"

namespace pagoda {
std::string RunConfig::hashed_text() const {
  RunConfig copy = *this;
  OptionTable table;
  copy.declare(table);
  std::string text;
  for (const Option& option : table.options()) {
    if (option.affects == Affects::kResults) text += option.key + " = " + option.toml() + "\n";
  }
  return text;
}

uint64_t RunConfig::config_hash() const {
  const std::string text = hashed_text();
  return XXH3_64bits(text.data(), text.size());
}

SumShape RunConfig::saved_sums(const std::string& toml) {
  const SavedOptions options(toml);
  const auto saved = [&](const char* key, int64_t missing) {
    int64_t number = 0;
    return parse_int64(options.value(key), number) ? number : missing;
  };
  return {saved("train.chunks", 1), saved("train.shards", 0), saved("train.expert_shards", 1)};
}

std::string RunConfig::saved_chat_date(const std::string& toml) {
  const std::vector<std::string> dates = SavedOptions(toml).texts("data.chat_date");
  return dates.empty() ? "" : dates.front();
}

// Patterns have no characters that a text of TOML would escape (validate()).
std::vector<std::string> RunConfig::saved_freeze(const std::string& toml) {
  return SavedOptions(toml).texts("train.freeze");
}

std::string RunConfig::difference_from(const std::string& toml) const {
  std::map<std::string, std::string> before = SavedOptions(toml).all();
  RunConfig copy = *this, defaults;
  OptionTable table, default_table;
  copy.declare(table);
  defaults.declare(default_table);
  for (const Option& option : table.options()) {
    const auto [was, is_new] = before.try_emplace(option.key);
    if (is_new) was->second = default_table.find(option.key)->toml();
    if (option.affects != Affects::kResults || was->second == option.toml()) continue;
    return option.key + " is " + option.toml() + ", was " + was->second;
  }
  for (const auto& [key, value] : before) {
    if (table.find(key) == nullptr) return key + " is no option of this build, was " + value;
  }
  return "";
}

std::string RunConfig::to_toml() const {
  RunConfig copy = *this;
  OptionTable table;
  copy.declare(table);
  return "# Every option of a pagoda run; `pagoda train --help` explains them.\n\n" +
         options_toml(table);
}

std::string RunConfig::to_json() const {
  RunConfig copy = *this;
  OptionTable table;
  copy.declare(table);
  std::string text;
  for (const Option& option : table.options()) {
    // The literals of TOML that options have are those of JSON too.
    text += (text.empty() ? "\"" : ", \"") + option.key + "\": " + option.toml();
  }
  return "{" + text + "}";
}

}  // namespace pagoda
