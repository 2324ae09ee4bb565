// Reads back single options of a text that RunConfig::to_toml() made, as checkpoints and folders of
// runs keep it, whatever build made it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace pagoda {

class SavedOptions {
 public:
  explicit SavedOptions(const std::string& toml);

  // The value of a key as it stands there, "3" or "[\"a\"]"; "" if the text has none.
  std::string value(const std::string& key) const;
  // The texts of a list or the one of a string. REQUIRES: none has a quote in it.
  std::vector<std::string> texts(const std::string& key) const;
  const std::map<std::string, std::string>& all() const { return values_; }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace pagoda
