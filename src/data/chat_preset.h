// Chat presets are the templates of known model families written natively, so that the origin of
// every byte of a rendered conversation is known. Each renders what the family's Jinja template
// renders (checked against Transformers by tests/golden/chat), for conversations without tools.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/row.h"

namespace pagoda {

// Byte ranges of one turn in the rendered text, begin <= trained_begin <= trained_end <= end. The
// turns cover the text but for begin-of-text and a default system prompt at its beginning.
// [trained_begin, trained_end) is the part that a model has to write when it is asked for this
// turn: everything from the generation prompt up to and with the token that ends the turn, but not
// a line break behind that token.
struct RenderedTurn {
  size_t begin, trained_begin, trained_end, end;
};

struct RenderedChat {
  std::string text;
  std::vector<RenderedTurn> turns;  // one for each turn of the conversation
};

// The texts of the tokenizer's special tokens; empty if it has none.
struct SpecialTexts {
  std::string begin_of_text, end_of_text;
  std::string padding = {}, unknown = {};  // for templates that are run
};

class ChatPreset {
 public:
  // The parts a turn is made of; "{role}" and "{eos}" are replaced.
  struct TurnFormat {
    const char* before;  // the header
    const char* lead;    // written by the model ahead of the content
    const char* end;     // the token that ends the turn
    const char* after;
  };
  enum class SystemPlace : uint8_t { kTurn, kInFirstUser, kNowhere };
  enum class ToolPlace : uint8_t { kTurn, kToolResponse, kNowhere };

  const char* name;
  const char* models;  // models that have this template, for the help
  const char* default_system;  // the system turn of a conversation without one; nullptr: none
  bool begin_of_text;
  TurnFormat assistant, other;
  bool after_last_assistant;  // whether `after` also stands behind an assistant turn at the end
  SystemPlace system;         // kTurn: anywhere; kInFirstUser: first, then roles must alternate
  bool alternates;            // user, assistant, user, ...; begins with user
  ToolPlace tools;
  bool any_role;   // developer and function turns are written with their role's name
  bool thinking;   // Qwen3: thoughts are dropped from answers before the last question

  // kBadData, without naming a place: a role that the template does not have, or roles out of
  // order.
  Result<RenderedChat> render(const std::vector<Turn>& turns, const SpecialTexts& special) const;
  bool needs_end_of_text() const;
  // The text that ends an answer; with most tokenizers it is one token.
  std::string end_of_answer(const SpecialTexts& special) const;
};

const std::vector<ChatPreset>& chat_presets();
const ChatPreset* find_chat_preset(const std::string& name);  // nullptr: none
std::string chat_preset_names();                              // "chatml, qwen2, ..."

}  // namespace pagoda
