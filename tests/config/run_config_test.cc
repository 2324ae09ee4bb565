#include "config/run_config.h"

#include <gtest/gtest.h>

#include "cli/run_file.h"
#include "hardware/machine.h"
#include "hardware/numa.h"

namespace pagoda {
namespace {

RunConfig complete_config() {
  RunConfig config;
  config.model.path = "model";
  config.data.path = {"book.txt", "more.jsonl"};
  config.train.output_dir = "run";
  return config;
}

// The reference for what a config says: every option's key and TOML text.
std::string everything(RunConfig config) {
  OptionTable table;
  config.declare(table);
  std::string text;
  for (const Option& option : table.options()) text += option.key + "=" + option.toml() + "\n";
  return text;
}

// A value unlike the default for any option.
std::vector<std::string> other_value(const Option& option) {
  if (const auto* choice = std::get_if<ChoiceTarget>(&option.target)) {
    return {choice->names[(choice->get() + 1) % choice->names.size()]};
  }
  if (std::holds_alternative<int64_t*>(option.target)) {
    return {std::to_string(*std::get<int64_t*>(option.target) + 3)};
  }
  if (std::holds_alternative<CountOrAuto>(option.target)) {
    return {option.text() == "auto" ? "5" : "auto"};
  }
  if (std::holds_alternative<double*>(option.target) ||
      std::holds_alternative<RealOrAuto>(option.target)) {
    return {"0.12345678901234567"};
  }
  if (std::holds_alternative<bool*>(option.target))
    return {option.text() == "true" ? "false" : "true"};
  if (std::holds_alternative<MemorySize*>(option.target)) return {"123MiB"};
  if (std::holds_alternative<MemorySizes*>(option.target)) return {"123MiB", "50%", "auto"};
  if (option.is_list()) return {"x \"quoted\"", "y\\z", "\xc3\xa4\x01#"};
  return {"text = \"odd\" # \xe2\x82\xac"};
}

Result<RunConfig> read_back(const std::string& toml) {
  RunConfig config;
  OptionTable table;
  config.declare(table);
  Result<std::vector<RunFileItem>> items = parse_run_file(toml, "resolved.toml", table);
  if (!items.ok()) return items.status();
  for (const RunFileItem& item : *items) RETURN_IF_ERROR(table.find(item.key)->assign(item.texts));
  return config;
}

TEST(RunConfig, DefaultsAreValid) {
  EXPECT_TRUE(RunConfig().validate().ok()) << RunConfig().validate().message();
  EXPECT_TRUE(complete_config().validate_for_training().ok());
}

TEST(RunConfig, ResolvedTomlReadsBackEqual) {
  RunConfig config;
  OptionTable table;
  config.declare(table);
  for (const Option& option : table.options()) {
    ASSERT_TRUE(option.assign(other_value(option)).ok()) << option.key;
    ASSERT_NE(option.text(), option.default_text) << option.key;
  }
  Result<RunConfig> back = read_back(config.to_toml());
  ASSERT_TRUE(back.ok()) << back.status().message() << "\n" << config.to_toml();
  EXPECT_EQ(everything(*back), everything(config));
  Result<RunConfig> plain = read_back(RunConfig().to_toml());
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(everything(*plain), everything(RunConfig()));
}

// Options that change no result.
const std::vector<std::string> kHarmless = {"model.path",
                                            "data.path",
                                            "train.devices",
                                            "data.eval_path",
                                            "train.output_dir",
                                            "train.save_steps",
                                            "train.eval_steps",
                                            "train.eval_batches",
                                            "train.early_stop",
                                            "train.keep_best",
                                            "train.keep_copies",
                                            "train.tensorboard",
                                            "train.watch_steps",
                                            "train.watch_load",
                                            "train.log_steps",
                                            "train.threads",
                                            "parallel.layout",
                                            "parallel.attention_devices",
                                            "parallel.offloaded",
                                            "parallel.lags",
                                            "parallel.kept_rows",
                                            "parallel.stages",
                                            "parallel.stage_layers",
                                            "parallel.copies",
                                            "parallel.order",
                                            "parallel.exchange",
                                            "parallel.network_gb_s",
                                            "parallel.shares",
                                            "parallel.place",
                                            "parallel.sharing",
                                            "parallel.migrate_steps",
                                            "train.trace_steps",
                                            "memory.device",
                                            "memory.host",
                                            "memory.disk",
                                            "memory.io",
                                            "memory.pin",
                                            "sample.prompts",
                                            "sample.max_new_tokens",
                                            "memory.drive_tbw",
                                            "train.optimizer_threads",
                                            "parallel.deadline_s",
                                            "parallel.work_s",
                                            "parallel.heartbeat_s",
                                            "parallel.ports",
                                            "parallel.nccl",
                                            "sample.steps",
                                            "sample.chat",
                                            "plan.prefetch",
                                            "plan.optimizer_at_end",
                                            "plan.whole_layers",
                                            "plan.microbatch_major",
                                            "plan.padded_experts",
                                            "train.trace_routing",
                                            "plan.in_place",
                                            "plan.send_ahead",
                                            "plan.group_blocks",
                                            "plan.waves_in_flight"};

TEST(RunConfig, HashFollowsExactlyTheOptionsThatAffectResults) {
  const uint64_t before = complete_config().config_hash();
  EXPECT_EQ(before, complete_config().config_hash());
  RunConfig names;
  OptionTable keys;
  names.declare(keys);
  for (const Option& key : keys.options()) {
    RunConfig config = complete_config();
    OptionTable table;
    config.declare(table);
    const Option& option = *table.find(key.key);
    ASSERT_TRUE(option.assign(other_value(option)).ok());
    const bool same = std::find(kHarmless.begin(), kHarmless.end(), key.key) != kHarmless.end();
    EXPECT_EQ(config.config_hash() == before, same) << key.key;
  }
}

// A build with other options: those it adds were at their defaults, those it lacks are named.
TEST(RunConfig, DifferencesFromAnotherBuild) {
  RunConfig config = complete_config();
  std::string saved = config.to_toml();
  EXPECT_EQ(config.difference_from(saved), "");
  const std::string line = "expert_shards = 1\n";
  const size_t at = saved.find(line);
  ASSERT_NE(at, std::string::npos);
  saved.erase(at, line.size());
  EXPECT_EQ(config.difference_from(saved), "");
  config.train.expert_shards = 4;
  EXPECT_EQ(config.difference_from(saved), "train.expert_shards is 4, was 1");
  config.train.expert_shards = 1;
  saved.insert(at, "layer_shards = 3\n");
  EXPECT_EQ(config.difference_from(saved), "train.layer_shards is no option of this build, was 3");
}

TEST(RunConfig, WhatIsFrozenIsReadFromACheckpoint) {
  RunConfig config;
  EXPECT_EQ(RunConfig::saved_freeze(config.to_toml()), std::vector<std::string>());
  EXPECT_EQ(RunConfig::saved_freeze("[train]\nsteps = 3\n"), std::vector<std::string>());
  config.train.freeze = {"router", "model.layers.?.*"};
  EXPECT_EQ(RunConfig::saved_freeze(config.to_toml()), config.train.freeze);
  EXPECT_NE(RunConfig().config_hash(), config.config_hash());
}

TEST(RunConfig, StepsCountOnlyWhereTheRateDependsOnThem) {
  RunConfig a = complete_config(), b = complete_config();
  a.optim.schedule = b.optim.schedule = ScheduleKind::kConstant;
  b.train.steps = a.train.steps + 5;
  EXPECT_EQ(a.config_hash(), b.config_hash());
  a.optim.schedule = b.optim.schedule = ScheduleKind::kLinear;
  EXPECT_NE(a.config_hash(), b.config_hash());
}

struct Wrong {
  const char* key;
  std::vector<std::string> texts;
  const char* names;  // must appear in the message
};

TEST(RunConfig, RefusalsNameKeyValueAndRemedy) {
  for (const Wrong& wrong : {Wrong{"data.sequence_len", {"1000"}, "multiple of data.sequence_len"},
                             Wrong{"data.sequence_len", {"1"}, "from 2"},
                             Wrong{"data.fields", {"promt=q"}, "did you mean \"prompt\"?"},
                             Wrong{"data.chat_template", {"chatlm"}, "mean \"chatml\"?"},
                             Wrong{"train.steps", {"0"}, "from 1"},
                             Wrong{"train.tokens_per_step", {"5000"}, "use 4096 or 8192"},
                             Wrong{"train.tokens_per_step", {"100"}, "use 4096"},
                             Wrong{"train.tokens_per_step", {"0"}, "from 1"},
                             Wrong{"train.micro_batch_tokens", {"1500"}, "use 1024 or 2048"},
                             Wrong{"train.chunks", {"3"}, "the step's 4 microbatches"},
                             Wrong{"train.chunks", {"0"}, "from 1"},
                             Wrong{"train.shards", {"3"}, "auto takes 4"},
                             Wrong{"train.shards", {"65"}, "from 0 to 64"},
                             Wrong{"train.expert_shards", {"2"}, "which is 4"},
                             Wrong{"train.expert_shards", {"0"}, "from 1 to 64"},
                             Wrong{"parallel.sharing", {"data"}, "train.expert_shards = 4"},
                             Wrong{"plan.group_blocks", {"129"}, "auto or from 1 to 128"},
                             Wrong{"plan.waves_in_flight", {"1"}, "auto or from 2 to 8"},
                             Wrong{"plan.waves_in_flight", {"9"}, "auto or from 2 to 8"},
                             Wrong{"train.seed", {"-1"}, "from 0"},
                             Wrong{"train.save_steps", {"-1"}, "from 0"},
                             Wrong{"train.eval_steps", {"-1"}, "from 0"},
                             Wrong{"train.eval_batches", {"0"}, "from 1"},
                             Wrong{"train.log_steps", {"0"}, "from 1"},
                             Wrong{"train.watch_steps", {"-1"}, "from 0"},
                             Wrong{"train.watch_load", {"0.5"}, "0 or above 1"},
                             Wrong{"train.watch_load", {"-2"}, "0 or above 1"},
                             Wrong{"train.threads", {"-1"}, "from 0"},
                             Wrong{"train.optimizer_threads", {"1025"}, "from 0 to 1024"},
                             Wrong{"train.devices", {"gpu"}, "name cpu or cuda"},
                             Wrong{"optim.learning_rate", {"0"}, "above 0"},
                             Wrong{"optim.weight_decay", {"-0.1"}, "negative"},
                             Wrong{"optim.beta1", {"1"}, "below 1"},
                             Wrong{"optim.beta2", {"-0.5"}, "below 1"},
                             Wrong{"optim.eps", {"0"}, "above 0"},
                             Wrong{"train.freeze", {"router", "a b"}, "a word as router"},
                             Wrong{"train.freeze", {""}, "a word as router"},
                             Wrong{"optim.balance_loss", {"2e6"}, "auto or from 0 to 1e6"},
                             Wrong{"optim.z_loss", {"-0.1"}, "from 0 to 1e6"},
                             Wrong{"optim.z_loss", {"1e9"}, "from 0 to 1e6"},
                             Wrong{"optim.clip_norm", {"0"}, "optim.clip"},
                             Wrong{"optim.warmup_steps", {"1001"}, "train.steps = 1000"},
                             Wrong{"optim.warmup_steps", {"-1"}, "from 0"},
                             Wrong{"memory.device", {"0B"}, "above 0"},
                             Wrong{"memory.device", {"1GiB", "2GiB"}, "2 budgets"},
                             Wrong{"memory.host", {"0B"}, "above 0"},
                             Wrong{"memory.pin", {"101%"}, "percentage"},
                             Wrong{"memory.pin", {"25"}, "percentage"},
                             Wrong{"memory.drive_tbw", {"-1"}, "negative"},
                             Wrong{"memory.disk", {"a", "a"}, "twice"},
                             Wrong{"memory.disk", {""}, "folder"},
                             Wrong{"data.path", {""}, "name a file"},
                             Wrong{"data.path", {}, "is missing"},
                             Wrong{"model.path", {""}, "is missing"},
                             Wrong{"train.output_dir", {""}, "is missing"}}) {
    RunConfig config = complete_config();
    OptionTable table;
    config.declare(table);
    ASSERT_TRUE(table.find(wrong.key)->assign(wrong.texts).ok()) << wrong.key;
    const Status status = config.validate_for_training();
    ASSERT_FALSE(status.ok()) << wrong.key;
    EXPECT_EQ(status.code(), Exit::kUsage);
    EXPECT_NE(status.message().find(wrong.names), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

// Weights of experts travel where gradients are summed by shards, of which there are several.
TEST(RunConfig, SharingByDataNeedsShardsOfExperts) {
  RunConfig config = complete_config();
  OptionTable table;
  config.declare(table);
  for (const char* text : {"", "Model", "Data", "weights", "rows,data"}) {
    const Status status = table.find("parallel.sharing")->assign({text});
    EXPECT_EQ(status.code(), Exit::kUsage) << text;
    EXPECT_NE(status.message().find("parallel.sharing"), std::string::npos) << status.message();
    EXPECT_EQ(config.parallel.sharing, Sharing::kAuto) << text;
  }
  for (const Sharing sharing : {Sharing::kAuto, Sharing::kRows}) {
    config.parallel.sharing = sharing;
    EXPECT_TRUE(config.validate_for_training().ok());
  }
  config.parallel.sharing = Sharing::kData;
  config.train.expert_shards = 4;
  EXPECT_TRUE(config.validate_for_training().ok());
  config.train.shards = 2;
  EXPECT_EQ(config.validate_for_training().code(), Exit::kUsage);
  config.train.expert_shards = 2;
  EXPECT_TRUE(config.validate_for_training().ok());
  config.train.shards = config.train.expert_shards = 1;
  const Status status = config.validate_for_training();
  EXPECT_EQ(status.code(), Exit::kUsage);
  EXPECT_NE(status.message().find("2 at least"), std::string::npos) << status.message();
}

TEST(RunConfig, NetworkCardsAreRates) {
  RunConfig config = complete_config();
  EXPECT_TRUE(config.network_rates().empty());
  config.parallel.network_gb_s = {"12.5", "1e2", "40"};
  EXPECT_TRUE(config.validate_for_training().ok());
  EXPECT_EQ(config.network_rates(), (std::vector<double>{12.5, 100, 40}));
  for (const char* text : {"0", "-1", "fast", "", "1e9", "nan", "inf"}) {
    config.parallel.network_gb_s = {"1", text};
    const Status status = config.validate_for_training();
    EXPECT_EQ(status.code(), Exit::kUsage) << text;
    EXPECT_NE(status.message().find("a rate for each process"), std::string::npos)
        << status.message();
  }
}

TEST(RunConfig, HiddenSharesDetermineBits) {
  RunConfig config = complete_config();
  const uint64_t whole = config.config_hash();
  config.parallel.sharing = Sharing::kModel;
  const auto refused = [&](const std::string& text) {
    const Status status = config.validate_for_training();
    EXPECT_EQ(status.code(), Exit::kUsage) << text;
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  refused("needs parallel.hidden_shares");
  config.parallel.hidden_shares = {"10", "6"};
  EXPECT_TRUE(config.validate_for_training().ok());
  EXPECT_EQ(config.hidden_shares(), (std::vector<int64_t>{10, 6}));
  EXPECT_EQ(RunConfig::saved_hidden_shares(config.to_toml()), config.hidden_shares());
  EXPECT_NE(config.config_hash(), whole);
  for (const char* text : {"0", "-1", "1.5", "speed", ""}) {
    config.parallel.hidden_shares = {"1", text};
    refused("whole numbers from 1");
  }
  config.parallel.hidden_shares = {"10", "6"};
  config.parallel.migrate_steps = 4;
  refused("parallel.migrate_steps = 0");
  config.parallel.migrate_steps = 0;
  config.optim.clip = ClipKind::kPerExpert;
  refused("optim.clip");
  config.optim.clip = ClipKind::kGlobal;
  for (const LayoutKind layout : {LayoutKind::kZebra, LayoutKind::kPipeline}) {
    RunConfig other = config;
    other.parallel.layout = layout;
    other.train.devices = {"cpu*4"};
    other.train.chunks = 2;
    other.parallel.attention_devices = 2;
    const Status status = other.validate();
    EXPECT_EQ(status.code(), Exit::kUsage);
    EXPECT_NE(status.message().find("model"), std::string::npos) << status.message();
  }
  config.parallel.sharing = Sharing::kAuto;
  refused("parallel.sharing = model");
}

// Four microbatches a step make four shards.
TEST(RunConfig, ADeviceThatAttendsHasAShard) {
  RunConfig config = complete_config();
  config.train.devices = {"cpu*6"};
  EXPECT_TRUE(config.validate().ok());
  EXPECT_EQ(config.attention_devices(std::ssize(config.devices())), 4);
  config.parallel.attention_devices = 3;
  EXPECT_TRUE(config.validate().ok());
  EXPECT_EQ(config.attention_devices(std::ssize(config.devices())), 3);
  config.parallel.attention_devices = 5;
  EXPECT_TRUE(config.validate_for_training().ok()) << "a checkpoint may have more shards";
  const Status status = config.validate();
  EXPECT_EQ(status.code(), Exit::kMismatch);
  EXPECT_NE(status.message().find("let at most 4 attend"), std::string::npos) << status.message();
  config.parallel.attention_devices = 7;
  EXPECT_EQ(config.validate_for_training().code(), Exit::kUsage) << "more than there are";
}

TEST(RunConfig, ZebraNeedsChunksAndDevicesThatDoNotAttend) {
  RunConfig config = complete_config();
  config.parallel.layout = LayoutKind::kZebra;
  config.train.devices = {"cpu*4"};
  EXPECT_EQ(config.validate().code(), Exit::kMismatch);
  EXPECT_NE(config.validate().message().find("train.chunks"), std::string::npos);
  config.train.chunks = 2;
  EXPECT_TRUE(config.validate().ok()) << config.validate().message();
  EXPECT_EQ(config.attention_devices(std::ssize(config.devices())), 2);
  EXPECT_EQ(config.lags(), (Lags{1, 1, 1}));
  config.parallel.attention_devices = 4;
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  config.parallel.attention_devices = 1;
  config.parallel.lags = {"2", "0", "2"};
  EXPECT_TRUE(config.validate().ok());
  EXPECT_EQ(config.lags(), (Lags{2, 0, 2}));
  config.parallel.lags = {"2", "0"};
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  config.parallel.lags = {"auto"};
  config.parallel.offloaded = {"3", "-1"};
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  config.parallel.offloaded = {"3", "1"};
  EXPECT_EQ(config.offloaded(), (std::vector<int64_t>{3, 1}));
  config.parallel.kept_rows = "many";
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  config.parallel.kept_rows = "300";
  EXPECT_TRUE(config.validate().ok()) << config.validate().message();
  EXPECT_EQ(config.kept_rows(), 300);
  config.train.devices = {"cpu"};
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
}

TEST(RunConfig, PipelinesNeedADeviceForEachStage) {
  RunConfig config = complete_config();
  config.train.devices = {"cpu*4"};
  config.parallel.stages = 5;
  EXPECT_TRUE(config.validate().ok()) << "nobody asks for stages";
  EXPECT_EQ(config.stages(), 1);
  config.parallel.layout = LayoutKind::kPipeline;
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  EXPECT_NE(config.validate().message().find("parallel.stages = 5"), std::string::npos);
  config.parallel.stages = 4;
  EXPECT_TRUE(config.validate().ok()) << config.validate().message();
  EXPECT_EQ(config.stages(), 4);
  config.plan.microbatch_major = true;
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  config.plan.microbatch_major = false;
  config.plan.padded_experts = true;
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  config.plan.padded_experts = false;
  config.parallel.stages = 0;
  EXPECT_EQ(config.stages(), 2);
  config.parallel.layout = LayoutKind::kExperts;
  EXPECT_EQ(config.stages(), 1);
  config.parallel.stages = -1;
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
}

TEST(RunConfig, StageLayersAreANumberForEachStage) {
  RunConfig config = complete_config();
  config.train.devices = {"cpu*4"};
  config.parallel.layout = LayoutKind::kPipeline;
  config.parallel.stages = 2;
  EXPECT_EQ(config.stage_layers(), std::vector<int64_t>());
  config.parallel.stage_layers = {"3", "5"};
  EXPECT_TRUE(config.validate().ok()) << config.validate().message();
  EXPECT_EQ(config.stage_layers(), (std::vector<int64_t>{3, 5}));
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {}, {"8"}, {"3", "3", "2"}, {"0", "8"}, {"auto", "8"}, {"-1", "9"}, {"3", "5x"}}) {
    config.parallel.stage_layers = bad;
    EXPECT_EQ(config.validate().code(), Exit::kUsage);
    EXPECT_NE(config.validate().message().find("parallel.stage_layers"), std::string::npos);
  }
  config.parallel.stage_layers = {"8"};
  config.parallel.layout = LayoutKind::kExperts;
  EXPECT_TRUE(config.validate().ok()) << "nobody asks for stages";
}

// Each stage of a zebra run has a device that attends and one that does not.
TEST(RunConfig, ZebraInStagesNeedsBothKindsInEach) {
  RunConfig config = complete_config();
  config.parallel.layout = LayoutKind::kZebra;
  config.train.chunks = 2;
  config.train.devices = {"cpu*5"};
  EXPECT_EQ(config.stages(), 1);
  EXPECT_EQ(config.attention_devices(5), 2);
  config.parallel.stages = 2;
  EXPECT_TRUE(config.validate().ok()) << config.validate().message();
  EXPECT_EQ(config.stages(), 2);
  EXPECT_EQ(config.attention_devices(5), 1);
  config.parallel.attention_devices = 2;
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  config.parallel.attention_devices = 1;
  config.parallel.stages = 3;
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  EXPECT_NE(config.validate().message().find("parallel.stages"), std::string::npos);
}

TEST(RunConfig, CopiesNeedTheirDevicesAndSums) {
  RunConfig config = complete_config();
  config.train.devices = {"cpu*4"};
  config.parallel.copies = 2;
  EXPECT_EQ(config.validate().code(), Exit::kMismatch);
  EXPECT_NE(config.validate().message().find("train.expert_shards"), std::string::npos);
  config.train.expert_shards = config.sums().shards;
  ASSERT_GE(config.sums().shards, 2);
  EXPECT_TRUE(config.validate().ok()) << config.validate().message();
  config.parallel.copies = 5;
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  config.parallel.copies = 2;
  config.parallel.sharing = Sharing::kData;
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  config.parallel.sharing = Sharing::kAuto;
  config.parallel.migrate_steps = 10;
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  config.parallel.migrate_steps = 0;
  config.memory.pin = "50%";
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
  config.memory.pin = "auto";
  config.parallel.layout = LayoutKind::kPipeline;
  config.parallel.stages = 3;
  EXPECT_EQ(config.validate().code(), Exit::kUsage);
}

TEST(RunConfig, DerivedValues) {
  RunConfig config = complete_config();
  EXPECT_EQ(config.disk_directories(), std::vector<std::string>{"run/store"});
  config.memory.disk = {"/nvme0", "/nvme1"};
  EXPECT_EQ(config.disk_directories(), config.memory.disk);
  EXPECT_EQ(config.compute_threads(), usable_cores());
  config.train.threads = 3;
  EXPECT_EQ(config.compute_threads(), 3);
  EXPECT_EQ(config.optimizer_threads(), 3);
  config.train.threads = 1000;
  EXPECT_EQ(config.optimizer_threads(), 16 * static_cast<int>(numa_nodes().size()));
  config.train.optimizer_threads = 20;
  EXPECT_EQ(config.optimizer_threads(), 20);
  EXPECT_EQ(config.micro_batches(), 4);
  config.memory.device = MemorySize::of_bytes(12345);
  EXPECT_EQ(config.device_bytes(), 12345);
  config.memory.host = MemorySize::of_percent(50);
  const int64_t usable = machine_memory().usable_bytes();
  EXPECT_GT(usable, 0);
  EXPECT_NEAR(static_cast<double>(config.host_bytes()), 0.5 * static_cast<double>(usable), 1.0);
}

// A list has a budget for each device. CPU devices share the machine's memory, but not an amount.
TEST(RunConfig, EachDeviceHasItsBudget) {
  RunConfig config = complete_config();
  config.train.devices = {"cpu*2", "cpu/8"};
  config.memory.device = MemorySize::of_bytes(12345);
  EXPECT_TRUE(config.validate().ok());
  for (int d = 0; d < 3; ++d) EXPECT_EQ(config.device_budget().of(d), 12345);
  const int64_t third = machine_memory().usable_bytes() / 3;
  config.memory.device = MemorySizes();
  for (int d = 0; d < 3; ++d) {
    EXPECT_EQ(config.device_budget().of(d), static_cast<int64_t>(0.3 * double(third)));
  }
  config.memory.device = MemorySizes(
      {MemorySize::of_bytes(777), MemorySize::of_percent(100), MemorySize::of_bytes(99)});
  EXPECT_TRUE(config.validate().ok());
  EXPECT_EQ(config.device_budget().of(0), 777);
  EXPECT_EQ(config.device_budget().of(1), third);
  EXPECT_EQ(config.device_budget().of(2), 99);
  EXPECT_EQ(config.device_bytes(), 777);
  config.train.devices = {"cpu*2"};
  const Status status = config.validate();
  EXPECT_EQ(status.code(), Exit::kUsage);
  EXPECT_NE(status.message().find("3 budgets and train.devices has 2"), std::string::npos)
      << status.message();
}

TEST(RunConfig, TraceStepsAreFirstAndLast) {
  RunConfig config = complete_config();
  EXPECT_FALSE(config.trace_range().has_value());
  config.train.trace_steps = "3:12";
  ASSERT_TRUE(config.validate().ok()) << config.validate().message();
  EXPECT_EQ(config.trace_range()->first, 3);
  EXPECT_EQ(config.trace_range()->last, 12);
  for (const char* wrong : {"5", "0:3", "4:3", ":", "1:", "a:b", "1:2:3", "-1:3", "1 : 2"}) {
    config.train.trace_steps = wrong;
    const Status status = config.validate();
    EXPECT_EQ(status.code(), Exit::kUsage) << wrong;
    EXPECT_NE(status.message().find("train.trace_steps = \"" + std::string(wrong)),
              std::string::npos)
        << status.message();
  }
}

TEST(RunConfig, PortsAreARange) {
  RunConfig config = complete_config();
  EXPECT_EQ(config.port_range().last, 0);
  config.parallel.ports = "7000:7099";
  ASSERT_TRUE(config.validate().ok()) << config.validate().message();
  EXPECT_EQ(config.port_range().first, 7000);
  EXPECT_EQ(config.port_range().last, 7099);
  for (const char* wrong : {"7000", "0:3", "4:3", "7000:65536", "a:b", "7000-7099"}) {
    config.parallel.ports = wrong;
    const Status status = config.validate();
    EXPECT_EQ(status.code(), Exit::kUsage) << wrong;
    EXPECT_NE(status.message().find("parallel.ports = \"" + std::string(wrong)), std::string::npos)
        << status.message();
  }
}

}  // namespace
}  // namespace pagoda
