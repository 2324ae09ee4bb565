// A command that gets a run's settings from a run file and from flags, which win over it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "config/run_config.h"

namespace pagoda {

class RunCommand : public Command {
 protected:
  // Declares the run file.
  explicit RunCommand(CLI::App* app);
  // Declares the run's flags by add_option_flags; the help shows them behind the command's own.
  // Options for which `read` is false are not shown. A run file's values for them are ignored,
  // since other commands may read them there; a flag is of this command alone, and is refused.
  void add_run_flags(const std::function<bool(const Option&)>& read);
  // Call once, after the command line was parsed. kUsage for a flag that is not read; the errors of
  // load_run_file. Of several processes each has the settings of its rank, and "{rank}" in
  // memory.disk is its number.
  Status read_run_file(int rank = 0);
  // The settings that a process of another rank would have. REQUIRES: read_run_file().
  Result<RunConfig> settings_of(int rank);
  // Whether a flag or the run file sets the option. REQUIRES: read_run_file().
  bool is_told(const char* key) const;

  RunConfig config_;
  OptionTable table_;

 private:
  Status refuse_unread() const;
  void name_folders(int rank);

  std::string run_file_, run_text_;
  RunConfig told_;                  // by flags alone
  std::vector<std::string> flags_;  // keys of the options that these set
  std::function<bool(const Option&)> read_;
};

}  // namespace pagoda
