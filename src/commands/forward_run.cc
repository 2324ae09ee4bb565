#include "commands/forward_run.h"

#include "base/file.h"
#include "base/stop_signal.h"
#include "report/report.h"
#include "train/trainer.h"

namespace pagoda {

Status ForwardRun::open(const std::string& run) {
  install_stop_signals();
  ASSIGN_OR_RETURN(storage_,
                   open_storage(config_.memory.io, nearest_directory(config_.scratch_parent())));
  ASSIGN_OR_RETURN(model_, open_model(config_.model.path, run, -1, storage_.get()));
  return Status();
}

SessionOptions ForwardRun::options() const {
  warn_of_gpus(config_);
  SessionOptions options = session_options(config_);
  options.size.training = false;
  options.size.microbatches = 1;
  options.size.sums = SumShape();
  options.deal_attention(1);
  options.page_slots = 1;
  options.directories = {config_.scratch_parent()};
  return options;
}

Result<std::string> ForwardRun::scratch() {
  if (!has_scratch_) RETURN_IF_ERROR(scratch_.create());
  has_scratch_ = true;
  return scratch_.path();
}

Status ForwardRun::in_session(SessionOptions options,
                              const std::function<Status(Session&)>& work) {
  ASSIGN_OR_RETURN(const std::string directory, scratch());
  options.directories = {directory};
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                   Session::create(model_->weights->config(), options, storage_.get()));
  Status status = load_weights(*model_->weights, *session);
  if (status.ok()) status = work(*session);
  session->remove_files();
  return status;
}

}  // namespace pagoda
