#include "tokenizer/json_fields.h"

#include <utility>

#include "base/log.h"
#include "model/json.h"

namespace pagoda {

namespace {

const Json& null_json() {
  static const Json kNull;
  return kNull;
}

}  // namespace

JsonFields::JsonFields(const Json& object, std::string where, Status* error)
    : object_(object), where_(std::move(where)), error_(error) {
  if (!object.is_object()) fail("must be an object");
}

void JsonFields::fail(const std::string& why) {
  if (error_->ok()) *error_ = Status(Exit::kBadData, where_ + ": " + why);
}

bool JsonFields::has(const char* key) const {
  return object_.is_object() && object_.contains(key) && !object_[key].is_null();
}

const Json& JsonFields::any(const char* key) {
  asked_.insert(key);
  return has(key) ? object_[key] : null_json();
}

std::string JsonFields::text(const char* key) {
  const Json& value = any(key);
  if (value.is_string()) return value.get<std::string>();
  fail(strf("\"%s\" must be a text", key));
  return "";
}

std::optional<std::string> JsonFields::text_or_none(const char* key) {
  if (any(key).is_null()) return std::nullopt;
  return text(key);
}

bool JsonFields::boolean(const char* key, bool fallback) {
  const Json& value = any(key);
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_null()) fail(strf("\"%s\" must be true or false", key));
  return fallback;
}

int64_t JsonFields::integer(const char* key, int64_t low, int64_t high) {
  const Json& value = any(key);
  // A number above the largest int64 is unsigned in the tree and would wrap.
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (fits && value.get<int64_t>() >= low && value.get<int64_t>() <= high) {
    return value.get<int64_t>();
  }
  fail(strf("\"%s\" must be a whole number from %lld to %lld", key, (long long)low,
            (long long)high));
  return low;
}

size_t JsonFields::choice(const char* key, std::initializer_list<const char*> allowed) {
  const std::string value = text(key);
  size_t i = 0;
  for (const char* name : allowed) {
    if (value == name) return i;
    ++i;
  }
  fail(strf("\"%s\": \"%s\" is not known to pagoda", key, printable(value).c_str()));
  return 0;
}

void JsonFields::must_be_empty(const char* key) {
  const Json& value = any(key);
  if (!value.is_null() && value != "") {
    fail(strf("\"%s\" is not known to pagoda unless it is empty", key));
  }
}

void JsonFields::refuse_others() {
  if (!object_.is_object()) return;
  for (const auto& [key, value] : object_.items()) {
    if (!asked_.contains(key)) {
      return fail(strf("the field \"%s\" is not known to pagoda", printable(key).c_str()));
    }
  }
}

}  // namespace pagoda
