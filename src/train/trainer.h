// A training run: from a configuration to checkpoints. start() builds everything and leaves the run
// at a step boundary with a saved checkpoint; a fresh start writes checkpoint 0 and continues from
// it the way a resumed run does. The caller decides what happens between steps (printing,
// evaluating, saving).
//
// With several ranks each has a trainer, and all of them make every call together; results and
// errors are alike. Rank 0 reads and writes the run's folder, each rank its own store.
//
// One thread. Errors leave the last checkpoint intact.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/run_checkpoint.h"
#include "config/run_config.h"
#include "data/dataset.h"
#include "train/generation.h"
#include "train/step_runner.h"
#include "train/weights.h"
#include "train/work_balance.h"

namespace pagoda {

// The session that a configuration asks for, whether it fits or not. `prompts`: the samples'
// prompts.
SessionOptions session_options(const RunConfig& config, const std::vector<TokenIds>& prompts = {});

// sample.prompts as tokens, to plan with before there is a trainer. Returns the errors of
// encode_prompts and check_lengths.
Result<std::vector<TokenIds>> sample_prompts(const RunConfig& config, const HfFolder& folder);

// A prompt and what the model makes of it.
struct Sample {
  std::string prompt, text;
  int64_t tokens = 0;  // tokens of `text`
  bool ended = false;  // the model ended it, not sample.max_new_tokens
};

class Trainer {
 public:
  // The run's folder is config.train.output_dir. A fresh start needs it new or empty
  // (kCannotCreate); resume needs a checkpoint there whose configuration, data and model are these
  // (kMismatch, kNoCheckpoint). `storage` and `trace` are not owned and outlive the trainer.
  // `ranks`, if there are several, too. A resumed run may have other ranks and devices than it had,
  // or the same ones on each other's machines: pages whose home is elsewhere now are copied to new
  // stores, and the old ones stay until the next checkpoint. kMismatch also if ranks have other
  // programs or data.
  static Result<std::unique_ptr<Trainer>> start(const RunConfig& config, bool resume,
                                                Storage* storage, Trace* trace = nullptr,
                                                RankGroup* ranks = nullptr);

  // Makes one optimizer step. kDiverged after too many skipped steps in a row.
  Result<StepResult> step();
  // Behind a step: lets experts exchange homes where parallel.migrate_steps has it and it pays
  // (train/work_balance.h). Changes no bit of the run. Returns what moved, and how long that took.
  struct Moved {
    HomeMoves moves;  // none: nothing moved
    double took_s = 0;
  };
  Result<Moved> balance_homes();
  // Behind a step: lets these experts exchange homes. Returns the errors of exchange_homes().
  Status exchange_homes(std::span<const HomeSwap> swaps);
  // Behind a step: takes the devices' measured speeds where parallel.shares has that and they are
  // others (train/work_balance.h). Experts get their seats by them from then on. True: shards
  // should be dealt again, which pays; if the caller does not, it is told so again as long as that
  // holds. A run that went on from a checkpoint and makes none keeps its deal: its stores are that
  // checkpoint's.
  Result<bool> measure_shares();
  // Deals shards by the measured speeds and goes on from this step's stores, as a resumed run does:
  // the session is another one. Changes no bit of the run. After an error there is no session.
  // REQUIRES: measure_shares() was true, and a run that makes checkpoints has saved this step.
  Status deal_again();
  const RowMeans& row_means() const { return homes_.means(); }  // of experts, since the start
  // The mean loss over the first `config.train.eval_batches` microbatches of the evaluation text.
  Result<double> evaluate();
  // Writes the weights of this step boundary as a Hugging Face folder with a README.md, once all
  // updates are applied, and how many bytes of weights that has. Rank 0 writes the folder. Returns
  // the errors of export_session().
  Status export_model(const std::string& directory, const std::string& readme);
  Result<int64_t> export_bytes() const;
  Storage& storage() { return *storage_; }
  bool can_evaluate() const { return eval_data_ != nullptr; }
  // Continues the prompts of `sample` by the likeliest tokens. Changes no bit of the run.
  Result<std::vector<Sample>> sample();
  bool can_sample() const { return !prompts_.empty(); }
  bool makes_checkpoints() const { return config_.train.save_steps > 0; }
  // Saves a durable checkpoint of this step boundary, if there is none yet. Saves nothing after a
  // skipped step and returns kDiverged: the weights may be spoilt, and those of the last checkpoint
  // are not.
  Status save();

  int64_t steps_done() const { return checkpoint_.step; }
  // Sequence position (data/dataset.h) of the next step's first row.
  int64_t rows_consumed() const { return checkpoint_.rows_consumed; }
  int64_t saved_step() const { return saved_step_; }  // -1: none
  double learning_rate() const;                       // of the next step
  const RunConfig& config() const { return config_; }
  const Dataset& data() const { return *data_; }
  const Dataset* eval_data() const { return eval_data_.get(); }  // nullptr: none
  Session& session() { return *session_; }

 private:
  Trainer(const RunConfig& config, Storage* storage, Trace* trace, RankGroup* ranks)
      : config_(config),
        storage_(storage),
        trace_(trace),
        ranks_(ranks != nullptr ? *ranks : alone_),
        homes_(config.parallel.migrate_steps),
        shares_(config.parallel.shares == ShareKind::kMeasured) {}
  bool leads() const { return ranks_.rank() == 0; }
  Status begin();
  Status resume();
  Result<RunCheckpoint> find_newest() const;
  Result<RunCheckpoint> of_rank_0(Result<RunCheckpoint> found) const;
  Result<RunCheckpoint> decode_sent(const std::string& text) const;
  Status open_all_inputs();
  Status open_inputs();
  Status check_alike() const;
  Result<SessionOptions> joined_options() const;
  Status start_fresh();
  Status announce(const char* mark, const std::vector<PageFile::Options>& left);
  void remove_store();  // the new one, after a start that failed
  void deal(RunSetup& setup) const;
  Result<SessionOptions> options_of_deal() const;
  Result<int64_t> new_store_bytes(SessionOptions options, const MemoryPlan& memory);
  Result<bool> has_room_and_pays(const std::vector<int>& shards, int64_t steps_left);
  Status continue_from(RunCheckpoint checkpoint, SessionOptions options);
  Status open_store(const RunCheckpoint& checkpoint, SessionOptions options);
  void look_on_own_disks(RunCheckpoint& checkpoint) const;
  Status move_pages(RunCheckpoint checkpoint, SessionOptions options);
  Status remove_moved(const RunCheckpoint& checkpoint);
  Status leave_old_stores();
  Status check_resumable(const RunCheckpoint& checkpoint) const;
  bool weights_are_trusted() const;
  void make_runner();
  Status drain();
  Result<std::vector<std::string>> write_stores();
  Status note_stores(const std::vector<std::string>& stores);
  Status commit(const std::vector<std::string>& stores);
  CheckpointDirectory checkpoints() const;

  RunConfig config_;
  Storage* storage_;
  Trace* trace_;
  RankGroup alone_;
  RankGroup& ranks_;
  std::unique_ptr<HfFolder> folder_;
  ModelConfig model_;  // the folder's, with the run's parts of experts
  std::unique_ptr<Dataset> data_, eval_data_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<TokenIds> prompts_;
  TokenIds stop_tokens_;  // end a sample
  RunCheckpoint checkpoint_;  // where the run is, apart from its stores
  CheckpointStore store_;     // this rank's, apart from the page versions
  bool moved_ = false;        // the last checkpoint is in other stores, of which this rank removes
  std::vector<PageFile::Options> left_;
  int64_t saved_step_ = -1;
  int64_t skipped_in_a_row_ = 0;
  bool loss_is_finite_ = true;  // after the last step
  bool weights_are_spoilt_ = false;  // the last evaluation showed it, until a step shows otherwise
  std::unique_ptr<Session> session_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<StepRunner> runner_;
  HomeBalance homes_;
  ShareBalance shares_;
  std::vector<int> deal_without_room_;  // a deal of shards that memory has no room for
};

}  // namespace pagoda
