// Chat presets against what Transformers renders with the families' own templates
// (tests/golden/chat), against conversations marked by hand, and the choice of a preset.
#include <gtest/gtest.h>

#include <filesystem>

#include "data/chat_template.h"
#include "data/loss_mask.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tokenizer/fingerprint.h"

namespace pagoda {
namespace {

const Json& golden() {
  static const Json root = parse_json(get_file(PAGODA_GOLDEN_DIR "/chat/rendered.json"),
                                      "rendered.json", {.max_bytes = int64_t{1} << 26})
                               .value();
  return root;
}

std::vector<Turn> turns_of(const Json& messages) {
  const auto row = parse_row(Json{{"messages", messages}}, RowKind::kMessages, RowFields());
  CHECK(row.ok(), "%s", row.status().message().c_str());
  return row.value().turns;
}

std::string hash_of(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  Fingerprint hash;
  hash.add(text.data(), static_cast<int64_t>(text.size()));
  return hash.hex();
}

// The rendered text with the trained spans in brackets that no test uses otherwise.
std::string marked(const ChatPreset& preset, const std::vector<Turn>& turns,
                   const SpecialTexts& special, TrainOn train_on) {
  const auto chat = preset.render(turns, special);
  if (!chat.ok()) return "refused: " + chat.status().message();
  std::string text;
  size_t done = 0;
  for (const TrainedSpan& span : trained_spans(turns, chat.value(), train_on)) {
    text += chat.value().text.substr(done, span.begin - done) + "⟦";
    text += chat.value().text.substr(span.begin, span.end - span.begin);
    text += span.weight == 1.0f ? "⟧" : strf("⟧*%g", span.weight);
    done = span.end;
  }
  return text + chat.value().text.substr(done);
}

TEST(Chat, RendersWhatTransformersRenders) {
  int rendered = 0, refused = 0;
  EXPECT_EQ(golden()["presets"].size(), chat_presets().size()) << "a preset without goldens";
  for (const auto& [name, expected] : golden()["presets"].items()) {
    const ChatPreset* preset = find_chat_preset(name);
    ASSERT_NE(preset, nullptr) << name;
    const SpecialTexts special{expected["bos_token"], expected["eos_token"]};
    for (const auto& [conversation, want] : expected["rendered"].items()) {
      SCOPED_TRACE(name + ", " + conversation);
      const std::vector<Turn> turns = turns_of(golden()["conversations"][conversation]);
      const auto chat = preset->render(turns, special);
      EXPECT_EQ(chat.ok(), !want.contains("refused")) << chat.status().message();
      ++(chat.ok() ? rendered : refused);
      if (!chat.ok() || want.contains("refused")) continue;
      EXPECT_EQ(chat.value().text, want["text"].get<std::string>());
      Json spans = Json::array();
      for (size_t i = 0; i < turns.size(); ++i) {
        const RenderedTurn& turn = chat.value().turns[i];
        if (turns[i].role == Role::kAssistant) {
          spans.push_back({turn.trained_begin, turn.trained_end});
        }
      }
      EXPECT_EQ(spans, want["spans"]);
    }
  }
  EXPECT_GT(rendered, 600);
  EXPECT_GT(refused, 50);
}

TEST(Chat, TurnsCoverTheText) {
  for (const ChatPreset& preset : chat_presets()) {
    const std::vector<Turn> turns =
        turns_of(golden()["conversations"]["three rounds with system"]);
    const auto chat = preset.render(turns, {"<s>", "</s>"});
    if (!chat.ok()) continue;
    ASSERT_EQ(chat.value().turns.size(), turns.size()) << preset.name;
    size_t at = chat.value().turns.front().begin;
    for (size_t i = 0; i < turns.size(); ++i) {
      const RenderedTurn& turn = chat.value().turns[i];
      EXPECT_EQ(turn.begin, at) << preset.name << " turn " << i;
      EXPECT_LE(turn.begin, turn.trained_begin);
      EXPECT_LE(turn.trained_begin, turn.trained_end);
      EXPECT_LE(turn.trained_end, turn.end);
      at = turn.end;
    }
    EXPECT_EQ(at, chat.value().text.size()) << preset.name;
  }
}

TEST(Chat, EveryVerifiedTemplateIsRecognised) {
  for (const auto& [name, expected] : golden()["presets"].items()) {
    for (const Json& text : expected["templates"]) {
      const ChatPreset* preset = preset_of_template(text);
      EXPECT_TRUE(preset != nullptr && preset->name == name)
          << "kVerified needs:    {\"" << hash_of(text) << "\", \"" << name << "\"},";
      EXPECT_EQ(preset_of_template(text.get<std::string>() + " "), nullptr);
    }
  }
}

// Marked by hand: what a model asked for the turn has to write.
TEST(Chat, SpansMarkedByHand) {
  const SpecialTexts special{"<s>", "</s>"};
  const std::vector<Turn> turns = turns_of(Json::parse(
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
          {"role":"user","content":"c"},{"role":"assistant","content":"d"}])"));
  const std::pair<const char*, const char*> expected[] = {
      {"chatml",
       "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>⟧\n"
       "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n⟦d<|im_end|>⟧\n"},
      {"qwen2",
       "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
       "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>⟧\n"
       "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n⟦d<|im_end|>⟧\n"},
      {"qwen2.5",
       "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
       "<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>⟧\n"
       "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n⟦d<|im_end|>⟧\n"},
      {"qwen3",
       "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>⟧\n"
       "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
       "⟦<think>\n\n</think>\n\nd<|im_end|>⟧\n"},
      {"qwen3-2507",
       "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>⟧\n"
       "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n⟦d<|im_end|>⟧\n"},
      {"smollm2",
       "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
       "<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>⟧\n"
       "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n⟦d<|im_end|>⟧\n"},
      {"mistral", "<s> [INST] a [/INST]⟦ b</s>⟧ [INST] c [/INST]⟦ d</s>⟧"},
      {"mistral-v0", "<s>[INST] a [/INST]⟦b</s>⟧[INST] c [/INST]⟦d</s>⟧"},
      {"tulu", "<|user|>\na\n<|assistant|>\n⟦b</s>⟧\n<|user|>\nc\n<|assistant|>\n⟦d</s>⟧"},
      {"olmo2", "<s><|user|>\na\n<|assistant|>\n⟦b</s>⟧\n<|user|>\nc\n<|assistant|>\n⟦d</s>⟧"},
      {"olmoe",
       "<s><|user|>\na\n<|assistant|>\n⟦b</s>⟧\n<|user|>\nc\n<|assistant|>\n⟦d</s>⟧\n"},
  };
  EXPECT_EQ(std::size(expected), chat_presets().size());
  for (const auto& [name, text] : expected) {
    EXPECT_EQ(marked(*find_chat_preset(name), turns, special, TrainOn::kAssistant), text) << name;
  }
}

TEST(Chat, TrainOnAndMarksOfMessages) {
  const ChatPreset& chatml = *find_chat_preset("chatml");
  const ChatPreset& mistral = *find_chat_preset("mistral");
  const auto turns = [](const char* marks_of_a, const char* marks_of_b, const char* marks_of_d) {
    return turns_of(Json::parse(
        strf(R"([{"role":"system","content":"s"},{"role":"user","content":"a"%s},
                 {"role":"assistant","content":"b"%s},{"role":"user","content":"c"},
                 {"role":"assistant","content":"d"%s}])",
             marks_of_a, marks_of_b, marks_of_d)));
  };
  const auto show = [&](const ChatPreset& preset, const std::vector<Turn>& t, TrainOn on) {
    return marked(preset, t, {"<s>", "</s>"}, on);
  };
  EXPECT_EQ(show(mistral, turns("", "", ""), TrainOn::kLast),
            "<s> [INST] s\n\na [/INST] b</s> [INST] c [/INST]⟦ d</s>⟧");
  EXPECT_EQ(show(mistral, turns("", "", ""), TrainOn::kAll),
            "⟦<s>⟧⟦ [INST] s\n\n⟧⟦a [/INST]⟧⟦ b</s>⟧⟦ [INST] c [/INST]⟧⟦ d</s>⟧");
  EXPECT_EQ(show(mistral, turns("", R"(,"train":false)", ""), TrainOn::kAssistant),
            "<s> [INST] s\n\na [/INST] b</s> [INST] c [/INST]⟦ d</s>⟧");
  EXPECT_EQ(show(mistral, turns(R"(,"train":true)", R"(,"weight":0.5)", R"(,"weight":0)"),
                 TrainOn::kAssistant),
            "<s> [INST] s\n\n⟦a [/INST]⟧⟦ b</s>⟧*0.5 [INST] c [/INST]⟦ d</s>⟧*0");
  EXPECT_EQ(show(mistral, turns("", R"(,"train":true,"weight":2)", ""), TrainOn::kLast),
            "<s> [INST] s\n\na [/INST]⟦ b</s>⟧*2 [INST] c [/INST]⟦ d</s>⟧");
  EXPECT_EQ(show(chatml, turns(R"(,"train":false)", "", ""), TrainOn::kAll),
            "⟦<|im_start|>system\ns<|im_end|>\n⟧<|im_start|>user\na<|im_end|>\n"
            "⟦<|im_start|>assistant\nb<|im_end|>\n⟧⟦<|im_start|>user\nc<|im_end|>\n⟧"
            "⟦<|im_start|>assistant\nd<|im_end|>\n⟧");
  // A weight says how much, not whether.
  EXPECT_EQ(show(mistral, turns(R"(,"weight":1)", R"(,"weight":1)", ""), TrainOn::kLast),
            "<s> [INST] s\n\na [/INST] b</s> [INST] c [/INST]⟦ d</s>⟧");
}

TEST(Chat, TokensHaveTheWeightOfTheSpanTheyOverlap) {
  const TrainedSpan spans[] = {{4, 8, 1.0f}, {8, 10, 0.5f}, {12, 13, 2.0f}};
  const TokenRange ranges[] = {{0, 4},  {3, 5},  {4, 4},   {5, 8},   {7, 9},   {8, 8},
                               {9, 10}, {9, 10}, {10, 12}, {10, 13}, {12, 12}, {13, 13}};
  const std::vector<float> expected = {0, 1, 1, 1, 1, 0.5f, 0.5f, 0.5f, 0, 2, 2, 0};
  EXPECT_EQ(token_weights(ranges, spans), expected);
  EXPECT_EQ(token_weights(ranges, {}), std::vector<float>(12, 0.0f));
}

class ChatTemplateTest : public testing::Test {
 protected:
  void put(const char* name, const Json& content) { put_file(dir_.file(name), content.dump()); }
  Result<ChatTemplate> choose(const std::string& choice = "auto") {
    return find_chat_template(dir_.path(), choice);
  }
  void expect_preset(const char* name) {
    const auto found = choose();
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_NE(found.value().preset, nullptr) << found.value().missing;
    EXPECT_STREQ(found.value().preset->name, name);
    EXPECT_EQ(found.value().missing, "");
  }
  void expect_refused(const std::string& choice, Exit code, const std::string& part) {
    const auto found = choose(choice);
    ASSERT_FALSE(found.ok()) << part;
    EXPECT_EQ(found.status().code(), code) << found.status().message();
    EXPECT_NE(found.status().message().find(part), std::string::npos) << found.status().message();
  }
  std::string template_of(const char* preset) {
    return golden()["presets"][preset]["templates"][0].get<std::string>();
  }

  TempDir dir_;
};

TEST_F(ChatTemplateTest, IsFoundWhereverItIsWritten) {
  put("tokenizer_config.json", {{"chat_template", template_of("qwen2.5")}});
  expect_preset("qwen2.5");
  put("tokenizer_config.json",
      {{"chat_template",
        Json::array({{{"name", "tool_use"}, {"template", "x"}},
                     {{"name", "default"}, {"template", template_of("smollm2")}}})}});
  expect_preset("smollm2");
  put_file(dir_.file("chat_template.jinja"), template_of("qwen3") + "\n");
  expect_preset("qwen3");
}

TEST_F(ChatTemplateTest, SpecialTexts) {
  put("tokenizer_config.json", {{"chat_template", template_of("mistral")}});
  expect_refused("auto", Exit::kBadData, "names no eos_token");
  put("special_tokens_map.json", {{"eos_token", "<old>"}, {"bos_token", {{"content", "<b>"}}}});
  EXPECT_EQ(choose()->special.end_of_text, "<old>");
  put("tokenizer_config.json",
      {{"chat_template", template_of("mistral")}, {"eos_token", {{"content", "</s>"}}}});
  EXPECT_EQ(choose()->special.end_of_text, "</s>");
  EXPECT_EQ(choose()->special.begin_of_text, "<b>");
}

TEST_F(ChatTemplateTest, NoneUnknownAndForced) {
  EXPECT_EQ(choose()->preset, nullptr);
  EXPECT_FALSE(choose()->unknown);
  EXPECT_NE(choose()->missing.find("has no chat template"),
            std::string::npos);
  put("tokenizer_config.json", {{"chat_template", "{{ messages }}"}});
  EXPECT_EQ(choose()->preset, nullptr);
  EXPECT_TRUE(choose()->program.has_value());
  EXPECT_FALSE(choose()->unknown);
  put("tokenizer_config.json", {{"chat_template", "{{ messages"}});
  EXPECT_FALSE(choose()->program.has_value());
  EXPECT_TRUE(choose()->unknown);
  EXPECT_NE(choose()->missing.find("line 1: \"{{\" has no \"}}\""), std::string::npos);
  EXPECT_STREQ(choose("chatml")->preset->name, "chatml");
  EXPECT_FALSE(choose("chatml")->unknown);
  EXPECT_EQ(choose("none")->preset, nullptr);
  EXPECT_FALSE(choose("none")->unknown);
  expect_refused("chatlm", Exit::kUsage, "did you mean \"chatml\"?");
  expect_refused("tulu", Exit::kBadData, "names no eos_token");
}

TEST_F(ChatTemplateTest, HostileFiles) {
  put_file(dir_.file("tokenizer_config.json"), "[]");
  expect_refused("auto", Exit::kBadData, "is not a JSON object");
  put("tokenizer_config.json", {{"chat_template", 1}});
  expect_refused("auto", Exit::kBadData, "neither a text nor a list");
  put("tokenizer_config.json", {{"chat_template", Json::array({1})}});
  expect_refused("auto", Exit::kBadData, "neither a text nor a list");
  put("tokenizer_config.json", {{"chat_template", Json::array({{{"name", "default"}}})}});
  expect_refused("auto", Exit::kBadData, "neither a text nor a list");
  put_file(dir_.file("tokenizer_config.json"), std::string(500000, '['));
  expect_refused("auto", Exit::kBadData, "nested deeper");
  std::filesystem::remove(dir_.file("tokenizer_config.json"));
  std::filesystem::create_symlink("/dev/zero", dir_.file("tokenizer_config.json"));
  expect_refused("auto", Exit::kBadData, "not a regular file");
  std::filesystem::remove(dir_.file("tokenizer_config.json"));
  put_file(dir_.file("chat_template.jinja"), std::string((1 << 20) + 1, 'x'));
  expect_refused("auto", Exit::kBadData, "more than the limit");
}

}  // namespace
}  // namespace pagoda
