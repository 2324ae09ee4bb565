// pagoda eval [run.toml] (--model.path DIR | --checkpoint RUN) --data.eval_path TEXT, also as
// several processes, one on each node
#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/log.h"
#include "cli/joined_run.h"
#include "cli/run_command.h"
#include "cli/run_file.h"
#include "cli/shared_settings.h"
#include "cli/sheet_file.h"
#include "commands/commands.h"
#include "preview/micro_batch_choice.h"

namespace pagoda {
namespace {

bool is_one_of(const Option& option, std::initializer_list<const char*> keys) {
  return std::find(keys.begin(), keys.end(), option.key) != keys.end();
}

// What a loss depends on: of the run that is evaluated, unless told otherwise.
bool eval_takes_from_run(const Option& option) {
  if (option.section == "data") return option.key != "data.path";
  return is_one_of(option, {"train.dtype", "train.micro_batch_tokens"});
}

// The options an evaluation reads; a run file may hold the others too.
bool read_by_eval(const Option& option) {
  return eval_takes_from_run(option) || option.section == "memory" ||
         is_one_of(option,
                   {"model.path", "train.eval_batches", "train.threads", "train.devices"}) ||
         is_about_ranks(option);
}

class EvalCommand : public RunCommand {
 public:
  explicit EvalCommand(CLI::App& root)
      : RunCommand(root.add_subcommand("eval", "Loss of a model or a run on held-out text")) {
    app()
        .add_option("--checkpoint", flags_.checkpoint,
                    "folder of a run: its newest checkpoint; the run's text, lengths and dtype are "
                    "used where no flag or run file gives others")
        ->type_name("RUN");
    app().add_flag("--json", flags_.json, "print one JSON object");
    app()
        .add_option("--routing", routing_,
                    "what train.trace_routing recorded: the experts that got more tokens go to the "
                    "faster of several devices")
        ->type_name("FILE");
    add_run_flags(read_by_eval);
  }

  Status run() override {
    return run_alone_or_joined([&] { return run_alone(); },
                               [&](MpiCommunicator& all) { return run_together(all); });
  }

 private:
  Status read_settings(int rank) {
    RETURN_IF_ERROR(read_run_file(rank));
    if (!routing_.empty()) {
      ASSIGN_OR_RETURN(flags_.routing, read_routing_trace(routing_));
    }
    if (!flags_.checkpoint.empty()) {
      RETURN_IF_ERROR(load_run_settings(app(), table_, flags_.checkpoint, eval_takes_from_run));
    }
    if (config_.model.path.empty() && flags_.checkpoint.empty()) {
      return Status(Exit::kUsage, "eval: nothing to evaluate; name --model.path or --checkpoint");
    }
    if (config_.data.eval_path.empty()) {
      return Status(Exit::kUsage, "eval: no text to evaluate on; name --data.eval_path");
    }
    take_microbatch_as_step(config_, !is_told("train.micro_batch_tokens"));
    flags_.whole_text = !is_told("train.eval_batches");
    return config_.validate();
  }

  Status run_alone() {
    RETURN_IF_ERROR(read_settings(0));
    RankGroup alone;
    return run_eval(config_, flags_, alone);
  }

  Status run_together(MpiCommunicator& all) {
    set_log_quiet(all.rank() != 0);
    const auto settle = [&](RankGroup& ranks) -> Status {
      RETURN_IF_ERROR(ranks.agree(read_settings(ranks.rank())));
      RETURN_IF_ERROR(check_same_words(
          all, strf("pagoda eval --checkpoint \"%s\"%s%s", flags_.checkpoint.c_str(),
                    flags_.json ? " --json" : "", flags_.routing ? " --routing" : "") +
                   (flags_.whole_text ? "" : ", a part of the text")));
      return share_settings(table_, config_, ranks);
    };
    const auto work = [&](RankGroup& ranks) {
      const RankGroup::OwnWork reads(ranks);  // the model and the text, each for itself
      return run_eval(config_, flags_, ranks);
    };
    return run_ranked(all, config_, {settle, work});
  }

  EvalFlags flags_;
  std::string routing_;
};

}  // namespace

CommandPtr add_eval_command(CLI::App& root) { return std::make_unique<EvalCommand>(root); }

}  // namespace pagoda
