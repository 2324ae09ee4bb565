// The subcommands: one file each, one function here each. The function declares the subcommand and
// its flags below `root` and returns the object that holds what was parsed and can be run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
}

namespace pagoda {

class Command {
 public:
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  // Call once, after the command line was parsed and only if app() was named in it.
  virtual Status run() = 0;
  CLI::App& app() const { return *app_; }

 protected:
  explicit Command(CLI::App* app) : app_(app) {}

 private:
  CLI::App* app_;
};

using CommandPtr = std::unique_ptr<Command>;

CommandPtr add_train_command(CLI::App& root);
CommandPtr add_plan_command(CLI::App& root);
CommandPtr add_init_command(CLI::App& root);
CommandPtr add_upcycle_command(CLI::App& root);
CommandPtr add_eval_command(CLI::App& root);
CommandPtr add_generate_command(CLI::App& root);
CommandPtr add_export_command(CLI::App& root);
CommandPtr add_data_command(CLI::App& root);  // inspect
CommandPtr add_report_command(CLI::App& root);
CommandPtr add_doctor_command(CLI::App& root);
std::vector<CommandPtr> add_ckpt_commands(CLI::App& root);   // ls, verify
std::vector<CommandPtr> add_bench_commands(CLI::App& root);  // disk, memory, step, ...
std::vector<CommandPtr> add_about_commands(CLI::App& root);  // man, completion
CommandPtr add_bench_machine_command(CLI::App& bench);
CommandPtr add_bench_network_command(CLI::App& bench);

// `pagoda --version`: one line, or a JSON object.
std::string version_text(bool json);

// What all ranks of a run must have alike of their program.
std::string program_text();

// One line "pagoda: ..." on stderr.
void print_error(const Status& error);

// Parses argv, runs what it asks for, prints an error as one line "pagoda: ..." on stderr, and
// returns the exit code; an error without a text was printed before. Catches everything.
int run_command_line(int argc, const char* const* argv);

}  // namespace pagoda
