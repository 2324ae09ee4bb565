#include "tests/testing/tiny_run.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/init_folder.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/sha256.h"

namespace pagoda {
namespace {

void add_page(Trainer& trainer, PageId page, int64_t bytes, Sha256& sha) {
  Session& session = trainer.session();
  Stream& s = session.executor().host_stream();
  const PageUse use{page, Place::host(), Access::kRead};
  const Lease lease = session.pager().acquire({&use, 1}, s, 0);
  s.synchronize();
  sha.add(lease.data(0), static_cast<size_t>(bytes));
}

}  // namespace

std::string tiny_with(const char* changes) {
  Json config = Json::parse(kTinyConfig);
  config.merge_patch(Json::parse(changes));
  return config.dump();
}

TinyRun::TinyRun(DType dtype, const char* model_config) {
  put_file(dir_.file("config.json"), model_config);
  InitOptions init;
  init.config_path = dir_.file("config.json");
  init.out_directory = dir_.file("model");
  init.seed = 7;
  const Status made = init_folder(init);
  CHECK(made.ok(), "%s", made.message().c_str());
  std::string text;
  for (int i = 0; i < 120; ++i) {
    const std::string words(static_cast<size_t>(5 + i * 37 % 90),
                            static_cast<char>('a' + i % 26));
    text += "{\"text\": \"" + strf("row %d ", i) + words + "\"}\n";
  }
  put_file(dir_.file("text.jsonl"), text);
  config_.model.path = dir_.file("model");
  config_.data.path = {dir_.file("text.jsonl")};
  config_.data.sequence_len = 32;
  config_.train.steps = 6;
  config_.train.tokens_per_step = 128;
  config_.train.micro_batch_tokens = 64;
  config_.train.seed = 3;
  config_.train.dtype = dtype;
  config_.train.devices = {"cpu"};
  new_run();
  config_.train.save_steps = 6;
  config_.train.eval_steps = 0;
  config_.train.threads = 2;
  config_.optim.learning_rate = 3e-3;
  config_.optim.weight_decay = 0.1;
  config_.optim.warmup_steps = 2;
  config_.memory.device = config_.memory.host = MemorySize::of_bytes(64 * kMiB);
}

std::vector<std::string> cpus(int64_t count) { return {strf("cpu*%lld", (long long)count)}; }

void TinyRun::new_run() {
  config_.train.output_dir = dir_.file(strf("run-%d", ++runs_));
  CHECK(std::filesystem::create_directory(config_.train.output_dir));
}

void TinyRun::use_minimum_budgets() {
  HfFolder folder = std::move(HfFolder::open(config_.model.path).value());
  const auto prompts = sample_prompts(config_, folder);
  CHECK(prompts.ok(), "%s", prompts.status().message().c_str());
  SessionOptions options = session_options(config_, prompts.value());
  CHECK(set_frozen(config_, folder.config(), options).ok());
  const auto plan = Session::plan(folder.config(), options);
  CHECK(plan.ok(), "%s", plan.status().message().c_str());
  config_.memory.device = MemorySize::of_bytes(plan.value().min_device_bytes);
  config_.memory.host = MemorySize::of_bytes(plan.value().min_host_bytes);
}

Paging Paging::so_far(Session& session) {
  const Pager& pager = session.pager();
  return {pager.counters().fetches, pager.residency().evictions(), pager.counters().write_backs};
}

Paging Paging::operator-(const Paging& before) const {
  return {fetches - before.fetches, evictions - before.evictions,
          write_backs - before.write_backs};
}

void expect_paged(const Paging& paging) {
  EXPECT_GT(paging.fetches, 0) << "no disk read";
  EXPECT_GT(paging.evictions, 0) << "no eviction";
  EXPECT_GT(paging.write_backs, 0) << "no write back";
}

void expect_in_place(const Executor::RowBytes& bytes, bool reads, bool adds) {
  EXPECT_EQ(bytes.in_place > 0, reads);
  EXPECT_EQ(bytes.added > 0, adds);
  EXPECT_EQ(bytes.combined == 0, adds);
}

std::string outcome_hash(Trainer& trainer, const std::vector<double>& losses) {
  const Status saved = trainer.save();
  CHECK(saved.ok(), "%s", saved.message().c_str());
  Sha256 sha;
  sha.add(losses.data(), losses.size() * sizeof(double));
  Session& session = trainer.session();
  for (size_t r = 0; r < session.table().records.size(); ++r) {
    const int64_t n = session.table().records[r].num_elements;
    const auto record = static_cast<int64_t>(r);
    add_page(trainer, session.pages().weights(record), n * session.shape().dtype_bytes, sha);
    if (!session.shape().trains(record)) continue;
    add_page(trainer, session.pages().state(record), session.shape().records[r].state_bytes, sha);
  }
  return sha.hex();
}

Outcome run_to_end(const RunConfig& config, Storage* storage, int64_t stop_at) {
  Outcome outcome;
  bool resume = false;
  for (int64_t end : {stop_at, config.train.steps}) {
    if (end < 0) continue;
    auto started = Trainer::start(config, resume, storage);
    if (!started.ok()) return {started.status(), "", {}, {}};
    Trainer& trainer = **started;
    const Paging before = Paging::so_far(trainer.session());
    while (trainer.steps_done() < end) {
      auto result = trainer.step();
      if (!result.ok()) return {result.status(), "", {}, {}};
      outcome.losses.push_back(result->loss);
    }
    outcome.paging = Paging::so_far(trainer.session()) - before;
    outcome.row_bytes = trainer.session().executor().row_bytes();
    if (const Link* link = trainer.session().link()) {
      for (const auto& [pair, count] : link->counts()) outcome.sent_bytes[pair] = count.bytes;
    }
    if (end == config.train.steps) outcome.sha256 = outcome_hash(trainer, outcome.losses);
    outcome.status = trainer.save();
    if (!outcome.status.ok()) return outcome;
    resume = true;
  }
  return outcome;
}

}  // namespace pagoda
