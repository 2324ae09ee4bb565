#include "preview/chat_date_choice.h"

#include "base/log.h"
#include "train/model_input.h"

namespace pagoda {

Status choose_chat_date(RunConfig& config, bool resume) {
  std::string& date = config.data.chat_date;
  if (!date.empty()) return Status();
  const auto chat = find_chat_template(config.model.path, config.data.chat_template);
  if (!chat.ok() || !chat.value().asks_date()) return Status();
  if (!resume) {
    date = chat.value().today.text();
    log_info("data.chat_date: " + date + ", as the chat template asks for the day");
    return Status();
  }
  const std::string& run = config.train.output_dir;
  ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, open_storage(IoKind::kThreads, run));
  ASSIGN_OR_RETURN(const FoundCheckpoint found, find_checkpoint(run, -1, storage.get()));
  date = RunConfig::saved_chat_date(found.checkpoint.resolved_config);
  return Status();
}

}  // namespace pagoda
