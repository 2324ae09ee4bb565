#include "cli/run_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "cli/run_file.h"

namespace pagoda {
namespace {

// "generate", "data inspect"
std::string name_of(const CLI::App& app) {
  const CLI::App* above = app.get_parent();
  const bool nested = above != nullptr && above->get_parent() != nullptr;
  return nested ? above->get_name() + " " + app.get_name() : app.get_name();
}

}  // namespace

RunCommand::RunCommand(CLI::App* app) : Command(app) {
  app->add_option("run_file", run_file_, "run file (TOML); flags win over it")
      ->type_name("RUN.toml");
}

void RunCommand::add_run_flags(const std::function<bool(const Option&)>& read) {
  read_ = read;
  config_.declare(table_);
  add_option_flags(app(), table_, read);
}

Status RunCommand::refuse_unread() const {
  for (const Option& option : table_.options()) {
    if (read_(option) || !is_told(option.key.c_str())) continue;
    return Status(Exit::kUsage, name_of(app()) + " does not read --" + option.key +
                                    "; leave it out (in a run file it is for other commands)");
  }
  return Status();
}

Status RunCommand::read_run_file(int rank) {
  RETURN_IF_ERROR(refuse_unread());
  if (!run_file_.empty()) {
    told_ = config_;
    for (const Option& option : table_.options()) {
      if (is_told(option.key.c_str())) flags_.push_back(option.key);
    }
    ASSIGN_OR_RETURN(run_text_, read_run_text(run_file_));
    RETURN_IF_ERROR(load_run_file(app(), table_, run_file_, run_text_, read_, rank));
  }
  name_folders(rank);
  return Status();
}

// Options refer to config_, which has its own values again in the end.
Result<RunConfig> RunCommand::settings_of(int rank) {
  if (run_file_.empty()) return config_;
  ASSIGN_OR_RETURN(const std::vector<RunFileItem> items,
                   parse_run_file(run_text_, run_file_, table_, rank));
  RunConfig own = std::exchange(config_, told_);
  Status assigned;
  for (const RunFileItem& item : items) {
    const Option& option = *table_.find(item.key);
    const bool told = std::find(flags_.begin(), flags_.end(), item.key) != flags_.end();
    if (!told && read_(option) && assigned.ok()) assigned = option.assign(item.texts);
  }
  name_folders(rank);
  RunConfig others = std::exchange(config_, std::move(own));
  if (!assigned.ok()) return Status(Exit::kUsage, assigned.message());
  return others;
}

void RunCommand::name_folders(int rank) {
  const std::string word = "{rank}", number = std::to_string(rank);
  for (std::string& folder : config_.memory.disk) {
    for (size_t at; (at = folder.find(word)) != std::string::npos;) {
      folder.replace(at, word.size(), number);
    }
  }
}

bool RunCommand::is_told(const char* key) const {
  return app().count(std::string("--") + key) > 0;
}

}  // namespace pagoda
