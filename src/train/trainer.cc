#include "train/trainer.h"

#include <cmath>

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/hf_writer.h"
#include "checkpoint/manifest.h"
#include "checkpoint/start_mark.h"
#include "config/computed_with.h"
#include "optim/schedule.h"
#include "parallel/disk_room.h"
#include "tokenizer/text_stream.h"
#include "train/batch.h"
#include "train/page_move.h"

namespace pagoda {
namespace {

// A run with this many steps in a row without an update has diverged.
constexpr int64_t kMostSkipped = 8;

double seconds_since(int64_t began_us) {
  return 1e-6 * static_cast<double>(monotonic_us() - began_us);
}

}  // namespace

SessionOptions session_options(const RunConfig& config, const std::vector<TokenIds>& prompts) {
  SessionOptions options{run_setup(config)};
  options.size.cache = cache_for(prompts, config.sample.max_new_tokens);
  options.gpus = config.gpus();
  options.size.on_gpu = !options.gpus.empty();
  options.optimizer_threads = config.optimizer_threads();
  options.device_bytes = config.device_budget();
  options.host_bytes = config.host_bytes();
  options.directories = config.disk_directories();
  options.page_slots = config.train.save_steps > 0 ? 2 : 1;
  options.trace_routing = !config.train.trace_routing.empty();
  return options;
}

CheckpointDirectory Trainer::checkpoints() const {
  return CheckpointDirectory(storage_, config_.train.output_dir + "/checkpoints");
}

double Trainer::learning_rate() const {
  return config_.optim.learning_rate *
         schedule_factor(config_.optim.schedule, checkpoint_.step, config_.optim.warmup_steps,
                         config_.train.steps);
}

Result<StepResult> Trainer::step() {
  const int64_t rows = config_.train.micro_batch_tokens / config_.data.sequence_len;
  const auto batch = make_batch(*data_, static_cast<uint64_t>(checkpoint_.rows_consumed),
                                config_.micro_batches(), rows);
  RETURN_IF_ERROR(ranks_.agree(batch.status()));
  const bool timed = homes_.wants_times() || shares_.wants_times();
  const auto times = timed ? std::make_unique<TaskTimes>(&session_->shape()) : nullptr;
  session_->executor().time_tasks(times.get());
  const int64_t began_us = monotonic_us();
  auto trained = runner_->train(batch.value(), learning_rate());
  session_->executor().time_tasks(nullptr);
  ASSIGN_OR_RETURN(StepResult result, std::move(trained));
  const double step_s = seconds_since(began_us);
  homes_.end_step(session_->shape(), result, step_s, times.get());
  shares_.end_step(session_->shape(), step_s, times.get());
  ++checkpoint_.step;
  loss_is_finite_ = std::isfinite(result.loss);
  if (loss_is_finite_) weights_are_spoilt_ = false;
  checkpoint_.rows_consumed += config_.micro_batches() * rows;
  skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
  if (skipped_in_a_row_ >= kMostSkipped) {
    return Status(
        Exit::kDiverged,
        strf("step %lld: %lld steps in a row had non-finite gradients and were skipped; "
             "the last checkpoint (step %lld) is intact: export it, and train from that "
             "in a new run with a lower optim.learning_rate",
             (long long)checkpoint_.step, (long long)skipped_in_a_row_, (long long)saved_step_));
  }
  return result;
}

Result<Trainer::Moved> Trainer::balance_homes() {
  Moved moved;
  if (!homes_.due() || checkpoint_.step == config_.train.steps) return moved;
  ASSIGN_OR_RETURN(moved.moves, homes_.decide(*session_));
  if (moved.moves.swaps.empty()) return moved;
  const int64_t began_us = monotonic_us();
  ASSIGN_OR_RETURN(const double exchanged_s,
                   pagoda::exchange_homes(moved.moves.swaps, *session_, *runner_));
  ASSIGN_OR_RETURN(const int64_t took_us, ranks_.most(monotonic_us() - began_us));
  moved.took_s = 1e-6 * static_cast<double>(took_us);
  homes_.moved(moved.moves, exchanged_s);
  return moved;
}

Status Trainer::exchange_homes(std::span<const HomeSwap> swaps) {
  return pagoda::exchange_homes(swaps, *session_, *runner_).status();
}

// Deals the setup's attention by the speeds that the session was told of.
void Trainer::deal(RunSetup& setup) const {
  setup.token_rows = rows_with_token(session_->shape());
  setup.deal_attention(config_.attention_devices(std::ssize(setup.devices)));
}

// The options of the session, with attention dealt anew.
Result<SessionOptions> Trainer::options_of_deal() const {
  ASSIGN_OR_RETURN(SessionOptions options, joined_options());
  const SessionOptions& now = session_->options();
  options.devices = now.devices;
  options.device_bytes = now.device_bytes;  // not what is left beside this session
  options.host_bytes = now.host_bytes;
  options.table_ranks = now.table_ranks;
  deal(options);
  const RunShape& shape = session_->shape();
  options.stage_layers = shape.stages.layer_counts(shape.num_layers);
  // Experts stay at their homes. In zebra these follow from which devices attend.
  for (const RecordShape& record : shape.records) {
    options.homes.push_back(record.expert >= 0 && !shape.zebra ? record.device : -1);
  }
  return options;
}

// Returns the bytes of the store that this rank makes if it goes on with these options, for which
// `memory` is the plan; 0: all ranks go on in the stores that they have. As continue_from() does.
Result<int64_t> Trainer::new_store_bytes(SessionOptions options, const MemoryPlan& memory) {
  options.page_slots = static_cast<int>(checkpoint_.page_slots);
  const RunShape& now = session_->shape();
  const RunShape shape = make_run_shape(model_shape(model_), options);
  std::vector<int> rank_of;
  for (int64_t r = 0; r < std::ssize(now.records); ++r) rank_of.push_back(now.home_rank(r));
  const std::vector<int> homes = homes_of(rank_of, shape);
  if (!homes.empty()) options.homes = homes;
  const std::vector<PageSpec> pages = page_specs(model_, options, memory);
  const bool fits = (ranks_.alone() && !shape.stages.several()) || session_->file().has_room(pages);
  ASSIGN_OR_RETURN(const int64_t moves, ranks_.most(homes.empty() || !fits));
  if (moves == 0) return int64_t{0};
  return PageFile::disk_bytes(pages, options.page_slots,
                              static_cast<int>(config_.disk_directories().size()));
}

// Whether a deal that pays if stores stay has room, and pays also if there must be new ones. Until
// a save has told how fast stores are written, a run that makes any waits for it.
Result<bool> Trainer::has_room_and_pays(const std::vector<int>& shards, int64_t steps_left) {
  ASSIGN_OR_RETURN(const SessionOptions options, options_of_deal());
  const auto memory = Session::plan(model_, options);
  if (!memory.ok()) {
    deal_without_room_ = shards;
    return false;
  }
  ASSIGN_OR_RETURN(const int64_t bytes, new_store_bytes(options, memory.value()));
  if (bytes == 0) return true;
  ASSIGN_OR_RETURN(const bool has_room, have_disk_room(ranks_, config_.disk_directories(), bytes,
                                                       config_.train.output_dir));
  if (!has_room) return false;  // there may be at the next look
  const bool waits = makes_checkpoints() && !shares_.has_written();
  ASSIGN_OR_RETURN(const int64_t waiting, ranks_.most(waits));
  ASSIGN_OR_RETURN(const int64_t cost_us, ranks_.most(std::llround(1e6 * shares_.cost_s(bytes))));
  return waiting == 0 &&
         shares_.pays(session_->shape(), shards, steps_left, 1e-6 * static_cast<double>(cost_us));
}

// A deal that did not pay before, or was not made, may pay now, with the speeds that were known
// then.
Result<bool> Trainer::measure_shares() {
  if (!shares_.due() || checkpoint_.step == config_.train.steps) return false;
  ASSIGN_OR_RETURN(const bool changed, shares_.measure(ranks_, session_->options().devices));
  if (changed) {
    session_->set_speeds(shares_.devices());
    runner_->plan_again();
  }
  if (!makes_checkpoints() && saved_step_ >= 0) return false;
  RunSetup dealt = session_->options();
  deal(dealt);
  const std::vector<int>& shards = dealt.size.shard_device;
  const int64_t left = config_.train.steps - checkpoint_.step;
  if (shards == deal_without_room_ || !shares_.pays(session_->shape(), shards, left)) return false;
  return has_room_and_pays(shards, left);
}

// Without checkpoints nothing refers to the stores that the session leaves, if it leaves them.
Status Trainer::deal_again() {
  const int64_t saved_step = saved_step_;
  const RankGroup::OwnWork deals(ranks_);
  const int64_t began_us = monotonic_us();
  ASSIGN_OR_RETURN(SessionOptions options, options_of_deal());
  RunCheckpoint from;
  if (makes_checkpoints()) {
    CHECK(saved_step == checkpoint_.step);
    ASSIGN_OR_RETURN(from, of_rank_0(leads() ? checkpoints().load(saved_step) : RunCheckpoint()));
  } else {
    ASSIGN_OR_RETURN(const std::vector<std::string> stores, write_stores());
    RETURN_IF_ERROR(ranks_.agree(note_stores(stores)));
    from = checkpoint_;
  }
  runner_.reset();
  session_.reset();  // its memory goes before there is new
  RETURN_IF_ERROR(continue_from(std::move(from), std::move(options)));
  saved_step_ = saved_step;
  const bool moved = moved_;
  if (!makes_checkpoints()) RETURN_IF_ERROR(leave_old_stores());
  shares_.dealt(seconds_since(began_us), moved);
  return Status();
}

// Ranks have unequal numbers of records to update.
Status Trainer::drain() {
  const RankGroup::OwnWork updates(ranks_);
  return runner_->drain();
}

Result<double> Trainer::evaluate() {
  RETURN_IF_ERROR(drain());
  const int64_t rows = config_.train.micro_batch_tokens / config_.data.sequence_len;
  ASSIGN_OR_RETURN(const LossSum total,
                   evaluate_rows(*runner_, *eval_data_, config_.train.eval_batches,
                                 config_.micro_batches(), rows));
  const double loss = total.loss / total.weight;
  weights_are_spoilt_ = !std::isfinite(loss);
  return loss;
}

Status Trainer::export_model(const std::string& directory, const std::string& readme) {
  RETURN_IF_ERROR(drain());
  return export_session(*session_, *folder_, directory, readme);
}

Result<int64_t> Trainer::export_bytes() const {
  ASSIGN_OR_RETURN(HfWriter::Options options, HfWriter::options_for("", *folder_, std::nullopt));
  return HfWriter::needed_bytes(std::move(options), folder_->table());
}

Result<std::vector<Sample>> Trainer::sample() {
  RETURN_IF_ERROR(drain());
  PassRunner runner(session_.get());
  GenerationSettings settings;
  settings.max_new_tokens = config_.sample.max_new_tokens;
  settings.stop_tokens = stop_tokens_;
  ASSIGN_OR_RETURN(const std::vector<Continuation> continuations,
                   generate(runner, prompts_, settings));
  std::vector<Sample> samples;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const TokenIds& tokens = continuations[i].tokens;
    samples.push_back({config_.sample.prompts[i],
                       continuation_text(*tokenizer_, prompts_[i], tokens),
                       static_cast<int64_t>(tokens.size()), continuations[i].ended});
  }
  return samples;
}

// A skipped step may mean that the one before it spoilt the weights, and only a good step shows
// that it did not. After the last step there is none; then a finite loss must do.
bool Trainer::weights_are_trusted() const {
  if (weights_are_spoilt_) return false;
  const bool last = checkpoint_.step == config_.train.steps;
  return skipped_in_a_row_ == 0 || (last && skipped_in_a_row_ == 1 && loss_is_finite_);
}

Status Trainer::save() {
  if (saved_step_ == checkpoint_.step) return Status();
  if (!weights_are_trusted()) {
    return Status(
        Exit::kDiverged,
        strf("step %lld was not saved because its loss or gradients are not finite; the last "
             "checkpoint (step %lld) is intact: export it, and train from that in a new "
             "run with a lower optim.learning_rate",
             (long long)checkpoint_.step, (long long)saved_step_));
  }
  const int64_t began_us = monotonic_us();
  ASSIGN_OR_RETURN(const std::vector<std::string> stores, write_stores());
  RETURN_IF_ERROR(ranks_.agree(leads() ? commit(stores) : Status()));
  session_->file().committed();
  saved_step_ = checkpoint_.step;
  if (leads()) checkpoints().remove_older(checkpoint_.step);
  RETURN_IF_ERROR(leave_old_stores());
  shares_.saved(seconds_since(began_us));
  if (!leads()) return Status();
  const Status reserved = checkpoints().reserve(checkpoint_);
  if (!reserved.ok()) log_warn(reserved.message());
  checkpoint_.stores.clear();
  return Status();
}

// Makes the step boundary durable. Returns what each rank's store has of it, as text.
Result<std::vector<std::string>> Trainer::write_stores() {
  RETURN_IF_ERROR(drain());
  const int64_t began_us = monotonic_us();
  const int64_t before = session_->file().counters().write_bytes;
  Status prepared = session_->pager().flush();
  if (prepared.ok()) prepared = session_->file().sync();
  shares_.wrote(session_->file().counters().write_bytes - before, seconds_since(began_us));
  CheckpointStore own = store_;
  own.store_id = session_->file().store_id();
  own.kernel_set = kernel_set_with(config_.gpus());
  if (prepared.ok()) own.pages = session_->file().versions();
  return ranks_.agree(prepared, encode_store(own));
}

// Makes checkpoint_ this step boundary, with these stores.
Status Trainer::note_stores(const std::vector<std::string>& stores) {
  checkpoint_.updates = ledger_->updates();
  checkpoint_.record_steps = ledger_->steps_of_record();
  checkpoint_.stores.clear();
  std::vector<int> count(2 * checkpoint_.record_steps.size());
  for (const std::string& text : stores) {
    ASSIGN_OR_RETURN(CheckpointStore store, decode_store(text));
    for (const PageVersion& version : store.pages) {
      if (version.page < count.size()) ++count[version.page];
    }
    checkpoint_.stores.push_back(std::move(store));
  }
  for (PageId page = 0; page < count.size(); ++page) {
    const int wanted = is_durable(session_->shape(), page) ? 1 : 0;
    CHECK(count[page] == wanted, "a page that %d ranks have", count[page]);
  }
  return Status();
}

// Writes the manifest over all ranks' stores, each of which is durable.
Status Trainer::commit(const std::vector<std::string>& stores) {
  RETURN_IF_ERROR(note_stores(stores));
  return checkpoints().commit(checkpoint_);
}

// The new checkpoint names new stores.
Status Trainer::leave_old_stores() {
  if (!moved_) return Status();
  moved_ = false;
  for (const PageFile::Options& options : left_) {
    const Status removed = PageFile::remove(storage_, options);
    if (!removed.ok()) log_warn(removed.message());
  }
  left_.clear();
  RETURN_IF_ERROR(ranks_.agree(Status()));
  if (!leads()) return Status();
  const Status removed = storage_->remove_file(config_.train.output_dir + "/" + kMoveMark);
  if (!removed.ok()) log_warn(removed.message());
  return Status();
}

}  // namespace pagoda
