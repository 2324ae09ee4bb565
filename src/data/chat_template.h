// Finds the chat preset of a checkpoint: looks up its chat_template text among those that presets
// were verified against.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "data/chat_preset.h"
#include "template/template.h"

namespace pagoda {

struct ChatTemplate {
  const ChatPreset* preset = nullptr;
  SpecialTexts special;
  // Why there is no preset, for rows that need one: "MODEL has no chat template".
  std::string missing;
  // The checkpoint's own template where there is no preset for it: it is run.
  std::optional<jinja::Template> program;
  std::string source;  // its text, for the key of the token cache
  jinja::Date today;   // what it is told when it asks for the date
  // The checkpoint has a template that can neither be recognised nor run. Then prompts are not
  // joined plainly either.
  bool unknown = false;

  // The program may ask for the day, so what it renders depends on `today`.
  bool asks_date() const;
};

// `choice`: "auto" (the preset that the model's template is recognised as, else the template is
// run), "run" (it is run in any case), "none" (prompts and answers are joined plainly) or a
// preset's name. Looks at MODEL_DIRECTORY/chat_template.jinja, else chat_template.json, else
// "chat_template" of tokenizer_config.json: a text, or a list of named ones of which "default"
// counts; the special tokens come from there or from special_tokens_map.json. `date`: what a
// template is told when it asks, as in 2026-11-23; empty: today. A template that cannot be run is
// no error here: plain text needs none. kBadData when a file is malformed or the preset ends turns
// with an end-of-text that is not named; kUsage when `choice` or `date` is unknown.
Result<ChatTemplate> find_chat_template(const std::string& model_directory,
                                        const std::string& choice, const std::string& date = "");

// The preset verified against this template text, or nullptr.
const ChatPreset* preset_of_template(const std::string& text);

// The advice for ChatTemplate::missing: the option, and the presets that it takes.
std::string template_hint();

// kUsage unless `choice` or `date` may be given to find_chat_template.
Status check_template_choice(const std::string& choice);
Status check_template_date(const std::string& date);

}  // namespace pagoda
