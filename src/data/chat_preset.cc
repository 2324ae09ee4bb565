#include "data/chat_preset.h"

#include <algorithm>

#include "data/thoughts.h"

namespace pagoda {

namespace {

using TurnFormat = ChatPreset::TurnFormat;
using SystemPlace = ChatPreset::SystemPlace;
using ToolPlace = ChatPreset::ToolPlace;

constexpr TurnFormat kChatMl{"<|im_start|>{role}\n", "", "<|im_end|>", "\n"};
constexpr TurnFormat kToolResponse{"\n<tool_response>\n", "", "\n</tool_response>", ""};
constexpr TurnFormat kTuluAssistant{"<|assistant|>\n", "", "{eos}", "\n"};
constexpr TurnFormat kTuluOther{"<|{role}|>\n", "", "", "\n"};

ChatPreset chat_ml(const char* name, const char* models, const char* default_system) {
  return {name, models, default_system, false, kChatMl, kChatMl, true, SystemPlace::kTurn, false,
          ToolPlace::kTurn, true, false};
}

ChatPreset qwen(const char* name, const char* models, const char* default_system, bool thinking) {
  ChatPreset preset = chat_ml(name, models, default_system);
  preset.tools = ToolPlace::kToolResponse;
  preset.any_role = false;
  preset.thinking = thinking;
  return preset;
}

ChatPreset tulu(const char* name, const char* models, bool begin_of_text, bool after_last) {
  return {name, models, nullptr, begin_of_text, kTuluAssistant, kTuluOther, after_last,
          SystemPlace::kTurn, false, ToolPlace::kNowhere, false, false};
}

ChatPreset mistral(const char* name, const char* models, const TurnFormat& assistant,
                   const TurnFormat& other, SystemPlace system) {
  return {name, models, nullptr, true, assistant, other, true, system, true, ToolPlace::kNowhere,
          false, false};
}

std::string filled(const char* format, const char* role, const SpecialTexts& special) {
  std::string text = format;
  const auto put = [&](const std::string& name, const std::string& value) {
    const size_t at = text.find(name);
    if (at != std::string::npos) text.replace(at, name.size(), value);
  };
  put("{role}", role);
  put("{eos}", special.end_of_text);
  return text;
}

// Writes one conversation.
class Renderer {
 public:
  Renderer(const ChatPreset& preset, const std::vector<Turn>& turns, const SpecialTexts& special)
      : preset_(preset), turns_(turns), special_(special) {}

  Result<RenderedChat> render() {
    RETURN_IF_ERROR(check_order());
    if (preset_.begin_of_text) chat_.text += special_.begin_of_text;
    if (preset_.default_system != nullptr && turns_.front().role != Role::kSystem) {
      write(preset_.other, name_of(Role::kSystem), preset_.default_system, true);
      chat_.turns.clear();
    }
    const size_t last_question = preset_.thinking ? find_last_question(turns_) : 0;
    for (size_t i = 0; i < turns_.size(); ++i) {
      RETURN_IF_ERROR(check_role(i));
      write_turn(i, last_question);
    }
    return std::move(chat_);
  }

 private:
  Status refuse(size_t turn, const std::string& why) const {
    return Status(Exit::kBadData,
                  strf("message %zu (%s): the chat template %s ", turn + 1,
                       name_of(turns_[turn].role), preset_.name) + why);
  }

  // Roles take turns, after a system turn where there may be one.
  Status check_order() const {
    if (!preset_.alternates) return Status();
    const bool system = turns_.front().role == Role::kSystem &&
                        preset_.system == SystemPlace::kInFirstUser;
    for (size_t i = system ? 1 : 0; i < turns_.size(); ++i) {
      const bool user_turn = (i - (system ? 1 : 0)) % 2 == 0;
      const Role expected = user_turn ? Role::kUser : Role::kAssistant;
      if (turns_[i].role == expected) continue;
      return refuse(i, strf("needs user and assistant in turns, and here %s", name_of(expected)));
    }
    if (system && turns_.size() == 1) return refuse(0, "needs a user message behind it");
    return Status();
  }

  Status check_role(size_t i) const {
    const Role role = turns_[i].role;
    const bool named = role == Role::kDeveloper || role == Role::kFunction;
    if ((named && !preset_.any_role) ||
        (role == Role::kTool && preset_.tools == ToolPlace::kNowhere)) {
      return refuse(i, "has no place for this role");
    }
    return Status();
  }

  void write_turn(size_t i, size_t last_question) {
    const Turn& turn = turns_[i];
    const bool last = i + 1 == turns_.size();
    if (turn.role == Role::kSystem && preset_.system == SystemPlace::kInFirstUser) {
      return write_system_in_user(turn);
    }
    if (turn.role == Role::kTool && preset_.tools == ToolPlace::kToolResponse) {
      return write_tool_response(i);
    }
    if (turn.role != Role::kAssistant) {
      // The header of a user turn that a system text has begun is there already.
      const bool begun = i == 1 && turns_[0].role == Role::kSystem &&
                         preset_.system == SystemPlace::kInFirstUser;
      TurnFormat format = preset_.other;
      if (begun) format.before = "";
      return write(format, name_of(turn.role), turn.content, true);
    }
    const std::string content = preset_.thinking
                                    ? thinking_content(turn.content, i > last_question, last)
                                    : turn.content;
    write(preset_.assistant, name_of(turn.role), content, !last || preset_.after_last_assistant);
  }

  void write(const TurnFormat& format, const char* role, const std::string& content, bool after) {
    RenderedTurn turn;
    turn.begin = chat_.text.size();
    chat_.text += filled(format.before, role, special_);
    turn.trained_begin = chat_.text.size();
    chat_.text += format.lead + content + filled(format.end, role, special_);
    turn.trained_end = chat_.text.size();
    if (after) chat_.text += format.after;
    turn.end = chat_.text.size();
    chat_.turns.push_back(turn);
  }

  void write_system_in_user(const Turn& turn) {
    write({preset_.other.before, "", "", "\n\n"}, name_of(Role::kUser), turn.content, true);
  }

  // Tool results behind each other share one user turn.
  void write_tool_response(size_t i) {
    const bool first = i == 0 || turns_[i - 1].role != Role::kTool;
    const bool last = i + 1 == turns_.size() || turns_[i + 1].role != Role::kTool;
    TurnFormat format = kToolResponse;
    const std::string before = std::string(first ? "<|im_start|>user" : "") + format.before;
    format.before = before.c_str();
    if (last) format.after = "<|im_end|>\n";
    write(format, name_of(Role::kUser), turns_[i].content, true);
  }

  const ChatPreset& preset_;
  const std::vector<Turn>& turns_;
  const SpecialTexts& special_;
  RenderedChat chat_;
};

}  // namespace

Result<RenderedChat> ChatPreset::render(const std::vector<Turn>& turns,
                                        const SpecialTexts& special) const {
  CHECK(!turns.empty());
  return Renderer(*this, turns, special).render();
}

bool ChatPreset::needs_end_of_text() const {
  return std::string(assistant.end).find("{eos}") != std::string::npos;
}

std::string ChatPreset::end_of_answer(const SpecialTexts& special) const {
  return filled(assistant.end, name_of(Role::kAssistant), special);
}

const std::vector<ChatPreset>& chat_presets() {
  static const std::vector<ChatPreset> presets = {
      chat_ml("chatml", "ChatML without a default system prompt", nullptr),
      chat_ml("qwen2", "Qwen1.5, Qwen2 and their MoE", "You are a helpful assistant."),
      qwen("qwen2.5", "Qwen2.5",
           "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", false),
      qwen("qwen3", "Qwen3 and Qwen3-MoE, with thinking", nullptr, true),
      qwen("qwen3-2507", "Qwen3 Instruct 2507, without thinking", nullptr, false),
      chat_ml("smollm2", "SmolLM2",
              "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
      mistral("mistral", "Mixtral and Mistral v1, with a system prompt", {"", " ", "{eos}", ""},
              {" [INST] ", "", " [/INST]", ""}, SystemPlace::kInFirstUser),
      mistral("mistral-v0", "the first template of Mixtral and Mistral", {"", "", "{eos}", ""},
              {"[INST] ", "", " [/INST]", ""}, SystemPlace::kNowhere),
      tulu("tulu", "Tulu 3", false, false),
      tulu("olmo2", "OLMo 2 and OLMoE 0125", true, false),
      tulu("olmoe", "OLMoE 0924", true, true),
  };
  return presets;
}

const ChatPreset* find_chat_preset(const std::string& name) {
  for (const ChatPreset& preset : chat_presets()) {
    if (name == preset.name) return &preset;
  }
  return nullptr;
}

std::string chat_preset_names() {
  std::string names;
  for (const ChatPreset& preset : chat_presets()) {
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  }
  return names;
}

}  // namespace pagoda
