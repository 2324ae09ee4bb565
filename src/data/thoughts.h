// Treats thoughts ("<think>...</think>" at the head of an answer) as Qwen3's template does: they
// stay in the answers behind the last question and are dropped from earlier ones; the last answer
// of all gets an empty thought if it has none.
#pragma once

#include <string>
#include <vector>

#include "data/row.h"

namespace pagoda {

// Index of the last user turn that is not a tool's response; the last turn if there is none.
size_t find_last_question(const std::vector<Turn>& turns);

// An assistant turn's content as it is rendered.
std::string thinking_content(const std::string& content, bool behind_last_question, bool last);

}  // namespace pagoda
