#include "commands/forward_run.h"

#include "base/file.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "plan/exchange/expert_assignment.h"
#include "preview/this_machine.h"
#include "report/report.h"
#include "train/trainer.h"

namespace pagoda {

Status ForwardRun::open_own(const std::string& run) {
  ASSIGN_OR_RETURN(storage_,
                   open_storage(config_.memory.io, nearest_directory(config_.scratch_parent())));
  ASSIGN_OR_RETURN(model_, open_model(config_.model.path, run, -1, storage_.get()));
  return Status();
}

Status ForwardRun::open(const std::string& run) {
  install_stop_signals();
  RETURN_IF_ERROR(ranks_.agree(open_own(run)));
  RETURN_IF_ERROR(check_alike("config.json", model_->folder->config().json));
  RETURN_IF_ERROR(check_alike("tokenizer", model_->tokenizer.identity()));
  return check_alike("newest checkpoint", std::to_string(model_->step));
}

Status ForwardRun::check_alike(const char* what, const std::string& value) const {
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks_.agree(Status(), value));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return Status(Exit::kMismatch, strf("rank %zu has another %s than rank 0; give all ranks the "
                                        "same model and files",
                                        rank, what));
  }
  return Status();
}

Result<std::vector<double>> ForwardRun::expert_rates(const SessionOptions& options) const {
  std::string own;
  for (size_t d = 0; d < options.own_setups().size(); ++d) {
    const bool on_gpu = !options.gpus.empty();
    own += strf("%.17g ", on_gpu ? this_machine_sheet({options.gpus[d]}).device.gemm_tflops
                                 : options.own_setups()[d].expert_speed());
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks_.agree(Status(), own));
  return rates_of_ranks(all, options.devices.size());
}

Status ForwardRun::place_experts(const RoutingTrace& routing, SessionOptions& options) const {
  const ModelShape model = model_shape(model_->folder->config());
  ASSIGN_OR_RETURN(const std::vector<double> rates, expert_rates(options));
  const RunShape before = make_run_shape(model, options);
  auto homes = homes_by_routing(before, routing, rates);
  RETURN_IF_ERROR(ranks_.agree(homes.status()));
  options.homes = homes.take();
  std::string text;
  for (const int home : options.homes) text += strf("%d ", home);
  RETURN_IF_ERROR(check_alike("recorded routing", text));
  log_info(
      strf("experts are shared out by recorded routing: the slowest device of a layer should take "
           "%.2f times an exact share (%.2f by speed alone)",
           imbalance(make_run_shape(model, options), routing, rates),
           imbalance(before, routing, rates)));
  return Status();
}

Result<SessionOptions> ForwardRun::options(const std::optional<RoutingTrace>& routing) const {
  warn_of_gpus(config_);
  SessionOptions options = session_options(config_);
  options.size.training = false;
  options.ranks = &ranks_;
  RETURN_IF_ERROR(join_ranks(config_, ranks_, options));
  options.deal_text(1, 1);
  if (routing) RETURN_IF_ERROR(place_experts(*routing, options));
  options.page_slots = 1;
  options.directories = {config_.scratch_parent()};
  return options;
}

void ForwardRun::deal_to_devices(SessionOptions& options, const Deal& deal) const {
  for (int64_t most = options.num_devices(); most > 0; --most) {
    deal(options, most);
    if (most == 1 || Session::plan(model_->folder->config(), options).ok()) return;
  }
}

Result<std::string> ForwardRun::scratch() {
  if (!has_scratch_) RETURN_IF_ERROR(ranks_.agree(scratch_.create()));
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
