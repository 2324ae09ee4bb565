#include "train/prompts.h"

#include "data/template_chat.h"
#include "tokenizer/end_token.h"

namespace pagoda {
namespace {

// The turn of a user, and that of an assistant up to the text that it has to write.
Result<std::string> chat_text(const std::string& question, const ChatTemplate& chat) {
  if (chat.program) return render_prompt(chat, question);
  if (chat.preset == nullptr) {
    return Status(Exit::kBadData, chat.missing + "; " + template_hint());
  }
  std::vector<Turn> turns(2);
  turns[0].content = question;
  turns[1].role = Role::kAssistant;
  ASSIGN_OR_RETURN(const RenderedChat rendered, chat.preset->render(turns, chat.special));
  return rendered.text.substr(0, rendered.turns[1].trained_begin);
}

Status encode(const std::string& text, const Tokenizer& tokenizer, TokenIds* ids) {
  const Status status = tokenizer.encode(text, ids);
  if (status.ok()) return status;
  return Status(status.code(), "a prompt: " + status.message() +
                                   "; nothing was generated: shorten it, or use another "
                                   "tokenizer.json");
}

}  // namespace

Result<std::vector<TokenIds>> encode_prompts(const std::vector<std::string>& texts,
                                             const Tokenizer& tokenizer,
                                             const ChatTemplate* chat) {
  std::vector<TokenIds> prompts;
  for (const std::string& text : texts) {
    TokenIds ids;
    if (chat != nullptr) {
      ASSIGN_OR_RETURN(const std::string rendered, chat_text(text, *chat));
      RETURN_IF_ERROR(encode(rendered, tokenizer, &ids));
    } else {
      if (tokenizer.begin_of_text()) ids.push_back(*tokenizer.begin_of_text());
      RETURN_IF_ERROR(encode(text, tokenizer, &ids));
    }
    if (text.empty() || ids.empty()) {
      return Status(Exit::kUsage, "a prompt is empty; there is nothing to continue");
    }
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

Result<TokenIds> stop_tokens(const Tokenizer& tokenizer, const HfFolder& folder,
                             const ChatTemplate* chat) {
  ASSIGN_OR_RETURN(TokenIds tokens, end_token_ids(folder.directory(), folder.config().vocab_size));
  tokens.push_back(tokenizer.end_of_text());
  if (chat == nullptr || chat->preset == nullptr) return tokens;
  TokenIds end;
  RETURN_IF_ERROR(tokenizer.encode(chat->preset->end_of_answer(chat->special), &end));
  if (end.size() == 1) tokens.push_back(end.front());
  return tokens;
}

}  // namespace pagoda
