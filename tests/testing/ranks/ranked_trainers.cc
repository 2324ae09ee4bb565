#include "tests/testing/ranks/ranked_trainers.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "model/hidden_parts.h"
#include "tests/testing/ranks/ranked_run.h"
#include "tests/testing/sha256.h"
#include "tests/testing/storage/storage_sim.h"

namespace pagoda {
bool LegOutcome::ok() const {
  for (const Status& status : statuses) {
    if (!status.ok()) return false;
  }
  return true;
}

RunLeg TwoMachines::leg() {
  RunLeg leg{2, 1};
  leg.storage = [this](int rank) { return machines[rank]; };
  return leg;
}

void TwoMachines::restart() {
  for (SimStorage* machine : machines) machine->restart();
}

void expect_ok(const LegOutcome& outcome) {
  for (size_t r = 0; r < outcome.statuses.size(); ++r) {
    ASSERT_TRUE(outcome.statuses[r].ok()) << "rank " << r << ": " << outcome.statuses[r].message();
  }
}

void expect_all_ended(const LegOutcome& outcome, Exit code, const std::string& text) {
  for (const Status& status : outcome.statuses) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(status.message(), outcome.statuses[0].message());
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  }
}

RankedTrainers::RankedTrainers(ClipKind clip, int64_t steps,
                               const std::function<void(RunConfig&)>& change, const char* model)
    : run_(DType::kBF16, tiny_with(model).c_str()) {
  RunConfig& config = run_.config();
  config.optim.clip = clip;
  config.train.steps = steps;
  config.train.micro_batch_tokens = 32;  // four microbatches a step
  config.train.threads = 1;
  config.train.optimizer_threads = 1;
  if (change) change(config);
  SimStorage storage(1);
  const Outcome outcome = run_to_end(config, &storage);
  CHECK(outcome.status.ok(), "%s", outcome.status.message().c_str());
  expected_ = outcome.sha256;
  begin();
}

void RankedTrainers::begin() {
  std::filesystem::remove_all(run_.config().train.output_dir);
  run_.new_run();
  losses_.clear();
  content_.clear();
}

LegOutcome RankedTrainers::run(const RunLeg& leg) {
  std::vector<int> endpoint_rank;
  for (int i = 0; i < leg.ranks * leg.devices_each; ++i) {
    endpoint_rank.push_back(i / leg.devices_each);
  }
  for (int i = 0; i < leg.ranks; ++i) endpoint_rank.push_back(i);
  LegOutcome outcome;
  const auto ranks = static_cast<size_t>(leg.ranks);
  outcome.statuses.resize(ranks);
  outcome.paging.resize(ranks);
  outcome.row_bytes.resize(ranks);
  const HfFolder folder = HfFolder::open(run_.config().model.path).take();
  const ModelConfig model =
      with_hidden_parts(folder.config(), run_.config().hidden_shares()).take();
  outcome.content.resize(TensorTable::make(model).records.size());
  RankThreads threads(leg.ranks, endpoint_rank,
                      {.seed = leg.seed, .fails_piece = leg.fails_piece, .piece_s = leg.piece_s});
  threads.run([&](RankGroup& group) {
    outcome.statuses[static_cast<size_t>(group.rank())] = program(leg, group, outcome);
  });
  outcome.arrived = threads.arrived();
  outcome.pieces = threads.pieces();
  last_steps_ = outcome.losses.size();
  losses_.insert(losses_.end(), outcome.losses.begin(), outcome.losses.end());
  content_ = outcome.content;
  return outcome;
}

// What a rank does. Only its own part of `outcome` is written.
Status RankedTrainers::program(const RunLeg& leg, RankGroup& group, LegOutcome& outcome) const {
  RunConfig config = run_.config();
  config.train.devices = cpus(leg.devices_each);
  config.memory.disk = leg.disk;
  if (leg.configure) leg.configure(config, group.rank());
  if (leg.smallest) {
    const HfFolder folder = HfFolder::open(config.model.path).take();
    SessionOptions options = session_options(config);
    options.ranks = &group;
    RETURN_IF_ERROR(join_ranks(config, group, options));
    ASSIGN_OR_RETURN(const MemoryPlan plan, Session::plan(folder.config(), options));
    if (group.rank() != leg.ample_rank) {
      config.memory.device = MemorySize::of_bytes(plan.min_device_bytes + leg.more_bytes);
      config.memory.host = MemorySize::of_bytes(plan.min_host_bytes + leg.more_bytes);
    }
  }
  std::unique_ptr<Storage> files;
  if (!leg.storage) {
    ASSIGN_OR_RETURN(files, open_storage(IoKind::kThreads, run_.dir().path()));
  }
  Storage* storage = leg.storage ? leg.storage(group.rank()) : files.get();
  ASSIGN_OR_RETURN(const auto trainer,
                   Trainer::start(config, leg.resume, storage, nullptr, &group));
  if (leg.started) RETURN_IF_ERROR(leg.started(*trainer, group));
  const Paging before = Paging::so_far(trainer->session());
  while (trainer->steps_done() < leg.until) {
    ASSIGN_OR_RETURN(const StepResult step, trainer->step());
    if (group.rank() == 0) outcome.losses.push_back(step.loss);
    if (leg.stepped) RETURN_IF_ERROR(leg.stepped(*trainer, group));
  }
  const auto rank = static_cast<size_t>(group.rank());
  outcome.paging[rank] = Paging::so_far(trainer->session()) - before;
  outcome.row_bytes[rank] = trainer->session().executor().row_bytes();
  if (leg.save) RETURN_IF_ERROR(trainer->save());
  if (group.rank() == 0) outcome.saved_step = trainer->saved_step();
  add_content(trainer->session(), outcome.content);
  return group.agree(trainer->session().pager().status());
}

std::string RankedTrainers::sha256() const {
  Sha256 sha;
  sha.add(losses_.data(), losses_.size() * sizeof(double));
  for (const std::string& record : content_) sha.add(record.data(), record.size());
  return sha.hex();
}

}  // namespace pagoda
