// pagoda train [run.toml] [--section.key VALUE ...]
#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/run_file.h"
#include "train/commands.h"

namespace pagoda {
namespace {

class TrainCommand : public Command {
 public:
  explicit TrainCommand(CLI::App& root)
      : Command(root.add_subcommand("train", "Fine-tune every parameter of a model")) {
    app()
        .add_option("run_file", run_file_, "run file (TOML); flags win over it")
        ->type_name("RUN.toml");
    app().add_flag("--resume", flags_.resume, "continue the run in train.output_dir");
    app().add_flag("-q,--quiet", flags_.quiet, "print warnings and errors only");
    config_.declare(table_);
    add_option_flags(app(), table_, [](const Option&) { return true; });
  }

  Status run() override {
    if (!run_file_.empty()) RETURN_IF_ERROR(load_run_file(app(), table_, run_file_));
    RETURN_IF_ERROR(config_.validate_for_training());
    set_log_quiet(flags_.quiet);
    return run_train(config_, flags_);
  }

 private:
  std::string run_file_;
  TrainFlags flags_;
  RunConfig config_;
  OptionTable table_;
};

}  // namespace

CommandPtr add_train_command(CLI::App& root) { return std::make_unique<TrainCommand>(root); }

}  // namespace pagoda
