#include "data/chat_template.h"

#include <algorithm>
#include <filesystem>

#include "base/edit_distance.h"
#include "base/file.h"
#include "base/log.h"
#include "data/fingerprint.h"
#include "model/json.h"

namespace pagoda {

namespace {

constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;

struct VerifiedTemplate {
  const char* hash;  // XXH3-128 of the text without a last line break
  const char* preset;
};

// Made and verified by tools/make_chat_goldens.py, which holds the texts.
constexpr VerifiedTemplate kVerified[] = {
    {"", "chatml"},
};

Status bad(const std::string& path, const std::string& why) {
  return Status(Exit::kBadData, printable(path) + ": " + why);
}

// The object in DIRECTORY/NAME, or an empty one when there is no such file.
Result<Json> object_in(const std::string& directory, const char* name) {
  const std::string path = directory + "/" + name;
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    return Json(Json::object());
  }
  const JsonLimits limits;
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, Links::kRefuse, limits.max_bytes));
  ASSIGN_OR_RETURN(Json root, parse_json(text, path, limits));
  if (!root.is_object()) return bad(path, "is not a JSON object");
  return root;
}

// A special token is written as a text or as {"content": text}.
std::string special_text(const Json& object, const char* name) {
  auto found = object.find(name);
  if (found == object.end()) return "";
  if (found->is_object()) {
    const auto content = found->find("content");
    return content != found->end() && content->is_string() ? content->get<std::string>() : "";
  }
  return found->is_string() ? found->get<std::string>() : "";
}

// "chat_template" of tokenizer_config.json, or "".
Result<std::string> template_in(const Json& config, const std::string& path) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  const Status malformed = bad(path, "\"chat_template\" is neither a text nor a list of named ones");
  if (!found->is_array()) return malformed;
  for (const Json& named : *found) {
    if (!named.is_object()) return malformed;
    const auto name = named.find("name"), text = named.find("template");
    if (name == named.end() || text == named.end() || !text->is_string()) return malformed;
    if (*name == "default") return text->get<std::string>();
  }
  return std::string();
}

struct Folder {
  std::string template_text;  // "": none
  SpecialTexts special;
};

Result<Folder> read_folder(const std::string& directory) {
  Folder folder;
  ASSIGN_OR_RETURN(const Json config, object_in(directory, "tokenizer_config.json"));
  ASSIGN_OR_RETURN(const Json map, object_in(directory, "special_tokens_map.json"));
  for (const Json* object : {&map, &config}) {
    const std::string begin = special_text(*object, "bos_token");
    const std::string end = special_text(*object, "eos_token");
    if (!begin.empty()) folder.special.begin_of_text = begin;
    if (!end.empty()) folder.special.end_of_text = end;
  }
  const std::string jinja = directory + "/chat_template.jinja";
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(jinja, error))) {
    ASSIGN_OR_RETURN(folder.template_text,
                     read_text_file(jinja, Links::kRefuse, kMaxTemplateBytes));
    return folder;
  }
  ASSIGN_OR_RETURN(folder.template_text, template_in(config, directory + "/tokenizer_config.json"));
  return folder;
}

}  // namespace

const ChatPreset* preset_of_template(const std::string& text) {
  Fingerprint hash;
  // Jinja drops one line break at the end of a template.
  const size_t bytes = text.size() - (text.ends_with('\n') ? 1 : 0);
  hash.add(text.data(), static_cast<int64_t>(bytes));
  const std::string hex = hash.hex();
  for (const VerifiedTemplate& verified : kVerified) {
    if (hex == verified.hash) return find_chat_preset(verified.preset);
  }
  return nullptr;
}

Status check_template_choice(const std::string& choice) {
  if (choice == "auto" || choice == "none" || find_chat_preset(choice) != nullptr) return Status();
  std::vector<std::string> names = {"auto", "none"};
  for (const ChatPreset& preset : chat_presets()) names.push_back(preset.name);
  const std::string near = nearest_word(choice, names);
  return Status(Exit::kUsage, "data.chat_template = \"" + printable(choice) +
                                  "\": is not auto, none or one of " + chat_preset_names() +
                                  (near.empty() ? "" : "; did you mean \"" + near + "\"?"));
}

Result<ChatTemplate> find_chat_template(const std::string& model_directory,
                                        const std::string& choice) {
  RETURN_IF_ERROR(check_template_choice(choice));
  ASSIGN_OR_RETURN(Folder folder, read_folder(model_directory));
  const std::string hint = "name one with --data.chat_template (" + chat_preset_names() + ")";
  ChatTemplate found;
  found.special = std::move(folder.special);
  if (choice == "none") {
    found.missing = "data.chat_template is \"none\"; " + hint;
    return found;
  }
  if (choice != "auto") {
    found.preset = find_chat_preset(choice);
  } else if (folder.template_text.empty()) {
    found.missing = printable(model_directory) + " has no chat template; " + hint;
  } else {
    found.preset = preset_of_template(folder.template_text);
    found.unknown = found.preset == nullptr;
    if (found.unknown) {
      found.missing = printable(model_directory) +
                      " has a chat template that no preset was verified against; if one fits, " +
                      hint;
    }
  }
  if (found.preset != nullptr && found.preset->needs_end_of_text() &&
      found.special.end_of_text.empty()) {
    return bad(model_directory + "/tokenizer_config.json",
               strf("names no eos_token, with which the chat template %s ends turns",
                    found.preset->name));
  }
  return found;
}

}  // namespace pagoda
