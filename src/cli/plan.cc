// pagoda plan [run.toml] [--model.path DIR] [--machine FILE | --cluster FILE] [--search] [--json]
//             [--tokens N] [--html FILE]
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/plan_page.h"
#include "cli/plan_report.h"
#include "cli/run_file.h"
#include "cli/search_report.h"
#include "cli/sheet_file.h"
#include "train/this_machine.h"

namespace pagoda {
namespace {

class PlanCommand : public Command {
 public:
  explicit PlanCommand(CLI::App& root)
      : Command(root.add_subcommand(
            "plan", "Whether a model trains on a machine, how fast, and what limits it")) {
    app()
        .add_option("run_file", run_file_, "run file (TOML); flags win over it")
        ->type_name("RUN.toml");
    app()
        .add_option("--machine", machine_, "sheet of the machine (none: this one, roughly)")
        ->type_name("FILE");
    app().add_option("--tokens", tokens_, "of a whole run: its time and what it writes")
        ->type_name("INT");
    app()
        .add_option("--cluster", cluster_, "sheet of a cluster: the best way to train on it")
        ->type_name("FILE");
    app().add_flag("--search", search_, "all ways to train on the machine's devices, best first");
    app().add_option("--html", html_, "file for a page that shows one step")->type_name("FILE");
    app().add_flag("--json", json_, "print one JSON object");
    config_.declare(table_);
    add_option_flags(app(), table_, [](const Option&) { return true; });
  }

  Status run() override;

 private:
  Result<MachineSheet> sheet() const {
    return machine_.empty() ? this_machine_sheet() : read_machine_sheet(machine_);
  }

  Status read();
  Status plan_machine(const PlannedModel& model);
  Status search(const PlannedModel& model);
  Result<ClusterSheet> cluster() const;

  std::string run_file_, machine_, cluster_, html_;
  int64_t tokens_ = 0;
  bool json_ = false, search_ = false;
  RunConfig config_;
  OptionTable table_;
};

Status PlanCommand::read() {
  if (!run_file_.empty()) RETURN_IF_ERROR(load_run_file(app(), table_, run_file_));
  if (config_.model.path.empty()) {
    return Status(Exit::kUsage, "model.path is missing: name a folder with a config.json, or one, "
                                "in the run file or with --model.path");
  }
  if (tokens_ < 0) return Status(Exit::kUsage, "--tokens: must not be negative");
  if (!machine_.empty() && !cluster_.empty()) {
    return Status(Exit::kUsage, "--machine and --cluster: name one of them");
  }
  if (!html_.empty() && (search_ || !cluster_.empty())) {
    return Status(Exit::kUsage, "--html: shows a step of one machine, without --search");
  }
  return config_.validate();
}

// A machine is a cluster of one node.
Result<ClusterSheet> PlanCommand::cluster() const {
  if (!cluster_.empty()) return read_cluster_sheet(cluster_);
  ASSIGN_OR_RETURN(MachineSheet machine, sheet());
  ClusterSheet one;
  one.cluster.name = machine.machine.name;
  one.network.gb_s = machine.link.gb_s > 0 ? machine.link.gb_s : machine.host.copy_gb_s;
  one.nodes.push_back(std::move(machine));
  return one;
}

Status PlanCommand::search(const PlannedModel& model) {
  ASSIGN_OR_RETURN(const ClusterSheet where, cluster());
  const StepDemand demand{config_.data.sequence_len,
                          config_.train.tokens_per_step / config_.data.sequence_len};
  auto ways = search_cluster(model.shape, where, demand);
  SearchReport report{model, where.cluster.name, config_.train.tokens_per_step, {}, 1};
  constexpr size_t kShown = 20;
  if (search_) report.shown = kShown;
  if (ways.ok()) report.ways = ways.take();
  if (!ways.ok() && ways.status().code() != Exit::kDoesNotFit) return ways.status();
  std::fputs((json_ ? report.json() + "\n" : report.text()).c_str(), stdout);
  if (ways.ok()) return Status();
  const std::string more = enough_nodes(model.shape, where, demand);
  return Status(Exit::kDoesNotFit, ways.status().message() + "; " + more);
}

Status PlanCommand::plan_machine(const PlannedModel& model) {
  ASSIGN_OR_RETURN(const MachineSheet machine, sheet());
  if (config_.train.micro_batch_tokens == 0) {
    ASSIGN_OR_RETURN(config_.train.micro_batch_tokens,
                     choose_micro_batch_tokens(model, config_, machine, kCoarsePlan));
  }
  ASSIGN_OR_RETURN(RunPlan plan, plan_run(model, config_, machine, kFinePlan));
  PlanReport report{model, config_, machine, std::move(plan), tokens_, {}, {}};
  if (report.plan.fits.ok()) {
    report.study = study_changes(model, config_, machine, kCoarsePlan);
  } else {
    report.fitting = fitting_changes(model, config_, machine);
  }
  if (!html_.empty() && report.plan.step) {
    RETURN_IF_ERROR(write_text_file(html_, plan_page(report)));
  }
  std::fputs((json_ ? report.json() + "\n" : report.text()).c_str(), stdout);
  if (report.plan.fits.ok() || report.fitting.empty()) return report.plan.fits;
  return Status(Exit::kDoesNotFit,
                report.plan.fits.message() + "; it fits with " + report.fitting.front().text);
}

Status PlanCommand::run() {
  RETURN_IF_ERROR(read());
  ASSIGN_OR_RETURN(const PlannedModel model, read_planned_model(config_.model.path));
  return search_ || !cluster_.empty() ? search(model) : plan_machine(model);
}

}  // namespace

CommandPtr add_plan_command(CLI::App& root) { return std::make_unique<PlanCommand>(root); }

}  // namespace pagoda
