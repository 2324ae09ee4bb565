#include "tests/testing/ranks/ranked_run.h"

#include <gtest/gtest.h>

#include "tests/testing/sha256.h"
#include "tests/testing/storage/storage_sim.h"
#include "train/batch.h"

namespace pagoda {
namespace {

void add_page(Session& session, PageId page, int64_t bytes, std::string& content) {
  Stream& s = session.executor().host_stream();
  const PageUse use{page, Place::host(), Access::kRead};
  const Lease lease = session.pager().acquire({&use, 1}, s, 0);
  s.synchronize();
  content.append(reinterpret_cast<const char*>(lease.data(0)), static_cast<size_t>(bytes));
}

}  // namespace

void add_content(Session& session, std::vector<std::string>& content) {
  for (size_t r = 0; r < session.table().records.size(); ++r) {
    const auto record = static_cast<int64_t>(r);
    if (!session.shape().is_home(record)) continue;
    const int64_t n = session.table().records[r].num_elements;
    add_page(session, session.pages().weights(record), n * session.shape().dtype_bytes, content[r]);
    if (!session.shape().trains(record)) continue;
    add_page(session, session.pages().state(record), session.shape().records[r].state_bytes,
             content[r]);
  }
}

std::string text_of(const RankedCase& c) {
  return strf("%d ranks of %d devices, smallest %d, place %d, clip %d, attending %lld, seed %llu",
              c.ranks, c.devices_each, c.smallest, static_cast<int>(c.place),
              static_cast<int>(c.clip), (long long)c.attending, (unsigned long long)c.seed);
}

std::string RankedOutcome::sha256() const {
  Sha256 sha;
  sha.add(losses[0].data(), losses[0].size() * sizeof(double));
  for (const std::string& record : content) sha.add(record.data(), record.size());
  return sha.hex();
}

void expect_alike(const RankedOutcome& outcome) {
  for (size_t r = 0; r < outcome.statuses.size(); ++r) {
    ASSERT_TRUE(outcome.statuses[r].ok()) << "rank " << r << ": " << outcome.statuses[r].message();
    EXPECT_EQ(outcome.losses[r], outcome.losses[0]) << "rank " << r;
    EXPECT_EQ(outcome.generated[r], outcome.generated[0]) << "rank " << r;
  }
}

void expect_ended(const RankedOutcome& outcome, Exit code, const std::string& text) {
  for (const Status& status : outcome.statuses) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(status.message(), outcome.statuses[0].message());
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  }
}

RankedRun::RankedRun(ClipKind clip, DType dtype, const char* model, int64_t microbatch_tokens,
                     int64_t steps, Sharing sharing)
    : run_(dtype, model) {
  if (sharing != Sharing::kRows) run_.config().train.expert_shards = 4;  // the number of shards
  run_.config().parallel.sharing = sharing;
  run_.config().optim.clip = clip;
  run_.config().train.steps = run_.config().train.save_steps = steps;
  run_.config().train.micro_batch_tokens = microbatch_tokens;
  SimStorage storage(1);
  auto trainer = Trainer::start(run_.config(), false, &storage).take();
  std::vector<double> losses;
  while (trainer->steps_done() < run_.config().train.steps) {
    const int64_t rows = microbatch_tokens / run_.config().data.sequence_len;
    const auto first = static_cast<uint64_t>(trainer->rows_consumed());
    batches_.push_back(
        make_batch(trainer->data(), first, run_.config().micro_batches(), rows).take());
    rates_.push_back(trainer->learning_rate());
    losses.push_back(trainer->step().take().loss);
  }
  sha256_ = outcome_hash(*trainer, losses);
}

RankedOutcome RankedRun::on(const RankedCase& c) {
  run_.config().train.devices = cpus(c.ranks * c.devices_each);
  run_.config().parallel.place = c.place;
  run_.config().parallel.attention_devices = c.attending;
  run_.config().parallel.kept_rows = std::to_string(c.kept_rows);
  run_.config().plan = c.plan;
  std::vector<int> endpoint_rank;
  for (int i = 0; i < c.ranks * c.devices_each; ++i) endpoint_rank.push_back(i / c.devices_each);
  for (int i = 0; i < c.ranks; ++i) endpoint_rank.push_back(i);
  RankedOutcome outcome;
  const auto ranks = static_cast<size_t>(c.ranks);
  outcome.statuses.resize(ranks);
  outcome.losses.resize(ranks);
  outcome.generated.resize(ranks);
  outcome.paging.resize(ranks);
  outcome.content.resize(HfFolder::open(run_.config().model.path).value().table().records.size());
  const auto run_rank = [&](RankGroup& group) {
    outcome.statuses[static_cast<size_t>(group.rank())] = program(c, group, outcome);
  };
  if (c.run) {
    c.run(run_rank);
    return outcome;
  }
  RankThreads threads(c.ranks, endpoint_rank, {.seed = c.seed, .fails = c.fails});
  threads.run(run_rank);
  outcome.arrived = threads.arrived();
  outcome.sent = threads.sent();
  return outcome;
}

SessionOptions RankedRun::options_of(const RankedCase& c, RankGroup& group) const {
  SessionOptions options = session_options(run_.config());
  for (size_t d = 0; d < options.devices.size(); ++d) {
    options.devices[d].rank = static_cast<int>(d) / c.devices_each;
    options.devices[d].threads = 1;
  }
  for (int d = 0; d < c.devices_each && c.gpus; ++d) {
    options.gpus.emplace_back().index = group.rank() * c.devices_each + d;
  }
  options.size.on_gpu = c.gpus;
  options.optimizer_threads = 1;
  options.rank = group.rank();
  options.ranks = &group;
  options.device_bytes = options.host_bytes = 64 * kMiB;
  options.directories = {run_.config().train.output_dir + strf("/rank%d", group.rank())};
  options.page_slots = 1;
  if (c.looks) options.size.cache = {2, 24};
  return options;
}

// What a rank does. Only its own part of `outcome` is written.
Status RankedRun::program(const RankedCase& c, RankGroup& group, RankedOutcome& outcome) const {
  const HfFolder folder = HfFolder::open(run_.config().model.path).take();
  SimStorage storage(c.seed * 10 + static_cast<uint64_t>(group.rank()));
  SessionOptions options = options_of(c, group);
  if (c.smallest) {
    ASSIGN_OR_RETURN(const MemoryPlan least, Session::plan(folder.config(), options));
    options.device_bytes = least.min_device_bytes + c.more_bytes;
    options.host_bytes = least.min_host_bytes + c.more_bytes;
  }
  ASSIGN_OR_RETURN(const auto session, Session::create(folder.config(), options, &storage));
  RETURN_IF_ERROR(load_weights(*weights_of_folder(folder), *session));
  Ledger ledger(false, 0, std::vector<int64_t>(session->table().records.size(), 0));
  StepRunner runner(session.get(), &ledger, run_.config().optim.clip_norm);
  if (c.faulty == group.rank()) storage.inject({.calls = kSimRead, .nth = c.fault_at});
  if (c.loaded) c.loaded(*session);
  const Paging before = Paging::so_far(*session);
  for (size_t i = 0; i < batches_.size(); ++i) {
    ASSIGN_OR_RETURN(const StepResult step, runner.train(batches_[i], rates_[i]));
    outcome.losses[static_cast<size_t>(group.rank())].push_back(step.loss);
    if (c.stepped) c.stepped(*session, step);
    if (c.looks && i % 2 == 1) RETURN_IF_ERROR(look(*session, runner, group.rank(), outcome));
  }
  outcome.paging[static_cast<size_t>(group.rank())] = Paging::so_far(*session) - before;
  RETURN_IF_ERROR(runner.drain());
  add_content(*session, outcome.content);
  return group.agree(session->pager().status());
}

Status RankedRun::look(Session& session, StepRunner& runner, int rank,
                       RankedOutcome& outcome) const {
  RETURN_IF_ERROR(runner.drain());
  ASSIGN_OR_RETURN(const LossSum sum, runner.evaluate(batches_[0]));
  outcome.losses[static_cast<size_t>(rank)].push_back(sum.loss);
  PassRunner passes(&session);
  GenerationSettings settings;
  settings.max_new_tokens = 6;
  ASSIGN_OR_RETURN(const std::vector<Continuation> continued,
                   generate(passes, {{5, 60, 7}, {100, 101}}, settings));
  for (const Continuation& continuation : continued) {
    outcome.generated[static_cast<size_t>(rank)].push_back(continuation.tokens);
  }
  return Status();
}

}  // namespace pagoda
