// `pagoda generate` and the samples of `pagoda train`, as the built program.
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/testing/files.h"
#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

class GenerateTest : public RunTest {
 protected:
  Words generate(const Words& more) const {
    return Words{"generate", "--memory.disk", dir_.path(), "--train.threads", "2",
                 "--max_new_tokens", std::to_string(max_new_tokens_)} + more;
  }
  Words of_model(const Words& more) const {
    return generate(Words{"--model.path", dir_.file("model")} + more);
  }
  nlohmann::json json_of(const Words& words) {
    const ProcessResult result = run(words + Words{"--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out, nullptr, false);
  }
  std::vector<nlohmann::json> samples(const std::string& run_dir) {
    std::vector<nlohmann::json> found;
    std::istringstream lines(get_file(dir_.file(run_dir) + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto object = nlohmann::json::parse(line);
      if (object["type"] == "sample") found.push_back(object);
    }
    return found;
  }

  int max_new_tokens_ = 12;
};

TEST_F(GenerateTest, StreamsOnePromptAndPrintsSeveral) {
  const ProcessResult one = run(of_model({"--prompt", "row 1"}));
  ASSERT_EQ(one.code, 0) << one.err;
  const auto json = json_of(of_model({"--prompt", "row 1", "--prompt", "row 2 ccc"}));
  ASSERT_TRUE(json.is_object());
  ASSERT_EQ(json["generated"].size(), 2u);
  const auto& first = json["generated"][0];
  EXPECT_EQ(first["prompt"], "row 1");
  EXPECT_EQ(first["prompt_tokens"].size(), 5u);
  EXPECT_EQ(first["tokens"].size(), 12u);
  EXPECT_EQ(one.out, first["text"].get<std::string>() + "\n");
  const ProcessResult both = run(of_model({"--prompt", "row 1", "--prompt", "row 2 ccc"}));
  EXPECT_EQ(both.out, "> row 1\n" + first["text"].get<std::string>() + "\n\n> row 2 ccc\n" +
                          json["generated"][1]["text"].get<std::string>() + "\n");
}

// What a terminal would obey is shown so that JSON stays JSON.
TEST_F(GenerateTest, JsonHoldsAnyCharacter) {
  const std::string prompt = "a\x7f\x01\"\\ \u0085\u202e b";
  const auto json = json_of(of_model({"--prompt", prompt}));
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["generated"][0]["prompt"], prompt);
}

// The budgets that the program itself names page, and generate the same.
TEST_F(GenerateTest, TheSmallestBudgetsGenerateTheSame) {
  const Words prompts = {"--prompt", "row 1", "--prompt", "row 2 ccc"};
  const auto roomy = json_of(of_model(prompts));
  std::string device = "1KiB", host = "1KiB";
  const auto budgets = [&] {
    return of_model(prompts + Words{"--memory.device", device, "--memory.host", host});
  };
  const ProcessResult no_device = run(budgets());
  expect_refused(no_device, 72, {"memory.device is 1024 B", "--max_new_tokens"});
  device = named_budget(no_device);
  const ProcessResult no_host = run(budgets());
  expect_refused(no_host, 71, {"memory.host is 1024 B"});
  host = named_budget(no_host);
  const auto paged = json_of(budgets());
  EXPECT_EQ(roomy["fetch_bytes"], 0) << "there is room for everything";
  EXPECT_GT(paged["fetch_bytes"], 0) << "nothing was paged";
  EXPECT_EQ(paged["generated"], roomy["generated"]);
}

TEST_F(GenerateTest, TrainSamplesBeforeDuringAndAfter) {
  Flags plain = flags("plain");
  ASSERT_EQ(run(train(plain)).code, 0);
  Flags sampled = flags("sampled");
  sampled["sample.prompts"] = "row 1";
  sampled["sample.max_new_tokens"] = "12";
  sampled["sample.steps"] = "5";
  const ProcessResult trained = run(train(sampled));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.err.find("sample at step 0: \"row 1\" -> "), std::string::npos) << trained.err;
  EXPECT_NE(trained.err.find("cache"), std::string::npos) << "the cache is printed";
  std::vector<int64_t> steps;
  for (const auto& sample : samples("sampled")) steps.push_back(sample["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 5, 10, 12}));
  EXPECT_TRUE(exported("sampled") == exported("plain")) << "samples changed the run";
  EXPECT_EQ(losses("sampled"), losses("plain"));

  // The run's checkpoint and its export generate the run's last samples.
  const std::string last = samples("sampled").back()["text"];
  const Words prompt = {"--prompt", "row 1"};
  EXPECT_EQ(run(generate(Words{"--checkpoint", dir_.file("sampled")} + prompt)).out, last + "\n");
  ASSERT_EQ(run({"export", "--checkpoint", dir_.file("sampled"), "--out", dir_.file("out")}).code,
            0);
  EXPECT_EQ(run(generate(Words{"--model.path", dir_.file("out")} + prompt)).out, last + "\n");
  EXPECT_NE(last, samples("sampled").front()["text"]) << "nothing was learnt";
}

TEST_F(GenerateTest, DrawsWithASeed) {
  const auto drawn = [&](const char* seed) {
    return run(of_model({"--prompt", "row", "--temperature", "1.5", "--top_p", "0.95", "--seed",
                         seed})).out;
  };
  EXPECT_EQ(drawn("1"), drawn("1"));
  EXPECT_NE(drawn("1"), drawn("2"));
}

TEST_F(GenerateTest, ChatNeedsATemplate) {
  expect_refused(run(of_model({"--chat", "--prompt", "hello"})), 65,
                 {"no chat template", "data.chat_template"});
  const auto chat = json_of(of_model({"--chat", "--prompt", "hello", "--chat-template",
                                      "chatml"}));
  const std::string rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(chat["generated"][0]["prompt_tokens"].size(), rendered.size()) << "a byte a token";
}

TEST_F(GenerateTest, PromptsArriveAsTheyAre) {
  max_new_tokens_ = 1;
  const Words texts = {"[INST] x [/INST]", "[a,b]", "{}", "- What is 2+2?", "2+2=", "a,b", "\"q\""};
  Words words;
  for (const std::string& text : texts) words = words + Words{"--prompt", text};
  const auto json = json_of(of_model(words + Words{"--prompt=2+2="}));
  ASSERT_EQ(json["generated"].size(), texts.size() + 1);
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(json["generated"][i]["prompt"], texts[i]);
  EXPECT_EQ(json["generated"].back()["prompt"], "2+2=");
  expect_refused(run(of_model({"--prompt", "caf\xe9"})), 2, {"--prompt", "UTF-8"});
}

TEST_F(GenerateTest, RefusesWhatItCannotDo) {
  expect_refused(run(of_model({})), 2, {"--prompt"});
  expect_refused(run(generate({"--prompt", "a"})), 2, {"--model.path", "--checkpoint"});
  expect_refused(run(of_model({"--prompt", ""})), 2, {"a prompt is empty"});
  expect_refused(run(of_model({"--prompt", "a", "--top_p", "0"})), 2, {"--top_p"});
  expect_refused(run(of_model({"--prompt", "a", "--temperature", "-1"})), 2, {"--temperature"});
  max_new_tokens_ = 0;
  expect_refused(run(of_model({"--prompt", "a"})), 2, {"--max_new_tokens"});
  max_new_tokens_ = 12;
  expect_refused(run(of_model({"--prompt", std::string(250, 'a')})), 65,
                 {"prompt 1 has 250 tokens", "256"});
  expect_refused(run(generate({"--model.path", dir_.file("none"), "--prompt", "a"})), 66, {});
  Flags bad = flags("run");
  bad["sample.prompts"] = std::string(250, 'a');
  expect_refused(run(train(bad)), 65, {"sample.max_new_tokens"});
  EXPECT_FALSE(std::filesystem::exists(dir_.file("run")));
}

TEST_F(GenerateTest, ASignalEndsItCleanly) {
  max_new_tokens_ = 250;
  Words words = of_model({});
  for (int i = 0; i < 100; ++i) words = words + Words{"--prompt", "a"};  // enough for many seconds
  const auto process = start(words);
  ASSERT_TRUE(process->wait_for_err("memory beyond the budgets")) << process->err();
  process->send(SIGINT);
  expect_refused(process->wait(), 130, {"stopped by signal 2"});
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    EXPECT_EQ(entry.path().filename().string().find("pagoda-scratch"), std::string::npos);
  }
}

}  // namespace
}  // namespace pagoda
