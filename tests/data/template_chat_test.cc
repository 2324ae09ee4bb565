// Chat templates that are run: texts and spans against what Transformers renders with generation
// tags (tests/golden/chat/rendered.json), rows of templates that rewrite earlier messages, tools.
#include "data/template_chat.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/example.h"
#include "data/template_values.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

using Texts = std::vector<std::string>;

ChatTemplate running(const std::string& source) {
  ChatTemplate chat;
  chat.program = jinja::Template::parse(source).value();
  chat.source = source;
  chat.special = {"<s>", "</s>"};
  return chat;
}

struct Asked {
  TrainOn train_on = TrainOn::kAssistant;
  RowKind kind = RowKind::kMessages;
  std::string fields = {};
};

Result<std::vector<TemplateRow>> rows_of(const ChatTemplate& chat, const std::string& source,
                                         const Asked& asked = {}) {
  TemplateOptions options;
  options.fields = RowFields::parse(asked.fields).value();
  options.train_on = asked.train_on;
  options.special_tokens = {"<|im_end|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"};
  ASSIGN_OR_RETURN(const Row row, parse_row(Json::parse(source), asked.kind, options.fields, true));
  std::vector<TemplateRow> rows;
  RETURN_IF_ERROR(render_rows(chat, row, source, options, [&](const TemplateRow& made) {
    rows.push_back(made);
    return Status();
  }));
  return rows;
}

// Each row with its trained parts in brackets, and how many are unended behind it.
std::vector<std::string> marked(const ChatTemplate& chat, const std::string& messages,
                                TrainOn train_on = TrainOn::kAssistant) {
  const auto rows = rows_of(chat, "{\"messages\": " + messages + "}", {.train_on = train_on});
  if (!rows.ok()) return {rows.status().message()};
  std::vector<std::string> all;
  for (const TemplateRow& row : rows.value()) {
    std::string text;
    size_t done = 0;
    for (const TrainedSpan& span : row.spans) {
      text += row.text.substr(done, span.begin - done) + "⟦";
      text += row.text.substr(span.begin, span.end - span.begin) + "⟧";
      done = span.end;
    }
    text += row.text.substr(done);
    all.push_back(row.unended > 0 ? text + strf(" %lld", (long long)row.unended) : text);
  }
  return all;
}

constexpr const char* kTwoRounds =
    R"([{"role":"user","content":"a"},{"role":"assistant","content":"<think>\nx\n</think>\n\nb"},
        {"role":"user","content":"c"},{"role":"assistant","content":"<think>\ny\n</think>\n\nd"}])";

TEST(TemplateChat, TextsAndSpansAreThoseOfTransformers) {
  const OrderedJson golden = OrderedJson::parse(get_file(PAGODA_GOLDEN_DIR "/chat/rendered.json"));
  int whole = 0, in_rows = 0;
  Texts refused;
  for (const auto& [preset, expected] : golden["presets"].items()) {
    ChatTemplate chat = running(expected["templates"][0]);
    chat.special = {expected["bos_token"], expected["eos_token"]};
    for (const auto& [name, want] : expected["rendered"].items()) {
      if (want.contains("refused") || want["spans"].empty()) continue;
      SCOPED_TRACE(preset + ", " + name);
      const OrderedJson& messages = golden["conversations"][name];
      const OrderedJson row = {{"messages", messages}};
      const auto rows = rows_of(chat, row.dump());
      if (!rows.ok()) {  // the last answer itself changes what is before it
        EXPECT_NE(rows.status().message().find("renders neither"), std::string::npos)
            << rows.status().message();
        refused.push_back(preset + ", " + name);
        continue;
      }
      const TemplateRow& last = rows.value().back();
      const bool one = rows.value().size() == 1 && last.text == want["text"];
      // A row that ends with an answer is not what the whole is that goes on behind it.
      if (!one && messages.back()["role"] != "assistant") continue;
      ++(one ? whole : in_rows);
      EXPECT_EQ(last.text, want["text"].get<std::string>());
      EXPECT_EQ(last.unended, 0);
      OrderedJson spans = OrderedJson::array();
      for (const TrainedSpan& span : last.spans) spans.push_back({span.begin, span.end});
      if (one) {
        EXPECT_EQ(spans, want["spans"]);
      } else {
        EXPECT_EQ(spans, OrderedJson::array({want["spans"].back()}));
      }
    }
  }
  EXPECT_EQ(whole, 614);
  EXPECT_EQ(in_rows, 14);
  EXPECT_EQ(refused, (Texts{"qwen3, two answers", "qwen3, three answers with thoughts"}));
}

TEST(TemplateChat, ATemplateThatRewritesMakesARowOfEachAnswer) {
  const ChatTemplate chat = running(get_file(PAGODA_GOLDEN_DIR "/chat/templates/qwen3.jinja"));
  EXPECT_EQ(marked(chat, kTwoRounds),
            (Texts{"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
                   "⟦<think>\nx\n</think>\n\nb<|im_end|>⟧\n",
                   "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
                   "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
                   "⟦<think>\ny\n</think>\n\nd<|im_end|>⟧\n"}));
  EXPECT_EQ(marked(chat, kTwoRounds, TrainOn::kLast).size(), 1u);
}

// The template refuses a prompt behind a tool's result, and writes no header for the answer to it.
TEST(TemplateChat, AnAnswerWithoutPromptAndHeaderBeginsBehindTheMessages) {
  const ChatTemplate chat = running(
      "{% set ns = namespace(tool=false) %}{% for m in messages %}"
      "{% if m.role == 'assistant' and not ns.tool %}assistant:{% endif %}"
      "{% if m.role != 'assistant' %}{{ m.role }}:{% endif %}{{ m.content }}<|end|>"
      "{% set ns.tool = m.role == 'tool' %}{% endfor %}"
      "{% if add_generation_prompt %}{% if ns.tool %}{{ raise_exception('no') }}{% endif %}"
      "assistant:{% endif %}");
  EXPECT_EQ(marked(chat, R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                             {"role":"tool","content":"c"},{"role":"assistant","content":"d"}])"),
            Texts{"user:a<|end|>assistant:⟦b<|end|>⟧tool:c<|end|>⟦d<|end|>⟧"});
}

// The first message has nothing before it, whatever was rendered to find that it is rewritten.
TEST(TemplateChat, ARowOfTheFirstMessageBeginsWithIt) {
  const ChatTemplate chat = running(
      "{% for m in messages %}{{ m.role }}:{{ m.content | upper if m.role == 'assistant' and not "
      "loop.last else m.content }}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}");
  EXPECT_EQ(marked(chat, R"([{"role":"assistant","content":"a"},{"role":"user","content":"b"},
                             {"role":"assistant","content":"c"}])"),
            (Texts{"assistant:⟦a<|end|>⟧", "assistant:A<|end|>user:b<|end|>assistant:⟦c<|end|>⟧"}));
}

constexpr const char* kRound =
    R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])";
constexpr const char* kThree = R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
    {"role":"user","content":"c"},{"role":"assistant","content":"d","train":false},
    {"role":"user","content":"e"},{"role":"assistant","content":"f"}])";

TEST(TemplateChat, GenerationBlocksWin) {
  const ChatTemplate chat = running(
      "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}{% endgeneration %};{% else %}{{ m.content }};{% endif %}{% endfor %}");
  EXPECT_EQ(marked(chat, kRound), Texts{"user:a;assistant:⟦b⟧; 1"});
  EXPECT_EQ(marked(chat, kThree), Texts{"user:a;assistant:⟦b⟧;user:c;assistant:d;user:e;"
                                        "assistant:⟦f⟧; 2"});
  EXPECT_EQ(marked(chat, kThree, TrainOn::kLast),
            Texts{"user:a;assistant:b;user:c;assistant:d;user:e;assistant:⟦f⟧; 1"});
}

TEST(TemplateChat, AnAnswerMayHaveSeveralBlocksAndNoneOfItIsAnotherOnes) {
  // Thoughts are marked beside the content, and nothing is where an answer is not the last one.
  const ChatTemplate chat = running(
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% elif loop.last %}"
      "[{% generation %}t{% endgeneration %}]{% generation %}{{ m.content }}<|end|>"
      "{% endgeneration %}{% else %}[]{{ m.content }}<|end|>{% endif %}{% endfor %}");
  EXPECT_EQ(marked(chat, kRound), Texts{"a[⟦t⟧]⟦b<|end|>⟧"});
  EXPECT_EQ(marked(chat, kThree),
            (Texts{"a[⟦t⟧]⟦b<|end|>⟧", "a[]b<|end|>c[]d<|end|>e[⟦t⟧]⟦f<|end|>⟧"}))
      << "it rewrites earlier messages";
  const ChatTemplate first = running(
      "{% for m in messages %}{% if m.role == 'assistant' and loop.index == 2 %}{% generation %}"
      "{{ m.content }}<|end|>{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}"
      "{% endfor %}");
  EXPECT_EQ(marked(first, kThree), Texts{"a<|end|>⟦b<|end|>⟧c<|end|>d<|end|>e<|end|>⟦f<|end|>⟧"})
      << "one without a block is what is new";
}

TEST(TemplateChat, AUserWhoIsNotTrainedIsNotWhereAllIs) {
  const ChatTemplate chat = running(
      "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}<|end|>{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}");
  EXPECT_EQ(marked(chat,
                   R"([{"role":"user","content":"a","train":false},
                       {"role":"assistant","content":"b"}])",
                   TrainOn::kAll),
            Texts{"user:a;⟦assistant:b<|end|>⟧"});
  EXPECT_EQ(marked(chat, kRound, TrainOn::kAll), Texts{"⟦user:a;assistant:b<|end|>⟧"});
  const ChatTemplate rewriting = running(get_file(PAGODA_GOLDEN_DIR "/chat/templates/qwen3.jinja"));
  EXPECT_EQ(marked(rewriting, kTwoRounds, TrainOn::kAll).size(), 1u);
  EXPECT_NE(marked(rewriting,
                   R"([{"role":"user","content":"a"},
                       {"role":"assistant","content":"<think>\nx\n</think>\n\nb","train":false},
                       {"role":"user","content":"c"},{"role":"assistant","content":"d"}])",
                   TrainOn::kAll)[0]
                .find("message 2 (assistant): the template rewrites"),
            std::string::npos);
}

// GLM-4, Apertus and others write the token that ends a turn only with the next message.
constexpr const char* kEndsWithTheNext =
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.thinking and loop.index0 > ns.last %}({{ m.thinking }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.name }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

TEST(TemplateChat, TheEndOfATurnIsTrained) {
  const ChatTemplate chat = running(kEndsWithTheNext);
  EXPECT_EQ(marked(chat, kThree),
            Texts{"<|user|>a<|assistant|>⟦b<|user|>⟧c<|assistant|>d<|user|>e<|assistant|>"
                  "⟦f<|user|>⟧"});
  EXPECT_EQ(marked(chat, R"([{"role":"user","content":"a"},
                             {"role":"assistant","content":"b \n","weight":0.5},
                             {"role":"user","content":"c"}])"),
            Texts{"<|user|>a<|assistant|>⟦b \n<|user|>⟧c"});
  EXPECT_EQ(marked(chat, kRound, TrainOn::kAll), Texts{"⟦<|user|>a<|assistant|>b<|user|>⟧"});
  EXPECT_EQ(marked(chat, R"([{"role":"user","content":"a"},
                             {"role":"assistant","content":"","tool_calls":[{"name":"f"}]}])"),
            Texts{"<|user|>a<|assistant|>⟦f<|tool|>⟧"});
  EXPECT_EQ(marked(chat, R"([{"role":"user","content":"a"},
                             {"role":"assistant","content":"b","thinking":"t"}])"),
            Texts{"<|user|>a<|assistant|>⟦(t)b<|user|>⟧"})
      << "with a next message the thoughts would be gone";
  EXPECT_EQ(
      marked(
          running("{% for m in messages %}{% if not loop.first %}{{ '\\n<|end|>\\n' }}{% endif %}"
                  "{{ m.role }}:{{ m.content }}{% endfor %}"),
          kRound),
      Texts{"user:a⟦\n<|end|>\nassistant:b\n<|end|>⟧"})
      << "white space before the token is written too";
  EXPECT_EQ(
      marked(running("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"), kThree),
      Texts{"user: a\n⟦assistant: b⟧\nuser: c\nassistant: d\nuser: e\n⟦assistant: f⟧\n 2"});
  EXPECT_EQ(
      marked(running("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"), kRound),
      Texts{"a</s>⟦b</s>⟧"})
      << "end-of-text ends a turn too";
}

TEST(TemplateChat, PartsOfAContentAreOneText) {
  const ChatTemplate chat = running("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}");
  EXPECT_EQ(marked(chat, R"([{"role":"user","content":[{"type":"text","text":"a"},
                              {"type":"text","text":"b"}]},{"role":"assistant","content":"c"}])"),
            Texts{"ab<|end|>⟦c<|end|>⟧"});
}

TEST(TemplateChat, TheKindOfARowSaysWhereARoleIs) {
  const ChatTemplate chat = running(
      "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.from }}"
      "<|end|>{% endfor %}");
  const auto rows = rows_of(chat, R"({"conversations":[{"role":"user","content":"a","from":"x"},
                                      {"role":"assistant","content":"b"}]})",
                            {.fields = "messages=conversations"});
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_EQ(rows.value()[0].text, "userax<|end|>assistantb<|end|>");
  const auto named = rows_of(chat, R"({"conversations":[{"from":"human","value":"a","role":"x"},
                                       {"from":"gpt","value":"b"}]})",
                             {.kind = RowKind::kConversations});
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ(named.value()[0].text, "usera<|end|>assistantb<|end|>");
}

TEST(TemplateChat, WhatTheTemplatePassesOverIsRefused) {
  const ChatTemplate chat = running(get_file(PAGODA_GOLDEN_DIR "/chat/templates/chatml.jinja"));
  for (const char* field : {"tool_calls", "function_call", "reasoning_content", "thinking"}) {
    const std::string row =
        strf(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","%s":"x"},
                 {"role":"user","content":"c"},{"role":"assistant","content":"d"}])",
             field);
    EXPECT_EQ(marked(chat, row)[0],
              strf("message 2 (assistant): has \"%s\", which the chat template does not render; "
                   "write it into the content as the model should see it",
                   field));
  }
  const std::string row = R"({"tools":[{"name":"f"}],"messages":)" + std::string(kRound) + "}";
  EXPECT_TRUE(rows_of(chat, row).status().message().starts_with("has \"tools\", which the chat "));
  EXPECT_TRUE(rows_of(chat, R"({"tools":[],"messages":)" + std::string(kRound) + "}").ok());
  EXPECT_EQ(marked(chat, R"([{"role":"user","content":"a"},{"role":"assistant","content":"b",
                              "tool_calls":[],"thinking":""}])")
                .size(),
            1u)
      << "they say nothing";
  const ChatTemplate parts = running(
      "{% for m in messages %}{{ m.role }}:{% if m.content[0].text %}{% endif %}{% for p in "
      "m.content %}"
      "{{ p.text }}{% endfor %}"
      "<|end|>{% endfor %}");
  EXPECT_EQ(marked(parts, kRound)[0],
            "message 2 (assistant): has \"content\", which the chat template does not render as a "
            "text");
  // Qwen3 drops the thoughts of earlier rounds, which is meant.
  const ChatTemplate qwen = running(get_file(PAGODA_GOLDEN_DIR "/chat/templates/qwen3.jinja"));
  const Texts rows = marked(qwen, R"([{"role":"user","content":"a"},
      {"role":"assistant","content":"b","reasoning_content":"x"},
      {"role":"user","content":"c"},{"role":"assistant","content":"d"}])",
                            TrainOn::kLast);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].find("x\n"), std::string::npos) << rows[0];
}

TEST(TemplateChat, BeginningsThatAreNotTrainedMayBeRefusedOrEmpty) {
  // The system's text is written with the first user's; a conversation must not end with a user.
  const ChatTemplate chat = running(
      "{% if messages[-1].role == 'user' and not add_generation_prompt %}"
      "{{ raise_exception('no answer') }}{% endif %}{% for m in messages %}"
      "{% if m.role != 'system' %}{% if loop.index0 == 1 and messages[0].role == 'system' %}"
      "{{ messages[0].content }};{% endif %}{{ m.role }}:{{ m.content }}<|end|>{% endif %}"
      "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
  EXPECT_EQ(marked(chat, R"([{"role":"system","content":"s"},{"role":"user","content":"a"},
                             {"role":"assistant","content":"b"},{"role":"user","content":"c"},
                             {"role":"assistant","content":"d"}])"),
            Texts{"s;user:a<|end|>assistant:⟦b<|end|>⟧user:c<|end|>assistant:⟦d<|end|>⟧"});
}

TEST(TemplateChat, AConversationHasBoundsOfItsOwn) {
  // Half of the steps of a rendering, so that each would pass by itself.
  const ChatTemplate chat = running(
      "{% set x = 'aaaaaaaaaaaaaaaa' * 1000000 %}{% for i in range(20) %}{% if 'b' in x %}{% endif "
      "%}{% endfor %}"
      "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}");
  std::string messages = kRound;
  EXPECT_EQ(marked(chat, messages), Texts{"a<|end|>⟦b<|end|>⟧"});
  messages.pop_back();
  for (int i = 0; i < 20; ++i) {
    messages += R"(,{"role":"user","content":"a"},{"role":"assistant","content":"b"})";
  }
  EXPECT_EQ(marked(chat, messages + "]")[0],
            "message 14 (assistant): the chat template takes more than 100000000 steps, or makes "
            "more than 4294967296 bytes, for this conversation of 42 messages");
}

TEST(TemplateChat, AThousandMessagesAreWithinTheBounds) {
  const ChatTemplate chat = running(get_file(PAGODA_GOLDEN_DIR "/chat/templates/chatml.jinja"));
  std::string messages;
  for (size_t i = 0; i < kMaxTemplateMessages / 2; ++i) {
    messages += strf(R"(,{"role":"user","content":"%s"},{"role":"assistant","content":"%s"})",
                     std::string(200, 'a').c_str(), std::string(400, 'b').c_str());
  }
  messages[0] = '[';
  const Texts rows = marked(chat, messages + "]");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_TRUE(rows[0].ends_with("⟧\n")) << rows[0].substr(0, 300);
  EXPECT_EQ(marked(chat, messages + R"(,{"role":"user","content":"a"}])")[0],
            "has more than 1000 messages, which is too many for a template that is run");
}

TEST(TemplateChat, RowsAreHandedOverOneAtATime) {
  const ChatTemplate chat = running(get_file(PAGODA_GOLDEN_DIR "/chat/templates/qwen3.jinja"));
  const std::string source = "{\"messages\":" + std::string(kTwoRounds) + "}";
  const TemplateOptions options;
  const Row row = parse_row(Json::parse(source), RowKind::kMessages, RowFields(), true).value();
  int seen = 0;
  const Status status = render_rows(chat, row, source, options, [&](const TemplateRow&) {
    ++seen;
    return Status(Exit::kBadData, "enough");
  });
  EXPECT_EQ(status.message(), "enough");
  EXPECT_EQ(seen, 1);
}

TEST(TemplateChat, ToolsAndCallsReachTheTemplate) {
  const ChatTemplate chat = running(
      "{{ tools|tojson }}{% for m in messages %}[{{ m.role }}|{{ m.content }}"
      "{% for c in m.tool_calls or [] %}{{ c.function.arguments.q }}{% endfor %}"
      "{{ m.reasoning_content }}{{ m.tool_call_id }}{{ m.train }}]{% endfor %}");
  const auto rows =
      rows_of(chat, R"({"tools":[{"z":1,"a":2}],"messages":[{"role":"user","content":"u"},
               {"role":"assistant","reasoning_content":"r","train":true,"tool_calls":[
                {"function":{"name":"f","arguments":"{\"q\": 7}"}}]},
               {"role":"tool","content":"t","tool_call_id":"i"}]})");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_EQ(rows.value()[0].text, R"([{"z": 1, "a": 2}][user|u][assistant|7r][tool|ti])");
}

TEST(TemplateChat, WhatCannotBeSplitIsRefusedWithItsMessage) {
  const ChatTemplate chat = running("{{ messages|length }}{{ messages[-1].content }}");
  EXPECT_NE(marked(chat, kTwoRounds)[0].find("message 2 (assistant): the chat template renders "
                                             "neither"),
            std::string::npos)
      << marked(chat, kTwoRounds)[0];
  EXPECT_EQ(marked(running("{# #}"), kTwoRounds)[0], "the chat template renders nothing");
  EXPECT_EQ(marked(running("{% for m in messages %}{% if not loop.first %}{{ m.content }}<|end|>"
                           "{% endif %}{% endfor %}"),
                   R"([{"role":"assistant","content":" "},{"role":"assistant","content":"b"}])")[0],
            "message 1 (assistant): the chat template renders nothing up to it");
  const ChatTemplate raising = running("a\n{{ raise_exception('no') }}");
  EXPECT_EQ(marked(raising, kTwoRounds)[0],
            "the chat template, for the first 4 messages, line 2: the template refuses: no");
}

TEST(TemplateChat, PromptsOfAUser) {
  const ChatTemplate chat = running(get_file(PAGODA_GOLDEN_DIR "/chat/templates/qwen3.jinja"));
  EXPECT_EQ(render_prompt(chat, "hi").value(),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(TemplateChat, IsFoundWhereNoPresetIs) {
  const TempDir dir;
  put_file(dir.file("chat_template.jinja"), "{{ messages[0].content }}");
  const auto found = find_chat_template(dir.path(), "auto", "2024-02-29");
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found.value().program.has_value());
  EXPECT_EQ(found.value().today.day, 29);
  EXPECT_FALSE(find_chat_template(dir.path(), "auto", "2023-02-29").ok());
  put_file(dir.file("chat_template.jinja"), "a\n{% zz %}");
  const auto broken = find_chat_template(dir.path(), "auto");
  ASSERT_TRUE(broken.ok());
  EXPECT_TRUE(broken.value().unknown);
  EXPECT_EQ(broken.value().missing.find("cannot run the chat template of "), 0u);
  EXPECT_NE(broken.value().missing.find(": line 2: the tag \"zz\" is not known here"),
            std::string::npos)
      << broken.value().missing;
}

}  // namespace
}  // namespace pagoda
