// Finds the chat preset of a checkpoint: looks up its chat_template text among those that presets
// were verified against.
#pragma once

#include <string>

#include "base/status.h"
#include "data/chat_preset.h"

namespace pagoda {

struct ChatTemplate {
  const ChatPreset* preset = nullptr;
  SpecialTexts special;
  // Why there is no preset, for rows that need one: "MODEL has no chat template".
  std::string missing;
  // The checkpoint has a template that no preset was verified against. Then prompts are not joined
  // plainly either.
  bool unknown = false;
};

// `choice`: "auto", "none" (prompts and answers are joined plainly) or a preset's name. Looks at
// MODEL_DIRECTORY/chat_template.jinja, else "chat_template" of tokenizer_config.json: a text, or a
// list of named ones of which "default" counts; bos_token and eos_token come from there or from
// special_tokens_map.json. An unknown template is no error here: plain text needs none. kBadData
// when a file is malformed or the preset ends turns with an end-of-text that is not named; kUsage
// when `choice` is unknown.
Result<ChatTemplate> find_chat_template(const std::string& model_directory,
                                        const std::string& choice);

// The preset verified against this template text, or nullptr.
const ChatPreset* preset_of_template(const std::string& text);

// The advice for ChatTemplate::missing: the option, and the presets that it takes.
std::string template_hint();

// kUsage unless `choice` may be given to find_chat_template.
Status check_template_choice(const std::string& choice);

}  // namespace pagoda
