// pagoda report RUN... --out FILE
#include <CLI/CLI.hpp>

#include "base/log.h"
#include "base/output_file.h"
#include "cli/commands.h"
#include "report/run_page.h"

namespace pagoda {
namespace {

class ReportCommand : public Command {
 public:
  explicit ReportCommand(CLI::App& root)
      : Command(root.add_subcommand("report", "Draw one or several runs on a page of HTML")) {
    app().add_option("runs", runs_, "folders of runs")->type_name("RUN")->required();
    app().add_option("--out", out_, "page to write")->type_name("FILE")->required();
  }

  Status run() override {
    RETURN_IF_ERROR(check_output(out_));
    std::vector<RunHistory> runs;
    for (const std::string& run : runs_) {
      ASSIGN_OR_RETURN(RunHistory history, read_history(run));
      runs.push_back(std::move(history));
    }
    RETURN_IF_ERROR(write_output(out_, run_page(runs)));
    log_info("wrote " + out_);
    return Status();
  }

 private:
  std::vector<std::string> runs_;
  std::string out_;
};

}  // namespace

CommandPtr add_report_command(CLI::App& root) { return std::make_unique<ReportCommand>(root); }

}  // namespace pagoda
