// Parses JSON from files that may be hostile. Size, depth, strings and the number of values are
// bounded; duplicate keys, byte order marks, NUL bytes and invalid UTF-8 are refused; no exception
// leaves. The tree is nlohmann::json; its accessors throw on a wrong type, so test the type before
// get.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/json_type.h"

namespace pagoda {

// The defaults are for the configuration files of a model folder.
struct JsonLimits {
  int64_t max_bytes = int64_t{1} << 24;
  int max_depth = 64;                           // nesting of objects and arrays
  int64_t max_string_bytes = int64_t{1} << 20;  // one string or key, after unescaping
  int64_t max_values = int64_t{1} << 20;        // values of all kinds, about 100 B of memory each
};

// `where` begins the error ("DIR/config.json"), which names the byte offset and is kBadData.
Result<Json> parse_json(std::string_view text, const std::string& where,
                        const JsonLimits& limits = {});

}  // namespace pagoda
