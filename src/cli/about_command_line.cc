// pagoda man | pagoda completion SHELL
#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/man_page.h"

namespace pagoda {
namespace {

CLI::App& root_of(CLI::App& app) {
  CLI::App* root = &app;
  while (root->get_parent() != nullptr) root = root->get_parent();
  return *root;
}

class ManCommand : public Command {
 public:
  explicit ManCommand(CLI::App& root)
      : Command(root.add_subcommand("man", "Print the manual page: pagoda man | man -l -")) {}

  Status run() override {
    std::fputs(man_page(root_of(app())).c_str(), stdout);
    return Status();
  }
};

class CompletionCommand : public Command {
 public:
  explicit CompletionCommand(CLI::App& root)
      : Command(root.add_subcommand("completion", "Print a shell's completion of this program")) {
    app().add_option("shell", shell_, "bash, zsh or fish")->type_name("SHELL")->required();
  }

  Status run() override {
    ASSIGN_OR_RETURN(const std::string script, completion(root_of(app()), shell_));
    std::fputs(script.c_str(), stdout);
    return Status();
  }

 private:
  std::string shell_;
};

}  // namespace

std::vector<CommandPtr> add_about_commands(CLI::App& root) {
  std::vector<CommandPtr> commands;
  commands.push_back(std::make_unique<ManCommand>(root));
  commands.push_back(std::make_unique<CompletionCommand>(root));
  return commands;
}

}  // namespace pagoda
