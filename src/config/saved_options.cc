#include "config/saved_options.h"

#include <sstream>

namespace pagoda {

SavedOptions::SavedOptions(const std::string& toml) {
  std::istringstream lines(toml);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find(" = ");
    if (line.starts_with("[")) section = line.substr(1, line.size() - 2);
    if (equals != std::string::npos) {
      values_[section + "." + line.substr(0, equals)] = line.substr(equals + 3);
    }
  }
}

std::string SavedOptions::value(const std::string& key) const {
  const auto found = values_.find(key);
  return found != values_.end() ? found->second : "";
}

std::vector<std::string> SavedOptions::texts(const std::string& key) const {
  std::vector<std::string> texts;
  std::istringstream parts(value(key));
  std::string between, text;
  while (std::getline(parts, between, '"') && std::getline(parts, text, '"')) {
    texts.push_back(text);
  }
  return texts;
}

}  // namespace pagoda
