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
  // Declares the run's flags, behind the command's own in the help, as add_option_flags. Those for
  // which `read` is false are not shown, and what a run file says of them is left out.
  void add_run_flags(const std::function<bool(const Option&)>& read);
  // Call once, after the command line was parsed. The errors of load_run_file.
  Status read_run_file();
  // By a flag or the run file; REQUIRES: read_run_file().
  bool is_told(const char* key) const;

  RunConfig config_;
  OptionTable table_;

 private:
  std::string run_file_;
  std::function<bool(const Option&)> read_;
};

}  // namespace pagoda
