// A configuration as text: its hash, its run file, and what differs from another one's.
#include <xxhash.h>

#include <map>
#include <sstream>

#include "base/number_text.h"
#include "config/run_config.h"

namespace pagoda {
namespace {

// The values of a text that to_toml() made, as they stand there, by key.
std::map<std::string, std::string> values_of(const std::string& toml) {
  std::map<std::string, std::string> values;
  std::istringstream lines(toml);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find(" = ");
    if (line.starts_with("[")) section = line.substr(1, line.size() - 2);
    if (equals != std::string::npos) {
      values[section + "." + line.substr(0, equals)] = line.substr(equals + 3);
    }
  }
  return values;
}

}  // namespace

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
  std::map<std::string, std::string> values = values_of(toml);
  const auto saved = [&](const char* key, int64_t missing) {
    int64_t number = 0;
    return parse_int64(values[key], number) ? number : missing;
  };
  return {saved("train.chunks", 1), saved("train.shards", 0), saved("train.expert_shards", 1)};
}

std::string RunConfig::saved_chat_date(const std::string& toml) {
  const std::string quoted = values_of(toml)["data.chat_date"];
  return quoted.size() < 2 ? "" : quoted.substr(1, quoted.size() - 2);
}

// Patterns have no characters that a text of TOML would escape (validate()).
std::vector<std::string> RunConfig::saved_freeze(const std::string& toml) {
  std::vector<std::string> patterns;
  std::istringstream parts(values_of(toml)["train.freeze"]);
  std::string between, pattern;
  while (std::getline(parts, between, '"') && std::getline(parts, pattern, '"')) {
    patterns.push_back(pattern);
  }
  return patterns;
}

std::string RunConfig::difference_from(const std::string& toml) const {
  std::map<std::string, std::string> before = values_of(toml);
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
