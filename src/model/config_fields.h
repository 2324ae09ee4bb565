// Reads the fields of a config.json one by one. The first error is kept, so that a parser may read
// on and ask for it at the end. null counts as absent unless Transformers has another meaning for
// it.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "model/json.h"

namespace pagoda {

// The largest accepted size. No model comes near it, and products of any four such sizes can still
// be checked.
inline constexpr int64_t kMaxSize = int64_t{1} << 24;

class ConfigFields {
 public:
  // `object` is not owned. `where` names it in errors.
  ConfigFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool is_absent(const char* key) const { return !object_.contains(key); }
  const Json* find(const char* key) const;  // nullptr: absent or null
  int64_t integer(const char* key, int64_t low, int64_t high);
  int64_t integer_or(const char* key, int64_t fallback, int64_t low, int64_t high);
  double real(const char* key, double low, double high);
  double real_or(const char* key, double fallback, double low, double high);
  bool flag_or(const char* key, bool fallback);
  // Refuses the field unless it is absent or has the one value that is implemented.
  void only(const char* key, const Json& implemented);
  void refuse(const std::string& why);

  static std::string shown(const Json& value);
  const Status& status() const { return status_; }  // kBadData: the first error

 private:
  int64_t in_range(const char* key, const Json& value, int64_t low, int64_t high);

  const Json& object_;
  const std::string where_;
  Status status_;
};

}  // namespace pagoda
