// pagoda generate [run.toml] (--model.path DIR | --checkpoint RUN) --prompt TEXT [...], also as
// several processes, one on each node
#include <CLI/CLI.hpp>

#include "base/log.h"
#include "base/number_text.h"
#include "base/utf8.h"
#include "cli/joined_run.h"
#include "cli/run_command.h"
#include "cli/run_file.h"
#include "cli/shared_settings.h"
#include "cli/sheet_file.h"
#include "cli/value_option.h"
#include "commands/commands.h"
#include "preview/micro_batch_choice.h"

namespace pagoda {
namespace {

// What a continuation depends on: of the run that generates, unless told otherwise.
bool generate_takes_from_run(const Option& option) {
  return option.key == "data.chat_template" || option.key == "data.chat_date" ||
         option.key == "train.dtype";
}

// The options generation reads; a run file may hold the others too.
bool read_by_generate(const Option& option) {
  return generate_takes_from_run(option) || option.section == "memory" ||
         option.key == "model.path" || option.key == "train.threads" ||
         option.key == "train.devices" || is_about_ranks(option);
}

class GenerateCommand : public RunCommand {
 public:
  explicit GenerateCommand(CLI::App& root)
      : RunCommand(root.add_subcommand("generate", "Continue prompts with a model or a run")) {
    app()
        .add_option("--checkpoint", flags_.checkpoint,
                    "folder of a run: its newest checkpoint; the run's dtype and chat template are "
                    "used where no flag or run file gives others")
        ->type_name("RUN");
    declare_prompts();
    app().add_flag("--chat", flags_.chat, "a prompt is a user's turn in data.chat_template");
    declare_sampling();
    app().add_flag("--json", flags_.json, "print one JSON object");
    app()
        .add_option("--routing", routing_,
                    "what train.trace_routing recorded: the experts that got more tokens go to the "
                    "faster of several devices")
        ->type_name("FILE");
    app()
        .add_option("--with", flags_.with,
                    "folder of a second model, which continues the prompts at the same time on the "
                    "same devices")
        ->type_name("SECOND_MODEL");
    app()
        .add_option("--with_routing", with_routing_,
                    "what train.trace_routing recorded of SECOND_MODEL: with --routing, experts of "
                    "both models lie where they suit each other")
        ->type_name("FILE");
    app().add_flag("-q,--quiet", quiet_, "print the text, warnings and errors only");
    add_run_flags(read_by_generate);
    app().footer(
        "A terminal is shown control characters and marks of writing direction as \\x1b or\n"
        "\\u202e; a file or a pipe gets the text as it is.");
  }

  Status run() override {
    return run_alone_or_joined([&] { return run_alone(); },
                               [&](MpiCommunicator& all) { return run_together(all); });
  }

 private:
  Status read_settings(int rank) {
    RETURN_IF_ERROR(read_run_file(rank));
    RETURN_IF_ERROR(check_second());
    if (!routing_.empty()) {
      ASSIGN_OR_RETURN(flags_.routing, read_routing_trace(routing_));
    }
    if (!with_routing_.empty()) {
      ASSIGN_OR_RETURN(flags_.with_routing, read_routing_trace(with_routing_));
    }
    if (!flags_.checkpoint.empty()) {
      RETURN_IF_ERROR(load_run_settings(app(), table_, flags_.checkpoint, generate_takes_from_run));
    }
    if (config_.model.path.empty() && flags_.checkpoint.empty()) {
      return Status(Exit::kUsage, "generate: no model; name --model.path or --checkpoint");
    }
    if (flags_.prompts.empty()) {
      return Status(Exit::kUsage, "generate: nothing to continue; name --prompt TEXT");
    }
    RETURN_IF_ERROR(check_flags());
    take_microbatch_as_step(config_, true);
    return config_.validate();
  }

  Status run_alone() {
    RETURN_IF_ERROR(read_settings(0));
    set_log_quiet(quiet_);
    RankGroup alone;
    return run_generate(config_, flags_, alone);
  }

  Status run_together(MpiCommunicator& all) {
    set_log_quiet(quiet_ || all.rank() != 0);
    const auto settle = [&](RankGroup& ranks) -> Status {
      RETURN_IF_ERROR(ranks.agree(read_settings(ranks.rank())));
      RETURN_IF_ERROR(ranks.agree(check_alone()));
      RETURN_IF_ERROR(check_same_words(all, words()));
      return share_settings(table_, config_, ranks);
    };
    const auto work = [&](RankGroup& ranks) {
      const RankGroup::OwnWork reads(ranks);  // the model, each for itself
      return run_generate(config_, flags_, ranks);
    };
    return run_ranked(all, config_, {settle, work});
  }

  Status check_second() const {
    if (app().count("--with") > 0 && flags_.with.empty()) {
      return Status(Exit::kUsage, "--with: it names no model");
    }
    if (!with_routing_.empty() && flags_.with.empty()) {
      return Status(Exit::kUsage, "--with_routing: there is no second model; name it by --with");
    }
    if (!flags_.with.empty() && routing_.empty() != with_routing_.empty()) {
      return Status(Exit::kUsage,
                    "--with: name what was recorded of both models, by --routing and "
                    "--with_routing, or of neither");
    }
    return Status();
  }

  Status check_alone() const {
    if (flags_.with.empty()) return Status();
    return Status(Exit::kUsage,
                  "--with: two models share the devices of one process; start it without mpirun, "
                  "or give each model processes of its own");
  }

  // What it is asked for, to compare among ranks.
  std::string words() const {
    std::string words = "pagoda generate";
    for (const std::string& prompt : flags_.prompts) words += " --prompt \"" + prompt + "\"";
    if (flags_.chat) words += " --chat";
    if (flags_.json) words += " --json";
    if (flags_.routing) words += " --routing";
    return words + strf(
                       " --checkpoint \"%s\" --max_new_tokens %lld --temperature %s --top_p %s "
                       "--seed %lld",
                       flags_.checkpoint.c_str(), (long long)flags_.max_new_tokens,
                       real_text(flags_.sampling.temperature).c_str(),
                       real_text(flags_.sampling.top_p).c_str(), (long long)seed_);
  }

  // Through a callback: what is written into a vector, CLI11 takes apart at brackets and commas.
  void declare_prompts() {
    const auto assign = [this](const CLI::results_t& texts) {
      flags_.prompts = texts;
      return true;
    };
    app()
        .add_option("--prompt", assign,
                    "text to continue; repeat for several, which advance together")
        ->expected(1, CLI::detail::expected_max_vector_size)
        ->allow_extra_args(false)
        ->type_name("TEXT");
  }

  void declare_sampling() {
    add_value(app(), "--max_new_tokens", flags_.max_new_tokens,
              "length of a continuation, at most [tokens]")
        ->type_name("INT");
    add_value(app(), "--temperature", flags_.sampling.temperature,
              "temperature of the draw; 0: always the likeliest token")
        ->type_name("FLOAT");
    add_value(app(), "--top_p", flags_.sampling.top_p,
              "draw from the likeliest tokens that have this probability together")
        ->type_name("FLOAT");
    add_value(app(), "--seed", seed_, "seed of the draws")->type_name("INT");
  }

  Status check_flags() {
    for (const std::string& prompt : flags_.prompts) {
      if (first_invalid_utf8(prompt) == std::string_view::npos) continue;
      return Status(Exit::kUsage, "--prompt: \"" + printable(replace_invalid_utf8(prompt)) +
                                      "\" is not valid UTF-8");
    }
    if (flags_.max_new_tokens < 1 || flags_.max_new_tokens > 1 << 24) {
      return Status(Exit::kUsage, "--max_new_tokens: must be from 1 to 16777216");
    }
    if (!(flags_.sampling.temperature >= 0 && flags_.sampling.temperature <= 1000)) {
      return Status(Exit::kUsage, "--temperature: must be from 0 to 1000");
    }
    if (!(flags_.sampling.top_p > 0 && flags_.sampling.top_p <= 1)) {
      return Status(Exit::kUsage, "--top_p: must be above 0 and at most 1");
    }
    if (seed_ < 0) return Status(Exit::kUsage, "--seed: must not be negative");
    flags_.sampling.seed = static_cast<uint64_t>(seed_);
    return Status();
  }

  GenerateFlags flags_;
  std::string routing_, with_routing_;
  int64_t seed_ = 0;
  bool quiet_ = false;
};

}  // namespace

CommandPtr add_generate_command(CLI::App& root) { return std::make_unique<GenerateCommand>(root); }

}  // namespace pagoda
