// Rows of every kind and file format as examples: tokens, weights, and what is refused.
#include "data/example.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cctype>
#include <chrono>

#include "base/random.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

std::string gzip(const std::string& text) {
  z_stream stream = {};
  CHECK(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  const size_t bytes = ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3);
  CHECK(ZSTD_isError(bytes) == 0);
  packed.resize(bytes);
  return packed;
}

// Keeps what it gets, and reads documents back together.
struct Collector : ExampleSink {
  Status example(Example&& example) override {
    CHECK(!example.tokens.empty() && example.tokens.size() == example.weights.size());
    examples.push_back(std::move(example));
    return Status();
  }
  void file(const std::string& path, RowKind kind) override {
    files.push_back(path.substr(path.rfind('/') + 1) + " " + name_of(kind));
  }
  std::vector<Example> examples;
  std::vector<std::string> files;
};

class ExampleTest : public testing::Test {
 protected:
  ExampleTest() : tokenizer_(open_tokenizer()) {}

  // Bytes, end-of-text = 256, and the control tokens of ChatML and [INST].
  Tokenizer open_tokenizer() {
    Json root = Json::parse(byte_tokenizer_json());
    for (const char* token : {"<|im_start|>", "<|im_end|>", "<s>", "</s>"}) {
      Json added = root["added_tokens"][0];
      added["id"] = 256 + root["added_tokens"].size();
      added["content"] = token;
      root["added_tokens"].push_back(added);
    }
    put_file(dir_.file("tokenizer.json"), root.dump());
    put_file(dir_.file("tokenizer_config.json"), byte_tokenizer_config_json());
    return Tokenizer::open(dir_.path()).value();
  }
  std::string put(const std::string& name, const std::string& content) {
    put_file(dir_.file(name), content);
    return dir_.file(name);
  }
  static ExampleOptions with_preset(const char* name) {
    ExampleOptions options;
    options.chat.preset = find_chat_preset(name);
    options.chat.special = {"<s>", "</s>"};
    return options;
  }
  Collector read(const std::vector<std::string>& paths, const ExampleOptions& options) {
    Collector collector;
    const Status status = read_examples(paths, tokenizer_, options, collector);
    EXPECT_TRUE(status.ok()) << status.message();
    return collector;
  }
  // The text, trained tokens in brackets, end-of-text as "$"; where a weight is not 1 it is shown.
  std::string shown(const Example& example) {
    std::string text;
    float weight = 0;
    const auto close = [&] {
      if (weight != 0) text += weight == 1 ? "]" : strf("]*%g", weight);
    };
    for (size_t i = 0; i < example.tokens.size(); ++i) {
      if (example.weights[i] != weight) {
        close();
        weight = example.weights[i];
        if (weight != 0) text += "[";
      }
      text += example.tokens[i] == 256 ? "$" : tokenizer_.decode({&example.tokens[i], 1}, false);
    }
    close();
    return text;
  }
  std::string one(const std::string& row, const ExampleOptions& options) {
    const Collector collector = read({put("one.jsonl", row)}, options);
    return collector.examples.size() == 1 ? shown(collector.examples[0]) : "not one example";
  }
  void expect_refused(const std::string& name, const std::string& content, const std::string& part,
                      const ExampleOptions& options = {}) {
    Collector collector;
    const Status status = read_examples({put(name, content)}, tokenizer_, options, collector);
    ASSERT_FALSE(status.ok()) << "accepted, expected: " << part;
    EXPECT_EQ(status.code(), Exit::kBadData) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  }

  TempDir dir_;
  const Tokenizer tokenizer_;
};

TEST_F(ExampleTest, RowKindsWithoutTemplate) {
  EXPECT_EQ(one(R"({"text":"a b"})", {}), "[a b$]");
  EXPECT_EQ(one(R"({"prompt":"a ","completion":"b"})", {}), "a [b$]");
  EXPECT_EQ(one(R"({"question":"a","answer":"b"})", {}), "a\n[b$]");
  EXPECT_EQ(one(R"({"instruction":"a","input":"","output":"b"})", {}), "a\n[b$]");
  EXPECT_EQ(one(R"({"instruction":"a","input":"x","output":"b"})", {}), "a\nx\n[b$]");
  EXPECT_EQ(one(R"({"instruction":"a","input":null,"output":"b","system":"s"})", {}),
            "s\na\n[b$]");
  ExampleOptions all;
  all.train_on = TrainOn::kAll;
  EXPECT_EQ(one(R"({"question":"a","answer":"b"})", all), "[a\nb$]");
}

TEST_F(ExampleTest, RowKindsThroughATemplate) {
  const ExampleOptions mistral = with_preset("mistral");
  const std::string expected = "<s> [INST] a [/INST][ b</s>]";
  const std::string rows[] = {
      R"({"messages":[{"role":"user","content":"a","name":"Ann"},)"
      R"({"role":"assistant","content":"b","tool_calls":[]}]})",
      R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]})",
      R"({"conversations":[{"from":"user","value":"a"},{"from":"bard","value":"b"}],"id":7})",
      R"({"instruction":"a","output":"b"})",
      R"({"prompt":"a","completion":"b"})",
      R"({"prompt":[{"role":"user","content":"a"}],)"
      R"("completion":[{"role":"assistant","content":"b"}]})",
      R"({"question":"a","answer":"b"})"};
  for (const std::string& row : rows) EXPECT_EQ(one(row, mistral), expected) << row;
  EXPECT_EQ(one(R"({"instruction":"a","input":"x","output":"b","system":"s"})", mistral),
            "<s> [INST] s\n\na\nx [/INST][ b</s>]");
  EXPECT_EQ(one(R"({"text":"a [INST]"})", mistral), "[a [INST]$]");
}

TEST_F(ExampleTest, SystemAndHistoryOfARow) {
  const ExampleOptions mistral = with_preset("mistral");
  const std::string expected = "<s> [INST] s\n\na [/INST][ b</s>]";
  const std::string rows[] = {
      R"({"system":"s","messages":[{"role":"user","content":"a"},)"
      R"({"role":"assistant","content":"b"}]})",
      R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}],"system":"s",)"
      R"("tools":"[]"})",
      R"({"prompt":[{"role":"user","content":"a"}],"completion":"b","system":"s","tools":[]})",
      R"({"question":"a","answer":"b","system":"s","history":[],"tools":""})"};
  for (const std::string& row : rows) EXPECT_EQ(one(row, mistral), expected) << row;
  EXPECT_EQ(one(R"({"question":"a","answer":"b","system":""})", with_preset("smollm2")),
            one(R"({"question":"a","answer":"b"})", with_preset("smollm2"))) << "\"\" is none";
  const std::string told = R"({"instruction":"c","output":"d","system":"s","history":[["a","b"]]})";
  EXPECT_EQ(one(told, mistral), "<s> [INST] s\n\na [/INST][ b</s>] [INST] c [/INST][ d</s>]");
  expect_refused("h.jsonl", told, "h.jsonl:1: needs a chat template");
  ExampleOptions mapped = mistral;
  mapped.fields = RowFields::parse("system=who,history=past").value();
  EXPECT_EQ(one(R"({"question":"c","answer":"d","who":"s","past":[["a","b"]]})", mapped),
            one(told, mistral));
  const auto refuse = [&](const std::string& fields, const std::string& part) {
    expect_refused("s.jsonl", R"({"question":"a","answer":"b",)" + fields + "}",
                   "s.jsonl:1: " + part, mistral);
  };
  refuse(R"("system":1)", "\"system\" is not a text");
  refuse(R"("history":"x")", "\"history\" is not a list");
  refuse(R"("history":[["a","b"],["c"]])", "\"history\" 2: is not a pair of texts");
  refuse(R"("tools":[{"name":"f"}])", "has \"tools\", which no chat preset renders");
  expect_refused("s.jsonl",
                 R"({"system":"s","messages":[{"role":"system","content":"t"},)"
                 R"({"role":"user","content":"a"},{"role":"assistant","content":"b"}]})",
                 "s.jsonl:1: has \"system\" and a system message; keep one", mistral);
}

TEST_F(ExampleTest, ContentMayBeTextParts) {
  const auto row = [](const std::string& parts) {
    return R"({"messages":[{"role":"user","content":)" + parts +
           R"(},{"role":"assistant","content":[{"type":"text","text":"b"}]}]})";
  };
  EXPECT_EQ(one(row(R"([{"type":"text","text":"a"},{"type":"text","text":"c"}])"),
                with_preset("mistral")), "<s> [INST] ac [/INST][ b</s>]");
  expect_refused("p.jsonl", row(R"([{"type":"text","text":"a"},{"type":"image_url"}])"),
                 "message 1: \"content\" part 2 is of type \"image_url\"", with_preset("mistral"));
  expect_refused("p.jsonl", row(R"([{"type":"text"}])"),
                 "message 1: \"content\" part 1 has no \"text\"", with_preset("mistral"));
}

TEST_F(ExampleTest, APromptsAnswersAreContext) {
  const std::string row =
      R"({"prompt":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
      R"({"role":"user","content":"c"}],"completion":[{"role":"assistant","content":"d"}]})";
  ExampleOptions options = with_preset("mistral");
  EXPECT_EQ(one(row, options), "<s> [INST] a [/INST] b</s> [INST] c [/INST][ d</s>]");
  options.train_on = TrainOn::kLast;
  EXPECT_EQ(one(row, options), "<s> [INST] a [/INST] b</s> [INST] c [/INST][ d</s>]");
  options.train_on = TrainOn::kAll;
  EXPECT_EQ(one(row, options), "[<s> [INST] a [/INST] b</s> [INST] c [/INST] d</s>]");
}

TEST_F(ExampleTest, ControlTokensSpeltInTextAreControlTokens) {
  const std::string row = one(
      R"({"messages":[{"role":"user","content":"<|im_end|>"},{"role":"assistant","content":"x"}]})",
      with_preset("chatml"));
  EXPECT_EQ(row, "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n[x<|im_end|>]\n");
  const Collector collector = read({dir_.file("one.jsonl")}, with_preset("chatml"));
  EXPECT_EQ(collector.examples[0].tokens[0], 257u);
  EXPECT_EQ(std::count(collector.examples[0].tokens.begin(), collector.examples[0].tokens.end(),
                       258u), 3);
}

TEST_F(ExampleTest, Weights) {
  ExampleOptions options = with_preset("mistral");
  const auto row = [](const char* first, const char* second) {
    return strf(R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"%s},)"
                R"({"from":"human","value":"c"},{"from":"gpt","value":"d"%s}]})", first, second);
  };
  EXPECT_EQ(one(row(R"(,"weight":0)", R"(,"weight":2)"), options),
            "<s> [INST] a [/INST] b</s> [INST] c [/INST][ d</s>]*2");
  EXPECT_EQ(one(row(R"(,"train":false)", ""), options),
            "<s> [INST] a [/INST] b</s> [INST] c [/INST][ d</s>]");
  for (const char* bad : {R"(,"weight":-1)", R"(,"weight":"1")", R"(,"weight":1001)",
                          R"(,"weight":true)"}) {
    expect_refused("w.jsonl", row(bad, ""), "w.jsonl:1: message 2: \"weight\" is not a number",
                   options);
  }
  expect_refused("w.jsonl", row(R"(,"train":1)", ""), "\"train\" is not true or false", options);
}

TEST_F(ExampleTest, FieldsCanBeMapped) {
  ExampleOptions options = with_preset("mistral");
  options.fields = RowFields::parse("prompt=q,completion=a").value();
  EXPECT_EQ(one(R"({"q":"a","a":"b"})", options), "<s> [INST] a [/INST][ b</s>]");
  options.fields = RowFields::parse("messages=chat,role=who,content=what,weight=w").value();
  EXPECT_EQ(one(R"({"chat":[{"who":"user","what":"a"},{"who":"assistant","what":"b","w":3}]})",
                options), "<s> [INST] a [/INST][ b</s>]*3");
  options.kind = RowKind::kText;
  EXPECT_EQ(one(R"({"text":"x","chat":[]})", options), "[x$]");
  for (const auto& [mapping, part] : std::vector<std::pair<std::string, std::string>>{
           {"promt=q", "did you mean \"prompt\"?"}, {"prompt", "is not NAME=FIELD"},
           {"prompt=", "is not NAME=FIELD"}, {"role=a,role=b", "is mapped twice"},
           {"=x", "is no field"}}) {
    const auto fields = RowFields::parse(mapping);
    ASSERT_FALSE(fields.ok()) << mapping;
    EXPECT_NE(fields.status().message().find(part), std::string::npos) << fields.status().message();
  }
}

TEST_F(ExampleTest, FormatsAndPackings) {
  const std::string lines = "{\"text\":\"a\"}\r\n\n{\"text\":\"b\"}";
  const std::string array =
      " [ {\"text\" : \"a\"} ,\n{\"text\":\"b\",\"x\":[{\"]\":\"}\\\"\"}]}]\n";
  const std::vector<std::string> paths = {
      put("1.jsonl", lines),           put("2.jsonl.gz", gzip(lines)),
      put("3.jsonl.zst", zstd(lines)), put("4.json", array),
      put("5.json.gz", gzip(array)),   put("6.json.zst", zstd(array)),
      put("7.jsonl.gz", gzip(lines.substr(0, 5)) + gzip(lines.substr(5))),
      put("8.jsonl.zst", zstd(lines.substr(0, 5)) + zstd(lines.substr(5)))};
  const Collector collector = read(paths, {});
  ASSERT_EQ(collector.examples.size(), 16u);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(shown(collector.examples[i]), i % 2 == 0 ? "[a$]" : "[b$]") << i;
  }
  EXPECT_EQ(collector.files[0], "1.jsonl text");
  EXPECT_EQ(collector.files.size(), 8u);
  const Collector plain = read({put("a.txt", "x\ny"), put("b.txt.gz", gzip("x\ny")),
                                put("c.txt.zst", zstd("x\ny"))}, {});
  ASSERT_EQ(plain.examples.size(), 3u);
  for (const Example& example : plain.examples) {
    EXPECT_EQ(shown(example), "[x\ny$]");
    EXPECT_TRUE(example.is_text);
  }
}

// At the beginning of a file only: elsewhere it is a character, or no JSON.
TEST_F(ExampleTest, AByteOrderMarkIsPassedOver) {
  const std::string mark = "\xEF\xBB\xBF", row = R"({"text":"a"})";
  const Collector collector =
      read({put("1.txt", mark + "a"), put("2.jsonl", mark + row),
            put("3.json", mark + "[" + row + "]"),
            put("4.txt.gz", gzip(mark.substr(0, 1)) + gzip(mark.substr(1) + "a"))},
           {});
  ASSERT_EQ(collector.examples.size(), 4u);
  for (const Example& example : collector.examples) EXPECT_EQ(shown(example), "[a$]");
  EXPECT_EQ(read({put("m.txt", mark + mark)}, {}).examples[0].tokens.size(), 4u);
  EXPECT_EQ(read({put("t.txt", "\xEF\xBB\xBE")}, {}).examples[0].tokens.size(), 4u);
  expect_refused("c.txt", "\xEF\xBB", "c.txt:1:1: invalid UTF-8");
  expect_refused("m.jsonl", row + "\n" + mark + row, "m.jsonl:2: byte 0: invalid JSON");
  expect_refused("m.txt", mark, "m.txt: every text in it is empty");
}

// Each byte of small packed files cut off or changed: refused, or (where a flipped bit means
// nothing, as in the time stamp) read as it was.
TEST_F(ExampleTest, DamagedPackings) {
  const std::string lines = "{\"text\":\"hello hello hello\"}\n";
  for (const auto& [name, packed] : std::vector<std::pair<std::string, std::string>>{
           {"d.jsonl.gz", gzip(lines)}, {"d.jsonl.zst", zstd(lines)}}) {
    for (size_t bytes = 0; bytes < packed.size(); ++bytes) {
      expect_refused(name, packed.substr(0, bytes), name + ": ");
    }
    expect_refused(name, packed + "xxxx", "something else behind it");
    expect_refused(name, lines, "damaged");
    int refused = 0;
    for (size_t at = 0; at < packed.size(); ++at) {
      std::string spoiled = packed;
      spoiled[at] = static_cast<char>(spoiled[at] ^ 0x10);
      Collector collector;
      refused += !read_examples({put(name, spoiled)}, tokenizer_, {}, collector).ok();
    }
    EXPECT_GT(refused, static_cast<int>(packed.size() / 2)) << name;
  }
  expect_refused("e.jsonl.gz", gzip("{\"text\":\"a\""), "e.jsonl.gz:1: byte");
}

TEST_F(ExampleTest, BombsAreRefused) {
  const std::string zeros(size_t{80} << 20, '\0');
  expect_refused("bomb.txt.zst", zstd(zeros), "more than 1000 times its size");
  if (kUnderSanitizer) return;  // 64 MB of one line take ten seconds there
  expect_refused("bomb.jsonl.zst", zstd(zeros), "longer than 64000000 bytes");
}

TEST_F(ExampleTest, LongTextComesInPieces) {
  const uint64_t seed = 17;
  std::string text;
  for (uint64_t i = 0; text.size() < (kUnderSanitizer ? 1200000 : 5000000); ++i) {
    const uint32_t word = philox(seed, RandomPurpose::kTest, i, 0)[0];
    text += std::string(1 + word % 11, static_cast<char>('a' + word % 26));
    text += i % 13 == 0 ? ".\n" : i % 7 == 0 ? ", " : " ";
  }
  const auto check = [&](const std::string& document, bool word_borders) {
    const Collector collector =
        read({put("long.txt", document),
              put("long.jsonl", Json{{"text", document}}.dump() + "\n")}, {});
    ASSERT_EQ(collector.files.size(), 2u);
    std::vector<std::string> documents(1);
    size_t pieces = 0;
    for (const Example& example : collector.examples) {
      const std::string piece = tokenizer_.decode(example.tokens, true);
      ++pieces;
      EXPECT_LE(piece.size(), size_t{1} << 20);
      EXPECT_NE(static_cast<unsigned char>(piece.front()) & 0xC0, 0x80) << "a cut character";
      EXPECT_TRUE(!word_borders || !example.continues || std::isalpha(piece.back())) << pieces;
      documents.back() += piece;
      EXPECT_EQ(example.tokens.back() == 256u, !example.continues);
      if (!example.continues) documents.emplace_back();
    }
    EXPECT_GE(pieces, 2 * (document.size() >> 20));
    ASSERT_EQ(documents.size(), 3u);
    EXPECT_TRUE(documents[0] == document && documents[1] == document);
  };
  check(text, true);
  std::string chinese;
  while (chinese.size() < (kUnderSanitizer ? 1200000 : 3000000)) chinese += "塔";
  check(chinese, false);
}

TEST_F(ExampleTest, BadRowsAreNamed) {
  const ExampleOptions chatml = with_preset("chatml");
  const auto messages = [](const std::string& list) { return "{\"messages\":[" + list + "]}"; };
  const std::string user = R"({"role":"user","content":"a"})";
  const std::string bot = R"({"role":"assistant","content":"b"})";
  const std::string good = messages(user + "," + bot);
  const auto refuse = [&](const std::string& row, const std::string& part) {
    expect_refused("m.jsonl", good + "\n\n" + row + "\n", "m.jsonl:3: " + part, chatml);
    expect_refused("m.json", "[" + good + "," + row + "]", "m.json: row 2: " + part, chatml);
  };
  refuse(messages(user), "the conversation has no assistant message");
  refuse(messages(""), "has no messages");
  refuse("{\"messages\":1}", "the messages are not a list");
  refuse(messages("1"), "message 1: is not an object");
  refuse(messages(R"({"role":"wizard","content":"a"},)" + bot),
         "message 1: unknown role \"wizard\"");
  refuse(messages(user + R"(,{"role":"assistant","content":null})"),
         "message 2: has no \"content\"");
  refuse(messages(user + R"(,{"role":"assistant","content":["b"]})"),
         "message 2: \"content\" part 1 has no \"type\"");
  refuse(messages(user + R"(,{"role":"assistant","content":1})"),
         "message 2: \"content\" is not a text");
  refuse(messages(R"({"content":"a"},)" + bot), "message 1: has no \"role\"");
  refuse(messages(user + R"(,{"role":"assistant","content":null,"tool_calls":[{}]})"),
         "message 2: has \"tool_calls\"");
  refuse(R"({"text":"a"})", "a row of kind text in a file whose first row is of kind messages");
  refuse(R"({"foo":"a","bar":1})", "no kind of row has these fields: bar, foo");
  refuse("{}", "no kind of row has these fields");
  refuse("{\"messages\":null}", "no kind of row has these fields");
  expect_refused("m.jsonl", good + "\n[]\n", "m.jsonl:2: the row is not an object", chatml);
  expect_refused("m.jsonl", messages(bot + "," + user), "message 1 (assistant): the chat template",
                 with_preset("mistral"));
  expect_refused("m.jsonl", messages(R"({"role":"tool","content":"a"},)" + bot),
                 "message 1 (tool): the chat template tulu has no place for this role",
                 with_preset("tulu"));
}

TEST_F(ExampleTest, BadArraysAreNamed) {
  const std::string a = R"({"text":"a"})";
  const auto refuse = [&](const std::string& text, const std::string& part) {
    expect_refused("a.json", text, part);
  };
  refuse("", "a.json: the array ends in the middle");
  refuse(a, "a.json: is no array of objects; where each line is an object");
  refuse("[" + a, "a.json: row 1: the array ends in the middle");
  refuse("[" + a + ",", "a.json: row 1: the array ends in the middle");
  refuse("[" + a + ",]", "a.json: row 2: is no object");
  refuse("[" + a + " " + a + "]", "a.json: row 1: a comma or the array's end is missing");
  refuse("[" + a + "]]", "a.json: row 1: something follows");
  refuse("[1]", "a.json: row 1: is no object");
  refuse("[]", "a.json: has no rows");
  refuse("[" + a + ",{\"text\":\"\xFF\"}]", "a.json: row 2: byte 10: invalid UTF-8");
  refuse("[{\"text\":\"a\"]}", "a.json: row 1");
  refuse("[" + std::string("{\"a\":") + std::string(500000, '[') + "]",
         "a.json: row 1: the array ends in the middle");
  refuse("[{\"a\":" + std::string(500, '[') + std::string(500, ']') + "}]", "nested deeper");
}

TEST_F(ExampleTest, BadFilesAreNamed) {
  expect_refused("a.parquet", "x", "the name must end in .txt");
  expect_refused("a.gz", "x", "the name must end in .txt");
  expect_refused("a.txt", "one\ntwo \xFF", "a.txt:2:5: invalid UTF-8");
  expect_refused("a.jsonl", "\n \n", "a.jsonl: has no rows");
  std::string late(3000000, 'x');
  late[2500000] = '\n';
  expect_refused("a.txt", late + "\xC3", "a.txt:2:500000: invalid UTF-8");
  Collector collector;
  EXPECT_EQ(read_examples({dir_.file("absent.txt")}, tokenizer_, {}, collector).code(),
            Exit::kNoInput);
}

TEST_F(ExampleTest, ATemplateIsNeededForMessages) {
  const std::string row =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})";
  ExampleOptions none;
  none.chat.missing = "model has no chat template";
  expect_refused("m.jsonl", row,
                 "m.jsonl:1: needs a chat template, and model has no chat template; nothing was "
                 "trained, name one that fits with --data.chat_template (chatml, ",
                 none);
  ExampleOptions unknown = none;
  unknown.chat.unknown = true;
  unknown.chat.missing = "cannot run the chat template of model: line 3: why";
  expect_refused("m.jsonl", R"({"question":"a","answer":"b"})",
                 "m.jsonl:1: cannot run the chat template of model: line 3: why; nothing was "
                 "trained, name one that fits",
                 unknown);
  EXPECT_EQ(one(R"({"text":"a"})", unknown), "[a$]");
}

TEST_F(ExampleTest, MasksThatDoNothingAreRefused) {
  const std::string masked = R"({"messages":[{"role":"user","content":"a"},)"
                             R"({"role":"assistant","content":"b","train":false}]})";
  const std::string good = R"({"messages":[{"role":"user","content":"a"},)"
                           R"({"role":"assistant","content":"b"}]})";
  expect_refused("m.jsonl", masked + "\n" + masked, "m.jsonl: no token of its 2 rows is trained",
                 with_preset("chatml"));
  EXPECT_EQ(read({put("m.jsonl", masked + "\n" + good)}, with_preset("chatml")).examples.size(),
            2u);
  expect_refused("e.txt", "", "e.txt: every text in it is empty");
  expect_refused("e.jsonl", "{\"text\":\"\"}\n{\"text\":\"\"}",
                 "e.jsonl: every text in it is empty");
  EXPECT_EQ(read({put("e.jsonl", "{\"text\":\"\"}\n{\"text\":\"a\"}")}, {}).examples.size(), 2u);
  const std::string bare = R"({"prompt":"","completion":"b"})";
  expect_refused("p.jsonl", bare, "p.jsonl: every token of its 1 rows is trained");
  ExampleOptions all;
  all.train_on = TrainOn::kAll;
  EXPECT_EQ(one(bare, all), "[b$]");
}

// Quadratic work would take minutes.
TEST_F(ExampleTest, ManyTurns) {
  const size_t count = 200000;
  std::vector<Turn> turns(count);
  RenderedChat chat;
  for (size_t i = 0; i < count; ++i) {
    turns[i].role = i % 2 == 0 ? Role::kUser : Role::kAssistant;
    chat.turns.push_back({2 * i, 2 * i + 1, 2 * i + 2, 2 * i + 2});
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<TrainedSpan> spans = trained_spans(turns, chat, TrainOn::kLast);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 20.0);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].begin, 2 * count - 1);
}

TEST_F(ExampleTest, CacheKeyTellsWhatChangesExamples) {
  std::vector<ExampleOptions> different(12);
  different[1].kind = RowKind::kText;
  different[2].train_on = TrainOn::kLast;
  different[3].fields = RowFields::parse("text=body").value();
  different[4] = with_preset("chatml");
  different[5] = with_preset("mistral");
  different[6] = with_preset("mistral");
  different[6].chat.special.end_of_text = "<end>";
  for (size_t i = 7; i < different.size(); ++i) {
    ChatTemplate& chat = different[i].chat;
    chat.source = i == 7 ? "{{ messages }}" : "{{ messages }}{{ strftime_now('%d') }}";
    chat.program = jinja::Template::parse(chat.source).value();
  }
  different[9].chat.special.padding = "<pad>";
  different[10].chat.special.unknown = "<pad>";
  different[11].chat.today.day = 2;
  for (size_t i = 0; i < different.size(); ++i) {
    EXPECT_EQ(different[i].cache_key(), ExampleOptions(different[i]).cache_key());
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(different[i].cache_key(), different[j].cache_key()) << i << " " << j;
    }
  }
}

// A row costs memory however short it is, and a packed file may hold very many.
TEST_F(ExampleTest, RowsBeyondTheMemoryForThemAreRefused) {
  const std::string row = "{\"text\":\"a\"}\n";
  ExampleOptions options;
  options.most_rows = 3;
  const std::vector<std::string> paths = {put("a.txt", "x"), put("b.jsonl.gz", gzip(row + row))};
  EXPECT_EQ(read(paths, options).examples.size(), 3u);
  Collector collector;
  const std::vector<std::string> more = {paths[0], put("c.jsonl.gz", gzip(row + row + row))};
  const Status refused = read_examples(more, tokenizer_, options, collector);
  EXPECT_EQ(refused.code(), Exit::kHostMemory);
  for (const char* said : {"c.jsonl.gz:3: row 4 ", "has room for 3", "48 bytes", "join short rows",
                           "data.path"}) {
    EXPECT_NE(refused.message().find(said), std::string::npos) << refused.message();
  }
  EXPECT_EQ(collector.examples.size(), 3u) << "what comes after it is not read";
  // 134 million rows of 48 bytes take six GiB, which is an eighth of 48.
  EXPECT_EQ(rows_in_memory(int64_t{48} << 30), int64_t{1} << 27);
  EXPECT_EQ(options.cache_key(), ExampleOptions().cache_key()) << "it changes no example";
}

}  // namespace
}  // namespace pagoda
