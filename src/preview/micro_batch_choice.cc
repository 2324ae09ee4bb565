#include "preview/micro_batch_choice.h"

#include "base/log.h"
#include "checkpoint/run_checkpoint.h"
#include "preview/plan_changes.h"
#include "preview/this_machine.h"
#include "train/model_input.h"

namespace pagoda {

namespace {

// What the run's newest checkpoint was computed with.
Status take_saved(RunConfig& config) {
  const std::string& run = config.train.output_dir;
  ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, open_storage(IoKind::kThreads, run));
  ASSIGN_OR_RETURN(const FoundCheckpoint found, find_checkpoint(run, -1, storage.get()));
  const RunCheckpoint& saved = found.checkpoint;
  RunConfig::Train& train = config.train;
  if (train.micro_batch_tokens == 0) train.micro_batch_tokens = saved.microbatch_tokens;
  if (train.shards == 0) train.shards = RunConfig::saved_sums(saved.resolved_config).shards;
  return Status();
}

// What the planner chooses for this machine.
Result<int64_t> planned_tokens(const RunConfig& config, const MachineSheet& machine, int ranks) {
  ASSIGN_OR_RETURN(ModelSizes model, read_model_sizes(config.model.path));
  RETURN_IF_ERROR(model.cut_experts(config.hidden_shares()));
  RunConfig planned = config;
  const DeviceBudget budget = config.device_budget();
  std::vector<MemorySize> device;
  for (size_t d = 0; d < config.devices().size(); ++d) {
    device.push_back(MemorySize::of_bytes(budget.of(static_cast<int>(d))));
  }
  planned.memory.device = MemorySizes(std::move(device));
  planned.memory.host = MemorySize::of_bytes(config.host_bytes());
  return choose_micro_batch_tokens(model, planned, machine, ranks, kCoarsePlan);
}

}  // namespace

Status choose_micro_batch(RunConfig& config, bool resume, RankGroup& ranks) {
  const bool leads = ranks.rank() == 0;
  const bool all_known = config.train.micro_batch_tokens != 0 && config.train.shards != 0;
  const bool takes_saved = resume && !all_known;
  RETURN_IF_ERROR(ranks.agree(leads && takes_saved ? take_saved(config) : Status()));
  if (config.train.micro_batch_tokens == 0 && !takes_saved) {
    const MachineSheet machine = this_machine_sheet(config.gpus());
    const auto mine = planned_tokens(config, machine, ranks.size());
    RETURN_IF_ERROR(ranks.agree(mine.status()));
    ASSIGN_OR_RETURN(config.train.micro_batch_tokens, ranks.least(mine.value()));
    log_info(strf("train.micro_batch_tokens: %lld, as planned for %s%s",
                  (long long)config.train.micro_batch_tokens, machine.machine.name.c_str(),
                  config.train.micro_batch_tokens < mine.value() ? ", and as another rank needs it"
                                                                 : ""));
  }
  if (leads) config.train.shards = config.sums().shards;
  return ranks.agree(leads ? config.validate() : Status());
}

void take_microbatch_as_step(RunConfig& config, bool any) {
  const int64_t row = config.data.sequence_len;
  int64_t& tokens = config.train.micro_batch_tokens;
  if (any && row > 0) tokens = tokens / row * row;
  if (tokens == 0) tokens = row;
  config.train.tokens_per_step = tokens;
  config.train.chunks = config.train.shards = config.train.expert_shards = 1;
}

}  // namespace pagoda
