#include "model/config_fields.h"

#include <cmath>

#include "base/log.h"

namespace pagoda {

const Json* ConfigFields::find(const char* key) const {
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

int64_t ConfigFields::integer(const char* key, int64_t low, int64_t high) {
  const Json* value = find(key);
  if (value == nullptr) {
    refuse(strf("\"%s\" is missing", key));
    return low;
  }
  return in_range(key, *value, low, high);
}

int64_t ConfigFields::integer_or(const char* key, int64_t fallback, int64_t low, int64_t high) {
  const Json* value = find(key);
  return value == nullptr ? fallback : in_range(key, *value, low, high);
}

double ConfigFields::real(const char* key, double low, double high) {
  if (find(key) == nullptr) refuse(strf("\"%s\" is missing", key));
  return real_or(key, low, low, high);
}

double ConfigFields::real_or(const char* key, double fallback, double low, double high) {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  const double real = value->is_number() ? value->get<double>() : std::nan("");
  if (real >= low && real <= high) return real;
  refuse(strf("\"%s\" is %s; it must be a number from %g to %g", key, shown(*value).c_str(), low,
              high));
  return low;
}

bool ConfigFields::flag_or(const char* key, bool fallback) {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  refuse(strf("\"%s\" is %s; it must be true or false", key, shown(*value).c_str()));
  return fallback;
}

void ConfigFields::only(const char* key, const Json& implemented) {
  const Json* value = find(key);
  if (value != nullptr && *value != implemented) {
    refuse(strf("\"%s\" is %s; only %s is implemented", key, shown(*value).c_str(),
                shown(implemented).c_str()));
  }
}

void ConfigFields::refuse(const std::string& why) {
  if (status_.ok()) status_ = Status(Exit::kBadData, printable(where_) + ": " + why);
}

std::string ConfigFields::shown(const Json& value) {
  return printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 60);
}

int64_t ConfigFields::in_range(const char* key, const Json& value, int64_t low, int64_t high) {
  // An unsigned value beyond int64 turns negative here and is refused as well.
  const int64_t integer = value.is_number_integer() ? value.get<int64_t>() : low - 1;
  if (integer >= low && integer <= high) return integer;
  refuse(strf("\"%s\" is %s; it must be an integer from %lld to %lld", key, shown(value).c_str(),
              (long long)low, (long long)high));
  return low;
}

}  // namespace pagoda
