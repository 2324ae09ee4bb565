// pagoda data inspect [run.toml] [--rows N] [--json]
#include <CLI/CLI.hpp>

#include "cli/run_command.h"
#include "cli/value_option.h"
#include "commands/commands.h"

namespace pagoda {
namespace {

bool read_by_inspect(const Option& option) {
  return option.section == "data" || option.key == "model.path";
}

class DataInspectCommand : public RunCommand {
 public:
  explicit DataInspectCommand(CLI::App& data)
      : RunCommand(data.add_subcommand(
            "inspect", "Show which tokens are trained, lengths, what is cut, duplicates")) {
    add_value(app(), "--rows", flags_.rows, "examples to show")->type_name("INT");
    app().add_flag("--json", flags_.json, "print one JSON object");
    add_run_flags(read_by_inspect);
  }

  Status run() override {
    RETURN_IF_ERROR(read_run_file());
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
  InspectFlags flags_;
};

}  // namespace

CommandPtr add_data_command(CLI::App& root) {
  CLI::App& data = *root.add_subcommand("data", "Look at training data: inspect");
  return std::make_unique<DataInspectCommand>(data);
}

}  // namespace pagoda
