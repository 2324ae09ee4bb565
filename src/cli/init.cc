// pagoda init --config config.json [--tokenizer DIR] [--seed N] --out DIR
#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/value_option.h"
#include "commands/commands.h"

namespace pagoda {
namespace {

class InitCommand : public Command {
 public:
  explicit InitCommand(CLI::App& root)
      : Command(root.add_subcommand("init", "Make a new model with random weights")) {
    app()
        .add_option("--config", flags_.config_path, "config.json of the architecture")
        ->type_name("FILE")
        ->required();
    app()
        .add_option("--tokenizer", flags_.tokenizer_path,
                    "folder with a tokenizer.json; none: 256 bytes and end-of-text")
        ->type_name("DIR");
    add_value(app(), "--seed", flags_.seed, "seed of the weights")->type_name("INT");
    app()
        .add_option("--out", flags_.output_dir, "folder to write; new or empty")
        ->type_name("DIR")
        ->required();
  }

  Status run() override {
    if (flags_.seed < 0) return Status(Exit::kUsage, "--seed: must not be negative");
    return run_init(flags_);
  }

 private:
  InitFlags flags_;
};

}  // namespace

CommandPtr add_init_command(CLI::App& root) { return std::make_unique<InitCommand>(root); }

}  // namespace pagoda
