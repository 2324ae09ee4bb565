// A command that is told a run: by a run file and by flags, which win over it.
#pragma once

#include <functional>
#include <string>

#include "cli/commands.h"
#include "config/run_config.h"

namespace pagoda {

class RunCommand : public Command {
 protected:
  // Declares the run file.
  explicit RunCommand(CLI::App* app);
  // Declares the run's flags, behind the command's own in the help, as add_option_flags.
  void add_run_flags(const std::function<bool(const Option&)>& shown);
  // Call once, after the command line was parsed. The errors of load_run_file.
  Status read_run_file();

  RunConfig config_;
  OptionTable table_;

 private:
  std::string run_file_;
};

}  // namespace pagoda
