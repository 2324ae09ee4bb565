#include "tokenizer/end_token.h"

#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "model/json.h"

namespace pagoda {

namespace {

// One field of a JSON file; null when the file or the field is missing.
Result<Json> field_of_file(const std::string& path, const char* key) {
  // A link that leads nowhere is no missing file.
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return Json();
  ASSIGN_OR_RETURN(const std::string text,
                   read_text_file(path, Links::kFollow, JsonLimits().max_bytes));
  ASSIGN_OR_RETURN(Json root, parse_json(text, path));
  if (!root.is_object()) return Status(Exit::kBadData, printable(path) + ": must be a JSON object");
  return root.contains(key) ? std::move(root[key]) : Json();
}

Status no_token(const std::string& path, const char* key, const Json& value) {
  return Status(Exit::kBadData,
                strf("%s: \"%s\" is %s, which is no token", printable(path).c_str(), key,
                     printable(value.dump(-1, ' ', true)).c_str()));
}

}  // namespace

Result<std::vector<uint32_t>> end_token_ids(const std::string& directory, int64_t vocab_size) {
  std::vector<uint32_t> ids;
  for (const char* name : {"/generation_config.json", "/config.json"}) {
    ASSIGN_OR_RETURN(const Json field, field_of_file(directory + name, "eos_token_id"));
    if (field.is_null()) continue;
    for (const Json& id : field.is_array() ? field : Json::array({field})) {
      const bool known = id.is_number_unsigned() && id.get<uint64_t>() < uint64_t(vocab_size);
      if (!known) return no_token(directory + name, "eos_token_id", field);
      ids.push_back(id.get<uint32_t>());
    }
  }
  return ids;
}

Result<uint32_t> end_token(const std::string& directory, const std::vector<AddedToken>& added,
                           int64_t vocab_size,
                           const std::function<std::optional<uint32_t>(const std::string&)>& find) {
  const std::string config = directory + "/tokenizer_config.json";
  ASSIGN_OR_RETURN(Json token, field_of_file(config, "eos_token"));
  if (token.is_object() && token.contains("content")) token = Json(token["content"]);
  if (!token.is_null()) {
    const auto id = token.is_string() ? find(token.get<std::string>()) : std::nullopt;
    return id ? Result<uint32_t>(*id) : no_token(config, "eos_token", token);
  }
  ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, end_token_ids(directory, vocab_size));
  if (!ids.empty()) return ids.front();
  const AddedToken* only = nullptr;
  int num_special = 0;
  for (const AddedToken& candidate : added) {
    if (candidate.special) only = &candidate, ++num_special;
  }
  if (num_special == 1) return only->id;
  return Status(Exit::kBadData,
                printable(config) + ": no file says which token ends a text; add \"eos_token\"");
}

}  // namespace pagoda
