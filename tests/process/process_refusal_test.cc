// What the built program refuses: exit code, one line that names the place and the remedy, and
// nothing left behind that would stop a second try.
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/check.h"
#include "checkpoint/init_folder.h"
#include "config/run_config.h"
#include "tests/testing/files.h"
#include "tests/testing/run_test.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;

class RefusalTest : public RunTest {
 protected:
  // The run is refused with `code` and these names; then, with `good` flags, the same folder works.
  void expect_refused_then_works(const Flags& bad, int code, const Words& names,
                                 const Flags& good) {
    expect_refused(run(train(bad)), code, names);
    EXPECT_FALSE(fs::exists(good.at("train.output_dir")));
    const ProcessResult second = run(train(good));
    EXPECT_EQ(second.code, 0) << second.err;
  }
  // A copy of the model folder to damage.
  std::string copied_model(const std::string& name) {
    fs::copy(dir_.file("model"), dir_.file(name), fs::copy_options::recursive);
    return dir_.file(name);
  }
  Flags short_run() const {
    Flags flags = this->flags("run");
    flags["train.steps"] = "2";
    return flags;
  }
  void expect_bad_model(const std::string& model, int code, const Words& names) {
    Flags bad = short_run();
    bad["model.path"] = model;
    expect_refused_then_works(bad, code, names, short_run());
  }
};

TEST_F(RefusalTest, BudgetsNameTheSmallestThatWouldDo) {
  Flags bad = short_run();
  bad["memory.device"] = "64KiB";
  const ProcessResult device = run(train(bad));
  expect_refused(device, 72, {"memory.device is 64.0 KiB", "raise memory.device"});
  bad["memory.device"] = named_budget(device);
  bad["memory.host"] = "64KiB";
  const ProcessResult host = run(train(bad));
  expect_refused(host, 71, {"memory.host is 64.0 KiB", "raise memory.host"});
  bad["memory.host"] = named_budget(host);
  EXPECT_EQ(run(train(bad)).code, 0) << "the named budgets do not do";
  for (const char* key : {"memory.device", "memory.host"}) {
    Flags less = short_run();
    const auto size = MemorySize::parse(less[key]);
    ASSERT_TRUE(size.ok()) << less[key];
    // A rounded size may be up to half a unit of its last digit too large: 1 % is surely less.
    const auto bytes = static_cast<double>(size.value().resolve(0, 0));
    less[key] = strf("%.0fB", bytes * 0.99);
    less["train.output_dir"] = dir_.file("less");
    expect_refused(run(train(less)), std::string(key) == "memory.device" ? 72 : 71, {key});
  }
}

// Threads that the system does not start are an error like others, at whatever thread it happens.
TEST_F(RefusalTest, TooManyThreads) {
  Flags bad = short_run();
  bad["train.threads"] = bad["train.optimizer_threads"] = "300";
  bad["memory.disk"] = dir_.file("disk");
  for (const int64_t address_bytes : {2 * kGiB, 3 * kGiB}) {
    expect_refused(run(train(bad), {.address_bytes = address_bytes}), 71,
                   {"no more threads", "train.threads"});
    EXPECT_FALSE(fs::exists(dir_.file("run")));
    EXPECT_TRUE(fs::is_empty(dir_.file("disk"))) << "a page file was left";
  }
  bad["train.threads"] = bad["train.optimizer_threads"] = "2";
  EXPECT_EQ(run(train(bad)).code, 0);
}

TEST_F(RefusalTest, BudgetsOfAllMemory) {
  Flags all = short_run();
  all["memory.device"] = all["memory.host"] = "100%";
  const ProcessResult result = run(train(all));
  EXPECT_EQ(result.code, 0) << result.err;
}

// Budgets are a promise; what no machine has is refused, not granted until the system kills the
// run.
TEST_F(RefusalTest, MoreThanTheMachineHas) {
  Flags bad = short_run();
  bad["train.tokens_per_step"] = bad["train.micro_batch_tokens"] = strf("%d", 1 << 30);
  bad["memory.device"] = bad["memory.host"] = "100000GiB";
  expect_refused(run(train(bad)), 71, {"this machine", "lower"});
  EXPECT_FALSE(fs::exists(dir_.file("run")));
}

TEST_F(RefusalTest, OutputFolderNotEmpty) {
  fs::create_directory(dir_.file("run"));
  put_file(dir_.file("run") + "/thesis.txt", "years of work");
  expect_refused(run(train(short_run())), 73, {dir_.file("run"), "not an empty directory"});
  EXPECT_EQ(get_file(dir_.file("run") + "/thesis.txt"), "years of work");
  expect_refused(run({"export", "--checkpoint", dir_.file("nothing"), "--out", dir_.file("run")}),
                 66, {dir_.file("nothing")});
  fs::remove(dir_.file("run") + "/thesis.txt");
  ASSERT_EQ(run(train(short_run())).code, 0);
  expect_refused(run(train(short_run())), 73, {dir_.file("run")});
  EXPECT_EQ(run({"ckpt", "verify", dir_.file("run")}).code, 0);
}

// A folder that was there stays, empty as it was found.
TEST_F(RefusalTest, AFolderOfTheUserStays) {
  fs::create_directory(dir_.file("run"));
  Flags bad = short_run();
  bad["data.path"] = dir_.file("no-text.txt");
  expect_refused(run(train(bad)), 66, {"no-text.txt"});
  EXPECT_TRUE(fs::is_directory(dir_.file("run")));
  const ProcessResult second = run(train(short_run()));
  EXPECT_EQ(second.code, 0) << second.err;
}

TEST_F(RefusalTest, ADiskThatIsAFile) {
  put_file(dir_.file("disk"), "no folder");
  for (const char* path : {"disk", "disk/below"}) {
    Flags bad = short_run();
    bad["memory.disk"] = dir_.file(path);
    expect_refused(run(train(bad)), 73, {dir_.file("disk"), "Not a directory"});
  }
  EXPECT_EQ(get_file(dir_.file("disk")), "no folder");
}

TEST_F(RefusalTest, EvaluationsWithoutALoss) {
  const Words words = {"eval", "--json", "--memory.disk", dir_.path(), "--data.sequence_len", "2",
                       "--train.micro_batch_tokens", "2", "--model.path"};
  put_file(dir_.file("empty.jsonl"), "{\"text\": \"\"}\n{\"text\": \"\"}\n");
  ProcessResult refused = run(words + Words{dir_.file("model"), "--data.eval_path",
                                            dir_.file("empty.jsonl")});
  expect_refused(refused, 65, {"every text in it is empty"});
  EXPECT_EQ(refused.out, "");
  // Weights so large that products of them overflow.
  const std::string model = copied_model("huge");
  const std::string file = model + "/model.safetensors";
  std::string bytes = get_file(file);
  for (size_t at = bytes.size() - 64 * kKiB; at < bytes.size(); at += 2) {
    bytes.replace(at, 2, "\x7f\x7f", 2);
  }
  put_file(file, bytes);
  refused = run(words + Words{model, "--data.eval_path", dir_.file("text.jsonl")});
  expect_refused(refused, 80, {"not finite"});
  EXPECT_EQ(refused.out, "");
}

TEST_F(RefusalTest, MissingInputs) {
  const std::string none = dir_.file("none");
  expect_refused(run({"ckpt", "ls", none}), 66, {none, "no such folder"});
  expect_refused(run({"ckpt", "verify", none}), 66, {none, "no such folder"});
  expect_refused(run({"eval", "--checkpoint", none, "--data.eval_path", dir_.file("text.jsonl")}),
                 66, {none, "no such folder"});
  expect_bad_model(dir_.file("no-model"), 66, {dir_.file("no-model")});
  fs::remove_all(dir_.file("run"));
  Flags bad = short_run();
  bad["data.path"] = dir_.file("no-text.txt");
  expect_refused_then_works(bad, 66, {"no-text.txt"}, short_run());
}

TEST_F(RefusalTest, TruncatedWeights) {
  const std::string model = copied_model("short");
  const std::string file = model + "/model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 100);
  expect_bad_model(model, 65, {file});
}

TEST_F(RefusalTest, WeightsThatAreNotNumbers) {
  const std::string model = copied_model("nan");
  const std::string file = model + "/model.safetensors";
  std::string bytes = get_file(file);
  const std::string nan = "\xc0\x7f\xc0\x7f";  // NaN as two bf16, and as fp32
  bytes.replace(bytes.size() - 4, 4, nan);
  put_file(file, bytes);
  expect_bad_model(model, 65, {file, "lm_head.weight"});
}

// They are finite as fp32, but rounding makes them infinite.
TEST_F(RefusalTest, WeightsBeyondTheRangeOfBf16) {
  const std::string model = dir_.file("large"), file = model + "/model.safetensors";
  InitOptions options;
  options.config_path = dir_.file("config.json");
  options.out_directory = model;
  options.dtype = DType::kF32;
  ASSERT_TRUE(init_folder(options).ok());
  std::string bytes = get_file(file);
  bytes.replace(bytes.size() - 4, 4, "\xff\xff\x7f\x7f");  // the largest
  put_file(file, bytes);
  const Words names = {model, "lm_head.weight", "3.40282347e+38 at element 8703", "bf16",
                       "train.dtype"};
  expect_bad_model(model, 65, names);
  expect_refused(run({"generate", "--model.path", model, "--prompt", "a", "--max_new_tokens", "1",
                      "--memory.disk", dir_.path()}),
                 65, names);
}

TEST_F(RefusalTest, AMissingTensor) {
  const std::string model = copied_model("renamed");
  const std::string file = model + "/model.safetensors";
  std::string bytes = get_file(file);
  const std::string name = "model.layers.2.mlp.experts.23.up_proj.weight";
  const size_t at = bytes.find(name);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, name.size(), "model.layers.2.mlp.experts.99.up_proj.weight");
  put_file(file, bytes);
  expect_bad_model(model, 65, {"experts."});
}

TEST_F(RefusalTest, AFifoInThePlaceOfWeightsIsRefused) {
  const std::string model = copied_model("fifo");
  const std::string file = model + "/model.safetensors";
  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  expect_bad_model(model, 65, {file, "not a regular file"});
}

TEST_F(RefusalTest, ExpertsInTwoLayouts) {
  const std::string model = copied_model("mixed");
  const std::string file = model + "/model.safetensors";
  std::string bytes = get_file(file);
  // The same bytes under a fused name, and spaces where the longer name was.
  const std::string name = "\"model.layers.2.mlp.experts.23.up_proj.weight\"";
  const size_t at = bytes.find(name);
  ASSERT_NE(at, std::string::npos);
  std::string fused = "\"model.layers.2.mlp.experts.gate_up_proj\"";
  bytes.replace(at, name.size(), fused + std::string(name.size() - fused.size(), ' '));
  put_file(file, bytes);
  expect_bad_model(model, 65, {model, "mixes two layouts of experts", "gate_up_proj"});
}

TEST_F(RefusalTest, ModelsOfAnotherKind) {
  const std::string good = get_file(dir_.file("model") + "/config.json");
  for (const auto& [type, part] :
       {std::array{"llama", "pagoda upcycle"},
        {"deepseek_v4",
         "mixtral, olmoe, qwen2_moe, qwen3_moe, glm4_moe, lfm2_moe, "
         "deepseek_v2, deepseek_v3, glm4_moe_lite, gpt_oss, granitemoe, dots1, "
         "minimax_m2"}}) {
    const std::string model = copied_model("other");
    nlohmann::json config = nlohmann::json::parse(good);
    config["model_type"] = type;
    put_file(model + "/config.json", config.dump());
    expect_bad_model(model, 65, {part});
    fs::remove_all(dir_.file("run"));
    fs::remove_all(model);
  }
}

TEST_F(RefusalTest, HostileConfigs) {
  const std::string good = get_file(dir_.file("model") + "/config.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    CHECK(at != std::string::npos, "%s is not in config.json", from.c_str());
    return text.replace(at, from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"deep", std::string(500000, '[')},
      {"empty", ""},
      {"cut", good.substr(0, good.size() / 2)},
      {"huge", with("\"hidden_size\": 32", "\"hidden_size\": 9223372036854775807")},
      {"zero", with("\"num_experts\": 24", "\"num_experts\": 0")},
      {"negative", with("\"num_hidden_layers\": 3", "\"num_hidden_layers\": -3")},
      {"words", with("\"hidden_size\": 32", "\"hidden_size\": \"thirty-two\"")},
      {"uneven", with("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3")},
      {"escape", with("\"model_type\": \"qwen3_moe\"", "\"model_type\": \"\\u001b[31m\\n\"")},
  };
  for (const auto& [name, text] : cases) {
    SCOPED_TRACE(name);
    const std::string model = copied_model(name);
    put_file(model + "/config.json", text);
    expect_bad_model(model, 65, {model + "/config.json"});
    fs::remove_all(dir_.file("run"));
  }
}

TEST_F(RefusalTest, AnotherTokenizer) {
  const std::string model = copied_model("words");
  std::string text = get_file(model + "/tokenizer.json");
  const size_t at = text.find("\"BPE\"");
  ASSERT_NE(at, std::string::npos);
  put_file(model + "/tokenizer.json", text.replace(at, 5, "\"WordPiece\""));
  expect_bad_model(model, 65, {model + "/tokenizer.json"});
}

TEST_F(RefusalTest, BadText) {
  const std::string line = "{\"text\": \"good line\"}\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {line + line + "{\"text\": \"\xff\xfe\"}\n", "bad.jsonl:3"},
      {line + "{\"text\": 5}\n", "bad.jsonl:2"},
      {line + "{\"text\": \"cut", "bad.jsonl:2"},
      {line + "[]\n", "bad.jsonl:2"},
      {"", "bad.jsonl: has no rows"},
  };
  for (const auto& [text, name] : cases) {
    SCOPED_TRACE(text);
    put_file(dir_.file("bad.jsonl"), text);
    Flags bad = short_run();
    bad["data.path"] = dir_.file("bad.jsonl");
    expect_refused_then_works(bad, 65, Words{name}, short_run());
    fs::remove_all(dir_.file("run"));
  }
}

}  // namespace
}  // namespace pagoda
