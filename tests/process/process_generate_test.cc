// `pagoda generate` and the samples of `pagoda train`, as the built program.
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "tests/testing/files.h"
#include "tests/testing/ranks/mpi_run_test.h"
#include "tests/testing/tiny_run.h"

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
    err_ = result.err;
    return nlohmann::json::parse(result.out, nullptr, false);
  }
  void expect_no_scratch() const {
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      EXPECT_EQ(entry.path().filename().string().find("pagoda-scratch"), std::string::npos);
    }
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
  std::string err_;  // of json_of()
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
  EXPECT_NE(last, samples("sampled").front()["text"].get<std::string>()) << "nothing was learnt";
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
  expect_no_scratch();
}

const Words kPrompts = {"--prompt", "row 1", "--prompt", "row 2 ccc", "--prompt", "b"};

// The command line that makes a second model of another form than RunTest's.
Words make_second(const TempDir& dir) {
  put_file(dir.file("second.json"),
           tiny_with(R"({"num_hidden_layers": 4, "num_experts": 10, "num_experts_per_tok": 3})"));
  return {"init", "--config", dir.file("second.json"), "--seed", "8", "--out", dir.file("second")};
}

// Two models at once (`--with`): each writes what it writes alone.
class TogetherTest : public GenerateTest {
 protected:
  void SetUp() override {
    GenerateTest::SetUp();
    const ProcessResult made = run(make_second(dir_));
    ASSERT_EQ(made.code, 0) << made.err;
  }

  Words of(const std::string& model, const Words& more) const {
    return generate(Words{"--model.path", model} + more);
  }
  Words both(const Words& more) const { return of(first_, Words{"--with", second_} + more); }
  // What a run of the model records of its routing.
  std::string recorded(const std::string& model, const std::string& name) {
    Flags flags = this->flags("run-" + name);
    flags["model.path"] = model;
    flags["train.steps"] = "2";
    flags["train.trace_routing"] = dir_.file(name);
    flags["memory.device"] = flags["memory.host"] = "64MiB";
    const ProcessResult trained = run(train(flags));
    EXPECT_EQ(trained.code, 0) << trained.err;
    return dir_.file(name);
  }

  const std::string first_ = dir_.file("model"), second_ = dir_.file("second");
};

TEST_F(TogetherTest, EachWritesWhatItWritesAlone) {
  const auto of_first = json_of(of(first_, kPrompts))["generated"];
  const auto of_second = json_of(of(second_, kPrompts))["generated"];
  ASSERT_EQ(of_first.size(), 3u);
  EXPECT_NE(of_first, of_second) << "the models write the same";
  const std::vector<Words> ways = {
      {},
      {"--train.devices", "cpu*2"},
      {"--train.devices", "cpu/2:2,cpu/4:2,cpu/2:6"},
  };
  for (const Words& way : ways) {
    const auto json = json_of(both(kPrompts + way));
    ASSERT_EQ(json["models"].size(), 2u);
    EXPECT_EQ(json["models"][0]["model"], first_);
    EXPECT_EQ(json["models"][1]["model"], second_);
    EXPECT_EQ(json["models"][0]["generated"], of_first);
    EXPECT_EQ(json["models"][1]["generated"], of_second);
    EXPECT_GT(json["seconds"], 0);
  }
  // A checkpoint of a run is a first model too, and one prompt is not streamed.
  const ProcessResult trained = run(train(flags("run")));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Words of_run = {
      "generate",         "--checkpoint", dir_.file("run"), "--memory.disk", dir_.path(),
      "--max_new_tokens", "12",           "--prompt",       "row 1"};
  const std::string alone = run(of_run).out;
  const ProcessResult text = run(of_run + Words{"--with", second_});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out, "== " + dir_.file("run") + "\n> row 1\n" + alone + "\n== " + second_ +
                          "\n> row 1\n" + of_second[0]["text"].get<std::string>() + "\n");
  expect_no_scratch();
}

TEST_F(TogetherTest, BudgetsAreOfBoth) {
  const auto of_first = json_of(of(first_, kPrompts))["generated"];
  const auto of_second = json_of(of(second_, kPrompts))["generated"];
  const auto with = [&](int64_t device_kib, int64_t host_kib) {
    return both(kPrompts + Words{"--memory.device", strf("%lldKiB", (long long)device_kib),
                                 "--memory.host", strf("%lldKiB", (long long)host_kib)});
  };
  expect_refused(run(with(1, 1)), 72, {first_ + ", with ", " % of the budgets: memory.device is"});
  // Twice as much until it does: less than the weights of both, which are read again then.
  int64_t device = 64, host = 64;
  while (run(with(device, 1 << 16)).code == 72 && device < 1 << 16) device *= 2;
  while (run(with(device, host)).code == 71 && host < 1 << 16) host *= 2;
  const auto json = json_of(with(device, host));
  int64_t fetched = 0;
  for (const auto& model : json["models"]) fetched += model["fetch_bytes"].get<int64_t>();
  EXPECT_GT(fetched, 0) << "nothing was paged";
  EXPECT_EQ(json["models"][0]["generated"], of_first);
  EXPECT_EQ(json["models"][1]["generated"], of_second);
  // All of 100 % is said to be shared.
  EXPECT_NE(err_.find(first_ + ", with "), std::string::npos) << err_;
  EXPECT_NE(err_.find(second_ + ", with "), std::string::npos) << err_;
}

TEST_F(TogetherTest, ByRecordedRouting) {
  const auto of_first = json_of(of(first_, kPrompts))["generated"];
  const auto of_second = json_of(of(second_, kPrompts))["generated"];
  const std::string a = recorded(first_, "a.routing"), b = recorded(second_, "b.routing");
  const Words devices = {"--train.devices", "cpu/2:2,cpu/4:2"};
  const auto json = json_of(both(kPrompts + devices + Words{"--routing", a, "--with_routing", b}));
  EXPECT_EQ(json["models"][0]["generated"], of_first);
  EXPECT_EQ(json["models"][1]["generated"], of_second);
  EXPECT_NE(err_.find("experts of both models are shared out by recorded routing"),
            std::string::npos)
      << err_;
  expect_refused(run(both(kPrompts + devices + Words{"--routing", b, "--with_routing", a})), 2,
                 {"--routing: it was recorded of another model"});
  expect_refused(run(both(kPrompts + devices + Words{"--routing", a, "--with_routing", a})), 2,
                 {"--with_routing: it was recorded of another model"});
  expect_refused(run(both(kPrompts + devices + Words{"--routing", a})), 2,
                 {"--with: name what was recorded of both models"});
  expect_refused(run(both(kPrompts + Words{"--routing", a, "--with_routing", b})), 2,
                 {"there is one device"});
  expect_refused(run(both(kPrompts + devices + Words{"--routing", a, "--with_routing", "none"})),
                 66, {"none"});
}

TEST_F(TogetherTest, RefusesWhatItCannotDo) {
  const Words prompt = {"--prompt", "a"};
  expect_refused(run(of(first_, Words{"--with", ""} + prompt)), 2, {"--with: it names no model"});
  expect_refused(run(of(first_, Words{"--with", dir_.file("none")} + prompt)), 66,
                 {dir_.file("none")});
  expect_refused(run(of(dir_.file("none"), Words{"--with", second_} + prompt)), 66,
                 {dir_.file("none")});
  expect_refused(run({"generate", "--with", second_, "--prompt", "a"}), 2,
                 {"--model.path", "--checkpoint"});
  expect_refused(run(of(first_, Words{"--with_routing", "x"} + prompt)), 2,
                 {"--with_routing: there is no second model"});
  // A prompt that only the second model cannot take.
  put_file(dir_.file("short.json"), tiny_with(R"({"max_position_embeddings": 16})"));
  ASSERT_EQ(run({"init", "--config", dir_.file("short.json"), "--out", dir_.file("short")}).code,
            0);
  expect_refused(run(of(first_, {"--with", dir_.file("short"), "--prompt", "a long one"})), 65,
                 {"prompt 1 has 10 tokens", "16"});
  expect_no_scratch();
}

TEST_F(TogetherTest, ASignalEndsBothCleanly) {
  max_new_tokens_ = 250;
  Words words = both({});
  for (int i = 0; i < 100; ++i) words = words + Words{"--prompt", "a"};  // enough for many seconds
  const auto process = start(words);
  ASSERT_TRUE(process->wait_for_err(second_ + ", with ")) << process->err();
  process->send(SIGINT);
  expect_refused(process->wait(), 130, {"stopped by signal 2"});
  expect_no_scratch();
}

class TogetherRanksTest : public MpiRunTest {};

TEST_F(TogetherRanksTest, SeveralProcessesAreRefused) {
  const ProcessResult made = run(make_second(dir_));
  ASSERT_EQ(made.code, 0) << made.err;
  expect_ended(mpirun(2, {"generate", "--model.path", dir_.file("model"), "--with",
                          dir_.file("second"), "--memory.disk", dir_.path(), "--prompt", "a"}),
               2, "--with: two models share the devices of one process");
}

}  // namespace
}  // namespace pagoda
