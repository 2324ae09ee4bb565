// How Qwen3's template treats thoughts, "<think>...</think>" at the head of an answer: they stay in
// the answers behind the last question and are dropped from the earlier ones; the last answer of
// all gets an empty thought where it has none.
#pragma once

#include <string>
#include <vector>

#include "data/row.h"

namespace pagoda {

// Index of the last user turn that is not a tool's response; the last turn where there is none.
size_t find_last_question(const std::vector<Turn>& turns);

// An assistant turn's content as it is rendered.
std::string thinking_content(const std::string& content, bool behind_last_question, bool last);

}  // namespace pagoda
