#include "preview/micro_batch_choice.h"

#include "base/log.h"
#include "checkpoint/run_checkpoint.h"
#include "preview/plan_changes.h"
#include "preview/this_machine.h"
#include "train/model_input.h"

namespace pagoda {

Status choose_micro_batch(RunConfig& config, bool resume) {
  int64_t& tokens = config.train.micro_batch_tokens;
  if (tokens != 0) return Status();
  if (resume) {
    const std::string& run = config.train.output_dir;
    ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, open_storage(IoKind::kThreads, run));
    ASSIGN_OR_RETURN(const FoundCheckpoint found, find_checkpoint(run, -1, storage.get()));
    tokens = found.checkpoint.microbatch_tokens;
    return Status();
  }
  ASSIGN_OR_RETURN(const ModelSizes model, read_model_sizes(config.model.path));
  const MachineSheet machine = this_machine_sheet(config.gpu());
  RunConfig planned = config;
  planned.memory.device = MemorySize::of_bytes(config.device_bytes());
  planned.memory.host = MemorySize::of_bytes(config.host_bytes());
  ASSIGN_OR_RETURN(tokens, choose_micro_batch_tokens(model, planned, machine, kCoarsePlan));
  log_info(strf("train.micro_batch_tokens: %lld, as planned for %s", (long long)tokens,
                machine.machine.name.c_str()));
  return Status();
}

void take_microbatch_as_step(RunConfig& config, bool any) {
  const int64_t row = config.data.sequence_len;
  int64_t& tokens = config.train.micro_batch_tokens;
  if (any && row > 0) tokens = tokens / row * row;
  if (tokens == 0) tokens = row;
  config.train.tokens_per_step = tokens;
}

}  // namespace pagoda
