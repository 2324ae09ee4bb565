// Conversations as a chat template that is run writes them.
//
// For each trained message the template is rendered with the messages up to it, with those before
// it, and with those and a generation prompt: an answer is what the first has behind the others.
// Where the template has {% generation %} blocks for the message, these say it instead. Where what
// it renders with all messages does not begin so, because it rewrites earlier ones (it drops their
// thoughts), each trained message becomes the end of a row of its own.
//
// A model has to learn to stop. Where the answer does not end in a special token, the one that the
// template writes next belongs to it; for the last message that is what it would write next.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "data/chat_template.h"
#include "data/loss_mask.h"
#include "data/row.h"

namespace pagoda {

// The template is rendered several times for each message of a conversation, all of them within
// these bounds; each rendering has its own too (template/budget.h).
inline constexpr size_t kMaxTemplateMessages = 1000;
inline constexpr jinja::Bounds kConversationBounds = {.steps = 100'000'000,
                                                      .made_bytes = int64_t{4} << 30};

// A conversation, or its beginning.
struct TemplateRow {
  std::string text;
  std::vector<TrainedSpan> spans;  // as trained_spans() gives; they may overlap
  int64_t unended = 0;             // trained messages that end in no special token
};

struct TemplateOptions {
  RowFields fields;
  TrainOn train_on = TrainOn::kAssistant;
  std::vector<std::string> special_tokens;  // Tokenizer::special_tokens()
};

// Hands over the rows of a conversation, one at a time. `source` is the row's text, from which
// `row` was parsed with `for_template`. Its messages go to the template with all their fields but
// "train" and "weight"; arguments of tool calls and tools that are texts become what they spell.
// kBadData, naming the message and the template's line: the template refuses, it passes over a
// field that row.h leaves to templates, or no part of its rendering is the trained message. The
// first error of `visit` ends it too. REQUIRES: chat.program.
Status render_rows(const ChatTemplate& chat, const Row& row, std::string_view source,
                   const TemplateOptions& options,
                   const std::function<Status(const TemplateRow&)>& visit);

// A user's turn up to where the answer begins. REQUIRES: chat.program.
Result<std::string> render_prompt(const ChatTemplate& chat, const std::string& question);

}  // namespace pagoda
