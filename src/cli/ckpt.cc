// pagoda ckpt ls RUN [--json], pagoda ckpt verify RUN [--json]
#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/joined_run.h"
#include "commands/commands.h"

namespace pagoda {
namespace {

using CkptAction = Status (*)(const CkptFlags&);

class CkptCommand : public Command {
 public:
  CkptCommand(CLI::App& ckpt, const char* name, const char* help, CkptAction action)
      : Command(ckpt.add_subcommand(name, help)), action_(action) {
    app().add_option("run", flags_.run, "folder of a run")->type_name("RUN")->required();
    app().add_flag("--json", flags_.json, "print one JSON object");
  }

  Status run() override {
    return run_by_one("ckpt", [this] { return action_(flags_); });
  }

 private:
  CkptFlags flags_;
  CkptAction action_;
};

}  // namespace

std::vector<CommandPtr> add_ckpt_commands(CLI::App& root) {
  CLI::App& ckpt = *root.add_subcommand("ckpt", "Look at a run's checkpoints: ls, verify");
  std::vector<CommandPtr> commands;
  commands.push_back(
      std::make_unique<CkptCommand>(ckpt, "ls", "List them, newest first", run_ckpt_list));
  commands.push_back(std::make_unique<CkptCommand>(
      ckpt, "verify", "Read and check everything they refer to", run_ckpt_verify));
  return commands;
}

}  // namespace pagoda
