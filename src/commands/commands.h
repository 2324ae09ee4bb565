// The subcommands without their command lines: each takes its settings, does its work to the end
// and returns a Status. Results go to stdout (JSON where asked), progress and warnings through
// base/log. None throws.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/run_config.h"
#include "gguf/gguf_file.h"
#include "model/sampling.h"
#include "parallel/rank_group.h"
#include "plan/machine/machine_sheet.h"
#include "plan/step/routing_trace.h"

namespace pagoda {

struct TrainFlags {
  bool resume = false;  // continue from the newest valid checkpoint of train.output_dir
  bool quiet = false;   // warnings only; base/log is already told
};
// Makes numbers of what a run leaves to the program: train.micro_batch_tokens, train.shards and
// data.chat_date; a resumed run has its checkpoint's. `config` has passed validate_for_training().
// With several ranks all of them call it together, with the same options but for local ones, and
// have to take rank 0's after it. `measured`: the machine, by whose rates parallel.layout and what
// zebra leaves open are chosen; none: a rough sheet of it.
Status resolve_run(RunConfig& config, bool resume, RankGroup& ranks,
                   const std::optional<MachineSheet>& measured = {});

// `config` has passed resolve_run(). With several ranks all of them call it together, with the same
// options but for local ones; rank 0 alone prints and writes the run's folder. kStopped after a
// signal and a saved checkpoint, exit_of_signal() after one that leaves nothing to resume.
Status run_train(const RunConfig& config, const TrainFlags& flags, RankGroup* ranks = nullptr);

struct EvalFlags {
  // A run's folder; empty: config.model.path is evaluated. With both, that is where the folder the
  // run started from is now.
  std::string checkpoint;
  bool whole_text = true;  // else its first config.train.eval_batches microbatches
  bool json = false;
  // Says how experts are shared out among devices; none: by the devices' speed alone.
  std::optional<RoutingTrace> routing;
};
// Prints the loss of a model, or of a run's newest checkpoint, on config.data.eval_path (not empty;
// validate() holds), and the number of its rows. One JSON object on stdout, or one line. With
// several ranks all of them call it together, with the same options but for local ones; rank 0
// alone prints. The loss is that of one device, bit for bit.
Status run_eval(const RunConfig& config, const EvalFlags& flags, RankGroup& ranks);

// The run file, with every option in it, of a run's newest checkpoint. kNoInput, kNoCheckpoint.
Result<std::string> checkpoint_settings(const std::string& run);

struct GenerateFlags {
  std::string checkpoint;  // see EvalFlags
  std::vector<std::string> prompts;
  bool chat = false;  // a prompt is a user's turn in config.data.chat_template
  int64_t max_new_tokens = 128;
  SamplingSettings sampling;
  bool json = false;
  std::optional<RoutingTrace> routing;  // see EvalFlags
  // The folder of a second model, which continues them at the same time; empty: there is none.
  std::string with;
  std::optional<RoutingTrace> with_routing;  // the second model's, if there are both or none
};
// Continues the prompts, all together. One prompt's text goes to stdout as it comes, several
// prompts' at the end; or one JSON object with texts, tokens and moved bytes. With several ranks as
// run_eval(). The tokens are those of one device. Two models (commands/generate_together.h) have
// their texts one behind the other at the end; REQUIRES: one rank.
Status run_generate(const RunConfig& config, const GenerateFlags& flags, RankGroup& ranks);

struct InitFlags {
  std::string config_path;     // a Hugging Face config.json
  std::string tokenizer_path;  // folder with a tokenizer.json; empty: 256 bytes and end-of-text
  int64_t seed = 0;
  std::string output_dir;  // new or empty
};
Status run_init(const InitFlags& flags);

struct UpcycleFlags {
  std::string dense_path;  // a Hugging Face folder without experts
  int64_t experts = 0;
  int64_t top_k = 0;
  double noise = 0;
  int64_t seed = 0;
  std::string output_dir;  // new or empty
};
Status run_upcycle(const UpcycleFlags& flags);

struct ExportFlags {
  std::string checkpoint;  // a run's folder
  std::string model_path;  // the folder it started from, if that has moved; empty: as recorded
  int64_t step = -1;       // -1: its newest valid checkpoint
  std::optional<DType> dtype;  // none: as in the model's folder
  std::string output_dir;      // new or empty; of GGUF the file
  std::optional<GgufType> gguf;  // a GGUF file whose matrices are of this type, and no folder
};
Status run_export(const ExportFlags& flags);

struct InspectFlags {
  int64_t rows = 3;  // examples to show
  bool json = false;
};
// Shows the examples that config.data.path (not empty) and eval_path give with the model's
// tokenizer and template; validate_data() holds. One JSON object on stdout, or a report with
// trained tokens marked.
Status run_data_inspect(const RunConfig& config, const InspectFlags& flags);

struct CkptFlags {
  std::string run;  // a run's folder
  bool json = false;
};
Status run_ckpt_list(const CkptFlags& flags);
// Reads everything a checkpoint refers to; kNoCheckpoint when none is whole.
Status run_ckpt_verify(const CkptFlags& flags);

}  // namespace pagoda
