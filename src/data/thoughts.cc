#include "data/thoughts.h"

#include <string_view>

namespace pagoda {

namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

std::string_view without_leading_lines(std::string_view text) {
  const size_t at = text.find_first_not_of('\n');
  return at == std::string_view::npos ? "" : text.substr(at);
}

std::string_view without_trailing_lines(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

}  // namespace

size_t find_last_question(const std::vector<Turn>& turns) {
  for (size_t i = turns.size(); i-- > 0;) {
    const std::string& content = turns[i].content;
    const bool response =
        content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (turns[i].role == Role::kUser && !response) return i;
  }
  return turns.size() - 1;
}

std::string thinking_content(const std::string& content, bool behind_last_question, bool last) {
  std::string_view thought, answer = content;
  if (const size_t close = answer.find(kClose); close != std::string_view::npos) {
    thought = without_trailing_lines(answer.substr(0, close));
    const size_t open = thought.rfind(kOpen);
    if (open != std::string_view::npos) thought.remove_prefix(open + kOpen.size());
    thought = without_leading_lines(thought);
    answer = without_leading_lines(answer.substr(answer.rfind(kClose) + kClose.size()));
  }
  if (!behind_last_question || (!last && thought.empty())) return std::string(answer);
  return std::string(kOpen) + "\n" + std::string(without_trailing_lines(thought)) + "\n" +
         std::string(kClose) + "\n\n" + std::string(without_leading_lines(answer));
}

}  // namespace pagoda
