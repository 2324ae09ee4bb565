// pagoda train [run.toml] [--section.key VALUE ...]
#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/run_command.h"
#include "commands/commands.h"

namespace pagoda {
namespace {

class TrainCommand : public RunCommand {
 public:
  explicit TrainCommand(CLI::App& root)
      : RunCommand(root.add_subcommand("train", "Fine-tune every parameter of a model")) {
    app().add_flag("--resume", flags_.resume, "continue the run in train.output_dir");
    app().add_flag("-q,--quiet", flags_.quiet, "print warnings and errors only");
    add_run_flags([](const Option&) { return true; });
    app().footer(
        "The balance loss of experts is trained with the model's router_aux_loss_coef, whatever\n"
        "its output_router_logits says.");
  }

  Status run() override {
    RETURN_IF_ERROR(read_run_file());
    RETURN_IF_ERROR(config_.validate_for_training());
    set_log_quiet(flags_.quiet);
    return run_train(config_, flags_);
  }

 private:
  TrainFlags flags_;
};

}  // namespace

CommandPtr add_train_command(CLI::App& root) { return std::make_unique<TrainCommand>(root); }

}  // namespace pagoda
