// A JSON object read field by field, strictly: a field that is missing, of another kind, or that
// nobody asked for is an error that names it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>

#include "base/status.h"
#include "model/json_type.h"

namespace pagoda {

// The object outlives its reader. The first error is kept; after it the functions return fallbacks,
// and the reading may go on. One thread.
class JsonFields {
 public:
  // `where` names the object in messages: "DIR/tokenizer.json: model". Errors go to `*error`.
  JsonFields(const Json& object, std::string where, Status* error);
  JsonFields(Json&& object, std::string where, Status* error) = delete;

  const std::string& where() const { return where_; }
  bool has(const char* key) const;  // it is there and not null
  // The field as it is; null when it is missing.
  const Json& any(const char* key);
  std::string text(const char* key);                         // required
  std::optional<std::string> text_or_none(const char* key);  // missing or null: none
  bool boolean(const char* key, bool fallback);
  int64_t integer(const char* key, int64_t low, int64_t high);  // required
  // A required text that is one of `allowed`; returns its index.
  size_t choice(const char* key, std::initializer_list<const char*> allowed);
  // A field that may be missing, null or empty (""), and nothing else.
  void must_be_empty(const char* key);
  // Fields that change nothing here.
  void ignore(std::initializer_list<const char*> keys) { asked_.insert(keys.begin(), keys.end()); }
  // Refuses the fields that nobody asked for.
  void refuse_others();

  void fail(const std::string& why);

 private:
  const Json& object_;
  const std::string where_;
  Status* error_;
  std::set<std::string> asked_;
};

}  // namespace pagoda
