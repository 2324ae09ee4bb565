#include "cli/run_command.h"

#include <CLI/CLI.hpp>

#include "cli/run_file.h"

namespace pagoda {

RunCommand::RunCommand(CLI::App* app) : Command(app) {
  app->add_option("run_file", run_file_, "run file (TOML); flags win over it")
      ->type_name("RUN.toml");
}

void RunCommand::add_run_flags(const std::function<bool(const Option&)>& read) {
  read_ = read;
  config_.declare(table_);
  add_option_flags(app(), table_, read);
}

Status RunCommand::read_run_file(int rank) {
  if (!run_file_.empty()) {
    RETURN_IF_ERROR(load_run_file(app(), table_, run_file_, read_, rank));
  }
  const std::string word = "{rank}", number = std::to_string(rank);
  for (std::string& folder : config_.memory.disk) {
    for (size_t at; (at = folder.find(word)) != std::string::npos;) {
      folder.replace(at, word.size(), number);
    }
  }
  return Status();
}

bool RunCommand::is_told(const char* key) const {
  return app().count(std::string("--") + key) > 0;
}

}  // namespace pagoda
