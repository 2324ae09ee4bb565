#include "data/chat_template.h"

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "base/edit_distance.h"
#include "base/file.h"
#include "base/log.h"
#include "model/json.h"
#include "tokenizer/fingerprint.h"

namespace pagoda {

namespace {

constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;

struct VerifiedTemplate {
  const char* hash;  // XXH3-128 of the text without a last line break
  const char* preset;
};

// The texts are in tests/golden/chat, which says where they come from; some are known with line
// breaks in their strings written both ways.
constexpr VerifiedTemplate kVerified[] = {
    {"577a7fce73f72e1ee2be9fd6966bb5eb", "chatml"},
    {"7a128e0473e4be90846f9032c2079ea2", "chatml"},
    {"f0a6a8278439fdb056191e205a440263", "chatml"},
    {"a344e8c84fb0282dda206a9e46a4ac01", "chatml"},
    {"7c4c17cbc95b1d56c79034a9d5f0ae58", "qwen2"},
    {"e580c2da83415028d5d943bd0bd9082f", "qwen2"},
    {"e392aa06018503fd2469c9508f79506e", "qwen2.5"},
    {"0fab82ce8f4d5175c9e0155c80737cf2", "qwen3"},
    {"4457e3d12b367a860283f874ff58d644", "qwen3"},
    {"cc9ddd5a40bc1c0c8fb5d937b1e8f5d0", "qwen3-2507"},
    {"f0323af61a5d6e2383059ddcb62b07a0", "smollm2"},
    {"98f63cc3d421d28f99ab995e9629dacd", "smollm2"},
    {"6aef58edf0d62df9f89cfc57f651ff3d", "mistral"},
    {"320c652895a5887692f19bb87b0f6641", "mistral"},
    {"f395fc5daa794129a5d004210ebce758", "mistral-v0"},
    {"6cba7b6aab644281ae2dc4dd54740a07", "tulu"},
    {"b817851b777472b27b4a2d69f1d91b7c", "tulu"},
    {"ee29b0ef1d76b441766fbeb7a11b3f45", "olmo2"},
    {"2ef1dbbe37b5241f2cf6c80e0c47b498", "olmo2"},
    {"1481e11827e54d342f307808b50a4306", "olmoe"},
    {"1946210c26c73940b894ed5de0a4f7a1", "olmoe"},
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
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, Links::kFollow, limits.max_bytes));
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
  const Status malformed =
      bad(path, "\"chat_template\" is neither a text nor a list of named ones");
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
    const std::string pad = special_text(*object, "pad_token");
    const std::string unknown = special_text(*object, "unk_token");
    if (!pad.empty()) folder.special.padding = pad;
    if (!unknown.empty()) folder.special.unknown = unknown;
    if (!begin.empty()) folder.special.begin_of_text = begin;
    if (!end.empty()) folder.special.end_of_text = end;
  }
  const std::string jinja = directory + "/chat_template.jinja";
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(jinja, error))) {
    ASSIGN_OR_RETURN(folder.template_text,
                     read_text_file(jinja, Links::kFollow, kMaxTemplateBytes));
    return folder;
  }
  ASSIGN_OR_RETURN(const Json own, object_in(directory, "chat_template.json"));
  ASSIGN_OR_RETURN(folder.template_text, template_in(own, directory + "/chat_template.json"));
  if (!folder.template_text.empty()) return folder;
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

bool ChatTemplate::asks_date() const {
  return program && source.find("strftime_now") != std::string::npos;
}

std::string template_hint() {
  return "name one that fits with --data.chat_template (" + chat_preset_names() + ")";
}

Status check_template_choice(const std::string& choice) {
  if (choice == "auto" || choice == "run" || choice == "none" ||
      find_chat_preset(choice) != nullptr)
    return Status();
  std::vector<std::string> names = {"auto", "run", "none"};
  for (const ChatPreset& preset : chat_presets()) names.push_back(preset.name);
  const std::string near = nearest_word(choice, names);
  return Status(Exit::kUsage, "data.chat_template = \"" + printable(choice) +
                                  "\": is not auto, run, none or one of " + chat_preset_names() +
                                  (near.empty() ? "" : "; did you mean \"" + near + "\"?"));
}

Status check_template_date(const std::string& date) {
  if (date.empty() || jinja::Date::parse(date).ok()) return Status();
  return Status(Exit::kUsage,
                "data.chat_date = \"" + printable(date) + "\": is no day as in 2026-11-23");
}

namespace {

jinja::Date day_of(const std::string& date) {
  if (!date.empty()) return jinja::Date::parse(date).take();
  const std::time_t now = std::time(nullptr);
  std::tm day = {};
  localtime_r(&now, &day);
  return {.year = day.tm_year + 1900, .month = day.tm_mon + 1, .day = day.tm_mday};
}

// Makes the template's text a program, or says why it is none.
void take_program(const std::string& directory, const std::string& text, ChatTemplate* found) {
  auto program = jinja::Template::parse(text);
  if (program.ok()) {
    found->program = program.take();
    found->source = text;
    return;
  }
  found->unknown = true;
  found->missing =
      "cannot run the chat template of " + printable(directory) + ": " + program.status().message();
}

}  // namespace

Result<ChatTemplate> find_chat_template(const std::string& model_directory,
                                        const std::string& choice, const std::string& date) {
  RETURN_IF_ERROR(check_template_choice(choice));
  RETURN_IF_ERROR(check_template_date(date));
  ASSIGN_OR_RETURN(Folder folder, read_folder(model_directory));
  ChatTemplate found;
  found.special = std::move(folder.special);
  found.today = day_of(date);
  if (choice == "none") {
    found.missing = "data.chat_template is \"none\"";
    return found;
  }
  if (choice != "auto" && choice != "run") {
    found.preset = find_chat_preset(choice);
  } else if (folder.template_text.empty()) {
    found.missing = printable(model_directory) + " has no chat template";
  } else {
    if (choice == "auto") found.preset = preset_of_template(folder.template_text);
    if (found.preset == nullptr) take_program(model_directory, folder.template_text, &found);
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
