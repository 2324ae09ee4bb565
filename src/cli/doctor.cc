// pagoda doctor [--json] [--dir DIR]
#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/log.h"
#include "base/terminal_text.h"
#include "cli/commands.h"
#include "cli/doctor_report.h"

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
    std::error_code error;
    if (!std::filesystem::is_directory(directory_, error)) {
      return Status(Exit::kNoInput, "--dir " + printable(directory_) + ": no such folder");
    }
    const DoctorReport report = examine_machine(directory_);
    print_result(json_ ? report.json() + "\n" : report.text());
    return Status();
  }

 private:
  bool json_ = false;
  std::string directory_ = ".";
};

}  // namespace

CommandPtr add_doctor_command(CLI::App& root) { return std::make_unique<DoctorCommand>(root); }

}  // namespace pagoda
