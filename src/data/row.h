// Reads rows of training data in their usual spellings:
//   text           {"text": T}
//   messages       {"messages": [{"role": R, "content": T}, ...]}; `name` and `id` are ignored, and
//                  a content may be a list of parts {"type": "text", "text": T}, read as one text
//   conversations  {"conversations": [{"from": R, "value": T}, ...]} (ShareGPT)
//   instruction    {"instruction": T, "input": T, "output": T} (Alpaca; "input" may be missing)
//   prompt         {"prompt": P, "completion": P}; P is a text, or a list of messages
//   question       {"question": T, "answer": T}
//   tokens         {"input_ids": [...], "labels": [...]} (data/token_row.h)
// All but texts may have a "system" text (empty: none) in place of a system message; instruction
// and question also the "history" before them, a list of [T, T], user and assistant. Other fields
// are ignored, but not tools, tool calls and thoughts, which only a template that is run renders.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/json_type.h"

namespace pagoda {

enum class RowKind : uint8_t {
  kAuto,  // in options: the kind of the file's first row
  kText,
  kMessages,
  kConversations,
  kInstruction,
  kPrompt,
  kQuestion,
  kTokens,
};
const char* name_of(RowKind kind);

// The names of a row's fields in the data.
enum class RowField : uint8_t {
  kText,
  kMessages,
  kRole,
  kContent,
  kConversations,
  kFrom,
  kValue,
  kTrain,
  kWeight,
  kInstruction,
  kInput,
  kOutput,
  kPrompt,
  kCompletion,
  kQuestion,
  kAnswer,
  kSystem,
  kHistory,
  kTools,
  kInputIds,
  kLabels,
  kMask,
  kAttentionMask,
};
inline constexpr size_t kRowFields = 23;

class RowFields {
 public:
  RowFields();  // every field by its own name
  // "prompt=q,completion=a": our name, then the data's. kUsage names the unknown or repeated one.
  static Result<RowFields> parse(const std::string& mapping);
  // Fields that are not named as we name them, and the first ones in any case: what a cache of
  // tokens depends on. Those that came later are left out, so that older caches hold.
  std::string key() const;
  const std::string& operator[](RowField field) const { return names_[static_cast<size_t>(field)]; }

 private:
  std::array<std::string, kRowFields> names_;
};

enum class Role : uint8_t { kSystem, kDeveloper, kUser, kAssistant, kTool, kFunction };
const char* name_of(Role role);

struct Turn {
  Role role = Role::kUser;
  std::string content;
  bool given = false;  // part of a "prompt": it is context, whoever speaks
  std::optional<bool> train;  // "train" of the message; without it train_on decides
  float weight = 1.0f;        // "weight" of the message: how much it counts where it is trained
  // The message is element `index` of this field of the row; empty: it is made of texts.
  std::string list;
  size_t index = 0;
  // Its fields that say something and that only a template which is run renders.
  std::vector<const char*> template_only;
};

struct Row {
  RowKind kind = RowKind::kText;
  std::string text;         // kText
  std::vector<Turn> turns;  // the others
  // Joins the turns' contents if there is no chat template; nullptr: the row needs a template.
  const char* separator = nullptr;
  bool for_template = false;  // tools, tool calls and thoughts are not refused
};

// The kind of a row by the fields it has, the first in the order messages, conversations, prompt,
// instruction, question, tokens, text; kAuto: none.
RowKind kind_of(const Json& row, const RowFields& fields);

// Reads a row as a `kind` (not kAuto, kTokens). With `for_template` tools, tool calls and thoughts
// stay in the row, for a template that is run, and a message with them needs no content. The error,
// kBadData, says what is wrong without the place: no such field, an unknown role, no turns, two
// systems, a part of a content that is no text, tools, "train" that is not a boolean, a "weight"
// outside [0, 1000].
Result<Row> parse_row(const Json& row, RowKind kind, const RowFields& fields,
                      bool for_template = false);

}  // namespace pagoda
