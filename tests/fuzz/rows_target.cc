#include "data/example.h"
#include "model/json.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

// Bytes, end-of-text = 256, and the control tokens of ChatML.
Tokenizer chat_tokenizer() {
  const TempDir dir;
  Json root = Json::parse(byte_tokenizer_json());
  for (const char* token : {"<|im_start|>", "<|im_end|>"}) {
    Json added = root["added_tokens"][0];
    added["id"] = 256 + root["added_tokens"].size();
    added["content"] = token;
    root["added_tokens"].push_back(added);
  }
  put_file(dir.file("tokenizer.json"), root.dump());
  put_file(dir.file("tokenizer_config.json"), byte_tokenizer_config_json());
  return Tokenizer::open(dir.path()).value();
}

struct CheckedExamples : ExampleSink {
  Status example(Example&& example) override {
    CHECK(!example.tokens.empty() && example.tokens.size() == example.weights.size());
    return Status();
  }
};

}  // namespace

void fuzz_rows(std::string_view input) {
  static const TempDir dir;
  static const Tokenizer tokenizer = chat_tokenizer();
  if (input.empty()) return;
  const std::string path = dir.file((input[0] & 1) != 0 ? "rows.json" : "rows.jsonl");
  ExampleOptions options;
  if ((input[0] & 2) != 0) options.chat.preset = find_chat_preset("chatml");
  put_file(path, std::string(input.substr(1)));
  CheckedExamples sink;
  (void)read_examples({path}, tokenizer, options, sink).ok();  // either is right
}

std::vector<std::string> rows_seeds() {
  std::vector<std::string> seeds;
  for (const std::string row :
       {R"({"text":"a b\n\u00e9"})", R"({"prompt":"a ","completion":"b"})",
        R"({"prompt":[{"role":"user","content":"a"}],)"
        R"("completion":[{"role":"assistant","content":"b"}]})",
        R"({"question":"a","answer":"b","history":[["c","d"],["e","f"]]})",
        R"({"instruction":"a","input":"x","output":"b","system":"s"})",
        R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]})",
        R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":)"
        R"([{"type":"text","text":"a"}]},{"role":"assistant","content":"b","train":true,)"
        R"("weight":0.5}],"id":7})"}) {
    seeds.push_back("0" + row + "\n" + row + "\n");
    seeds.push_back("1[" + row + ",\n" + row + "]");
    seeds.push_back("2" + row);
    seeds.push_back("3[" + row + "]");
  }
  return seeds;
}

}  // namespace pagoda
