#include "data/template_chat.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "data/template_messages.h"
#include "template/lexer.h"

namespace pagoda {

namespace {

using jinja::Rendered;
using jinja::Value;

Status bad_chat(std::string why) { return Status(Exit::kBadData, std::move(why)); }

size_t common_bytes(const std::string& a, const std::string& b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto bytes = static_cast<size_t>(end - a.begin());
  while (bytes > 0 && bytes < b.size() && (static_cast<unsigned char>(b[bytes]) & 0xC0) == 0x80) {
    --bytes;
  }
  return bytes;
}

Value plain_message(Role role) {
  return Value::dict({{Value("role"), Value(name_of(role))}, {Value("content"), Value("x")}});
}

// The message without a field, or with another content.
Value changed(const Value& message, std::string_view field) {
  jinja::Pairs pairs = message.dict()->pairs;
  std::erase_if(pairs, [&](const auto& pair) { return *pair.first.text() == field; });
  if (field == "content") {
    const std::string& text = *message.dict()->find(std::string(field))->text();
    pairs.emplace_back(Value("content"), Value(text + "x"));
  }
  return Value::dict(std::move(pairs));
}

// A message as the end of what the template renders up to it.
struct Answer {
  std::string text;  // up to and with the message
  std::vector<TrainedSpan> spans;
  bool marked = false;  // by {% generation %} blocks
};

class ConversationRenderer {
 public:
  ConversationRenderer(const ChatTemplate& chat, const Row& row, const OrderedJson& json,
                       const TemplateOptions& options)
      : chat_(chat), turns_(row.turns), options_(options), special_(options.special_tokens) {
    if (!chat.special.end_of_text.empty()) special_.push_back(chat.special.end_of_text);
    messages_ = template_messages(row, json, options.fields);
    tools_ = template_tools(json, options.fields);
  }

  Status rows(const std::function<Status(const TemplateRow&)>& visit) {
    if (turns_.size() > kMaxTemplateMessages) {
      return bad_chat(
          strf("has more than %zu messages, which is too many for a template that is run",
               kMaxTemplateMessages));
    }
    ASSIGN_OR_RETURN(whole_, render(turns_.size(), false));
    if (whole_.text.empty()) return bad_chat("the chat template renders nothing");
    RETURN_IF_ERROR(check_fields());
    TemplateRow row{whole_.text, {}};
    if (options_.train_on == TrainOn::kAll) {
      RETURN_IF_ERROR(train_all(&row));
    } else {
      ASSIGN_OR_RETURN(const bool one, add_answers(&row));
      if (!one) return rows_of_answers(visit);
    }
    RETURN_IF_ERROR(check_left());
    return visit(row);
  }

  Result<Rendered> render(size_t count, bool prompt) {
    const auto end = messages_.begin() + static_cast<std::ptrdiff_t>(count);
    return render({messages_.begin(), end}, prompt);
  }

 private:
  Result<Rendered> render(std::vector<Value> messages, bool prompt) {
    const SpecialTexts& special = chat_.special;
    const size_t count = messages.size();
    jinja::Variables variables = {{"messages", Value::list(std::move(messages))},
                                  {"tools", tools_},
                                  {"documents", Value(jinja::None{})},
                                  {"add_generation_prompt", Value(prompt)}};
    const std::pair<const char*, const std::string&> tokens[] = {
        {"bos_token", special.begin_of_text},
        {"eos_token", special.end_of_text},
        {"pad_token", special.padding},
        {"unk_token", special.unknown}};
    for (const auto& [name, text] : tokens) {
      if (!text.empty()) variables.emplace_back(name, Value(text));
    }
    auto rendered = chat_.program->render(variables, chat_.today, &left_);
    if (rendered.ok()) return rendered;
    RETURN_IF_ERROR(check_left());
    return bad_chat(strf("the chat template, for the first %zu messages, ", count) +
                    rendered.status().message());
  }

  // An error of a rendering may be passed over, but not one of the conversation's bounds.
  Status check_left() const {
    if (left_.steps > 0 && left_.made_bytes > 0) return Status();
    return bad_chat(
        strf("the chat template takes more than %lld steps, or makes more than %lld bytes, "
             "for this conversation of %zu messages",
             (long long)kConversationBounds.steps, (long long)kConversationBounds.made_bytes,
             turns_.size()));
  }

  bool trained(size_t i) const { return is_trained(turns_, i, options_.train_on); }

  Status refuse(size_t i, const std::string& why) const {
    return bad_chat(strf("message %zu (%s): ", i + 1, name_of(turns_[i].role)) + why);
  }

  static std::string not_rendered(const char* field) {
    return strf("has \"%s\", which the chat template does not render%s", field,
                std::string_view(field) == "content"
                    ? " as a text"
                    : "; write it into the content as the model should see it");
  }

  // A field that the template passes over would be missing without a word.
  Status check_fields() {
    if (!tools_.is_none()) {
      const Value tools = std::exchange(tools_, Value(jinja::None{}));
      const auto less = render(turns_.size(), false);
      tools_ = tools;
      if (less.ok() && less.value().text == whole_.text) return bad_chat(not_rendered("tools"));
    }
    bool asked = false;  // whether texts are rendered, and not lists of parts only
    for (size_t i = 0; i < turns_.size(); ++i) {
      std::vector<const char*> fields = turns_[i].template_only;
      if (!asked && trained(i) && !jinja::stripped(turns_[i].content, true, true).empty()) {
        fields.push_back("content");
        asked = true;
      }
      RETURN_IF_ERROR(check_fields(i, fields));
    }
    return check_left();
  }

  Status check_fields(size_t i, const std::vector<const char*>& fields) {
    if (fields.empty()) return Status();
    // Later messages may make the template drop a field, which is meant.
    auto more = render(i + 1, false);
    const size_t count = more.ok() ? i + 1 : turns_.size();
    const std::string& text = more.ok() ? more->text : whole_.text;
    for (const char* field : fields) {
      std::vector<Value> messages(messages_.begin(),
                                  messages_.begin() + static_cast<std::ptrdiff_t>(count));
      messages[i] = changed(messages[i], field);
      const auto less = render(std::move(messages), false);
      if (less.ok() && less.value().text == text) return refuse(i, not_rendered(field));
    }
    return Status();
  }

  // The whole is one text, in which only other weights need the places of messages.
  Status train_all(TemplateRow* row) {
    bool alike = true;
    for (size_t i = 0; i < turns_.size(); ++i) {
      alike = alike && trained(i) && turns_[i].weight == turns_[0].weight;
    }
    RenderedChat places{whole_.text, {}};
    size_t begin = 0;
    for (size_t i = 0; !alike && i < turns_.size(); ++i) {
      auto beginning = render(i + 1, false);
      if (!beginning.ok()) return refuse(i, beginning.status().message());
      const std::string& text = beginning->text;
      if (text.size() <= begin || !whole_.text.starts_with(text)) {
        return refuse(i,
                      "the template rewrites it or earlier messages, so data.train_on = \"all\" "
                      "has no place for what is not trained");
      }
      places.turns.push_back({begin, begin, text.size(), text.size()});
      begin = text.size();
    }
    row->spans = alike ? std::vector<TrainedSpan>{{0, whole_.text.size(), turns_[0].weight}}
                       : trained_spans(turns_, places, TrainOn::kAll);
    const size_t last = turns_.size() - 1;
    if (turns_[last].role == Role::kAssistant && trained(last)) end_answer(last, {}, row);
    return Status();
  }

  // False: it rewrites earlier messages.
  Result<bool> add_answers(TemplateRow* row) {
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (!trained(i)) continue;
      ASSIGN_OR_RETURN(const Answer answer, answer_at(i));
      if (!whole_.text.starts_with(answer.text)) return false;
      add_answer(i, answer, row);
    }
    return true;
  }

  Status rows_of_answers(const std::function<Status(const TemplateRow&)>& visit) {
    before_ = {};
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (!trained(i)) continue;
      ASSIGN_OR_RETURN(const Answer answer, answer_at(i));
      TemplateRow row{answer.text, {}};
      add_answer(i, answer, &row);
      RETURN_IF_ERROR(check_left());
      RETURN_IF_ERROR(visit(row));
    }
    return Status();
  }

  Result<Answer> answer_at(size_t i) {
    auto with = render(i + 1, false);
    if (!with.ok()) return refuse(i, with.status().message());
    if (with->text.empty()) return refuse(i, "the chat template renders nothing up to it");
    // A template may refuse to end before the message, or render nothing then.
    if (i > 0) {
      if (auto before = render(i, false); before.ok() && !before->text.empty()) {
        before_ = before.take();
      }
    }
    Answer answer{with->text, {}, false};
    const bool begun = answer.text.starts_with(before_.text);
    answer.marked = begun && turns_[i].role == Role::kAssistant && take_marks(*with, &answer);
    if (!answer.marked) RETURN_IF_ERROR(take_difference(i, begun, &answer));
    for (TrainedSpan& span : answer.spans) span.weight = turns_[i].weight;
    before_ = with.take();
    return answer;
  }

  // The blocks that the message adds to those before it; false: there are none.
  bool take_marks(const Rendered& with, Answer* answer) const {
    const auto& old = before_.generated;
    const auto& all = with.generated;
    if (all.size() <= old.size() || !std::equal(old.begin(), old.end(), all.begin())) return false;
    for (size_t at = old.size(); at < all.size(); ++at) {
      answer->spans.push_back({all[at].first, all[at].second, 0});
    }
    return true;
  }

  Status take_difference(size_t i, bool begun, Answer* answer) {
    const std::string& text = answer->text;
    std::string prompt;
    if (i > 0) {
      if (auto asked = render(i, true); asked.ok()) prompt = std::move(asked->text);
    }
    const bool prompted = !prompt.empty() && text.starts_with(prompt);
    if (!prompted && (!begun || (i > 0 && before_.text.empty()))) {
      return refuse(i,
                    "the chat template renders neither the messages before it nor its "
                    "generation prompt as the beginning of what it renders with it");
    }
    size_t begin = std::max(common_bytes(prompt, text), common_bytes(before_.text, text));
    if (!prompted) begin = std::max(begin, behind_header(text, before_.text.size()));
    // White space behind the token that ends the turn is not the model's.
    const size_t bytes = jinja::stripped(text.substr(begin), false, true).size();
    answer->spans.push_back({begin, begin + bytes, 0});
    return Status();
  }

  // Templates may have no generation prompt for no messages or behind an answer: that behind a
  // user's message serves. 0: it is not there.
  size_t behind_header(const std::string& text, size_t begin) {
    if (!header_) {
      header_ = "";
      const auto asked = render({plain_message(Role::kUser)}, false);
      const auto prompted = render({plain_message(Role::kUser)}, true);
      if (asked.ok() && prompted.ok() && prompted.value().text.starts_with(asked.value().text)) {
        header_ = prompted.value().text.substr(asked.value().text.size());
      }
    }
    const size_t found = text.find(*header_, begin);
    return found == std::string::npos ? 0 : found + header_->size();
  }

  void add_answer(size_t i, const Answer& answer, TemplateRow* row) {
    row->spans.insert(row->spans.end(), answer.spans.begin(), answer.spans.end());
    if (answer.marked) {
      row->unended += ends_in_token(*row) ? 0 : 1;
    } else {
      end_answer(i, answer.text.size(), row);
    }
  }

  // Whether the last span ends in a special token, white space behind it aside.
  bool ends_in_token(const TemplateRow& row) const {
    const TrainedSpan& span = row.spans.back();
    const std::string written =
        jinja::stripped(row.text.substr(span.begin, span.end - span.begin), false, true);
    return std::any_of(special_.begin(), special_.end(),
                       [&](const std::string& token) { return written.ends_with(token); });
  }

  // The longest special token there with the white space before it, which has to be written too; ""
  // where there is none.
  std::string token_at(const std::string& text, size_t at) const {
    const size_t begin = std::min(text.find_first_not_of(" \t\r\n", at), text.size());
    size_t bytes = 0;
    for (const std::string& token : special_) {
      const bool there = text.compare(begin, token.size(), token) == 0;
      if (there) bytes = std::max(bytes, token.size());
    }
    return bytes == 0 ? "" : text.substr(at, begin + bytes - at);
  }

  // Makes the last span, of message i, end in a special token. `end`: of the message in the text;
  // none: it is the last one.
  void end_answer(size_t i, std::optional<size_t> end, TemplateRow* row) {
    if (row->spans.empty() || ends_in_token(*row)) return;
    const size_t at = end.value_or(row->text.size());
    std::string token = token_at(row->text, at);
    if (token.empty() && at == row->text.size()) {
      token = token_behind(i, row->text);
      row->text += token;
    }
    if (token.empty()) {
      ++row->unended;
    } else {
      row->spans.back().end = at + token.size();
    }
  }

  // The special token that the template writes behind message i, with which `text` ends, when the
  // conversation goes on; "": none.
  std::string token_behind(size_t i, const std::string& text) {
    const Value* calls = messages_[i].dict()->find(std::string("tool_calls"));
    const bool called = calls != nullptr && calls->truthy();
    std::vector<Value> messages(messages_.begin(),
                                messages_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    messages.push_back(plain_message(called ? Role::kTool : Role::kUser));
    const auto longer = render(std::move(messages), false);
    if (longer.ok() && longer.value().text.starts_with(text)) {
      return token_at(longer.value().text, text.size());
    }
    // The template drops thoughts then: the end of an answer without any serves.
    return called ? "" : plain_end();
  }

  const std::string& plain_end() {
    if (plain_end_) return *plain_end_;
    plain_end_ = "";
    std::vector<Value> messages = {plain_message(Role::kUser), plain_message(Role::kAssistant)};
    const auto shorter = render(messages, false);
    messages.push_back(plain_message(Role::kUser));
    const auto longer = render(std::move(messages), false);
    if (shorter.ok() && longer.ok() && longer.value().text.starts_with(shorter.value().text)) {
      plain_end_ = token_at(longer.value().text, shorter.value().text.size());
    }
    return *plain_end_;
  }

  const ChatTemplate& chat_;
  const std::vector<Turn>& turns_;
  const TemplateOptions& options_;
  std::vector<std::string> special_;
  std::vector<Value> messages_;
  Value tools_;
  jinja::Bounds left_ = kConversationBounds;
  Rendered whole_;
  Rendered before_;  // the longest beginning known that ends before the message at hand
  std::optional<std::string> header_, plain_end_;
};

}  // namespace

Status render_rows(const ChatTemplate& chat, const Row& row, std::string_view source,
                   const TemplateOptions& options,
                   const std::function<Status(const TemplateRow&)>& visit) {
  // It was parsed before, with the bounds of model/json.h.
  const OrderedJson ordered = OrderedJson::parse(source);
  return ConversationRenderer(chat, row, ordered, options).rows(visit);
}

Result<std::string> render_prompt(const ChatTemplate& chat, const std::string& question) {
  Row row;
  row.turns.resize(1);
  row.turns[0].content = question;
  const TemplateOptions options;
  ConversationRenderer renderer(chat, row, OrderedJson::object(), options);
  ASSIGN_OR_RETURN(Rendered rendered, renderer.render(1, true));
  return std::move(rendered.text);
}

}  // namespace pagoda
