// pagoda doctor [--json] [--dir DIR], also as several processes
#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/log.h"
#include "base/terminal_text.h"
#include "cli/commands.h"
#include "cli/doctor/doctor_ranks.h"
#include "cli/doctor/doctor_report.h"
#include "cli/joined_run.h"
#include "parallel/launcher.h"

namespace pagoda {
namespace {

class DoctorCommand : public Command {
 public:
  explicit DoctorCommand(CLI::App& root)
      : Command(root.add_subcommand("doctor", "What this machine offers a run")) {
    app().add_flag("--json", json_, "print one JSON object");
    app()
        .add_option("--dir", directory_, "folder whose disk is examined (default: here)")
        ->type_name("DIR");
  }

  Status run() override {
    if (!read_launch().together()) return run_alone();
    ASSIGN_OR_RETURN(const std::unique_ptr<MpiCommunicator> all, join_processes(kJoinDeadlineS));
    if (all->size() == 1) return run_alone();
    return run_joined(*all, [&] { return run_together(*all); });
  }

 private:
  static constexpr double kJoinDeadlineS = 60;

  Status check_folder() const {
    std::error_code error;
    if (std::filesystem::is_directory(directory_, error)) return Status();
    return Status(Exit::kNoInput, "--dir " + printable(directory_) + ": no such folder");
  }

  Status run_alone() const {
    RETURN_IF_ERROR(check_folder());
    const DoctorReport report = examine_machine(directory_);
    print_result(json_ ? report.json() + "\n" : report.text());
    return Status();
  }

  Status run_together(MpiCommunicator& all) const {
    RETURN_IF_ERROR(check_same_words(
        all, strf("pagoda %s doctor%s", PAGODA_VERSION, json_ ? " --json" : "")));
    RETURN_IF_ERROR(agree(all, check_folder()));
    ASSIGN_OR_RETURN(const RanksReport report, examine_ranks(all, examine_machine(directory_)));
    if (all.rank() == 0) print_result(json_ ? report.json() + "\n" : report.text());
    return Status();
  }

  bool json_ = false;
  std::string directory_ = ".";
};

}  // namespace

CommandPtr add_doctor_command(CLI::App& root) { return std::make_unique<DoctorCommand>(root); }

}  // namespace pagoda
