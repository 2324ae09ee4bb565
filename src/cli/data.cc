// pagoda data inspect [run.toml] [--rows N] [--json]
#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/run_file.h"
#include "train/commands.h"

namespace pagoda {
namespace {

bool read_by_inspect(const Option& option) {
  return option.section == "data" || option.key == "model.path";
}

class DataInspectCommand : public Command {
 public:
  explicit DataInspectCommand(CLI::App& data)
      : Command(data.add_subcommand(
            "inspect", "Show which tokens are trained, lengths, what is cut, duplicates")) {
    app()
        .add_option("run_file", run_file_, "run file (TOML); flags win over it")
        ->type_name("RUN.toml");
    app()
        .add_option("--rows", flags_.rows, "examples to show (default 3)")
        ->type_name("INT");
    app().add_flag("--json", flags_.json, "print one JSON object");
    config_.declare(table_);
    add_option_flags(app(), table_, read_by_inspect);
  }

  Status run() override {
    if (!run_file_.empty()) RETURN_IF_ERROR(load_run_file(app(), table_, run_file_));
    if (flags_.rows < 0) return Status(Exit::kUsage, "--rows: must not be negative");
    if (config_.model.path.empty()) {
      return Status(Exit::kUsage, "data inspect: name a folder with a tokenizer: --model.path");
    }
    if (config_.data.path.empty()) {
      return Status(Exit::kUsage, "data inspect: nothing to look at; name --data.path");
    }
    RETURN_IF_ERROR(config_.validate_data());
    return run_data_inspect(config_, flags_);
  }

 private:
  std::string run_file_;
  InspectFlags flags_;
  RunConfig config_;
  OptionTable table_;
};

}  // namespace

CommandPtr add_data_command(CLI::App& root) {
  CLI::App& data = *root.add_subcommand("data", "Look at training data: inspect");
  return std::make_unique<DataInspectCommand>(data);
}

}  // namespace pagoda
