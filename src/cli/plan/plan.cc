// pagoda plan [run.toml] [--model.path DIR] [--machine FILE | --cluster FILE] [--search] [--json]
//             [--tokens N] [--html FILE] [--routing FILE]
#include <CLI/CLI.hpp>
#include <optional>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/si_units.h"
#include "base/terminal_text.h"
#include "cli/plan/plan_page.h"
#include "cli/plan/plan_report.h"
#include "cli/plan/search_report.h"
#include "cli/run_command.h"
#include "cli/sheet_file.h"
#include "plan/machine/work_cost.h"
#include "preview/cluster_changes.h"
#include "preview/equal_copies.h"
#include "preview/layout_choice.h"
#include "preview/layout_search.h"
#include "preview/rank_order.h"
#include "preview/sharing_choice.h"
#include "preview/this_machine.h"

namespace pagoda {
namespace {

constexpr size_t kMostShown = 20;  // rows of a table

class PlanCommand : public RunCommand {
 public:
  explicit PlanCommand(CLI::App& root)
      : RunCommand(root.add_subcommand(
            "plan", "Whether a model trains on a machine, how fast, and what limits it")) {
    app()
        .add_option("--machine", machine_,
                    "sheet of the machine (none: a rough one of this machine)")
        ->type_name("FILE");
    app()
        .add_option("--tokens", tokens_,
                    "tokens of a whole run, to tell its time and what it writes")
        ->type_name("INT");
    app()
        .add_option("--cluster", cluster_, "sheet of a cluster, to find the best layout on it")
        ->type_name("FILE");
    app().add_flag("--search", search_,
                   "list settings of the run on the machine, or on several devices its layouts, "
                   "best first");
    app().add_option("--html", html_, "file for a page that shows one step")->type_name("FILE");
    app()
        .add_option("--routing", routing_,
                    "what train.trace_routing recorded of this run: say what other homes of "
                    "experts and another order of all-to-alls would bring")
        ->type_name("FILE");
    app().add_flag("--json", json_, "print one JSON object");
    add_run_flags([](const Option&) { return true; });
  }

  Status run() override;

 private:
  Result<MachineSheet> sheet() const;

  Status read();
  Status plan_machine(const ModelSizes& model);
  Status search_machine(const ModelSizes& model);
  Status search_cluster(const ModelSizes& model);
  Status plan_copies(const ModelSizes& model, SearchReport& report);
  Result<ClusterSheet> nodes_of_train();
  Result<std::vector<RunConfig>> settings_of_ranks(const ClusterSheet& where);
  Result<std::vector<RunConfig>> configs_of_ranks(const ModelSizes& model,
                                                  const ClusterSheet& where,
                                                  bool whole_rows = false);
  Status add_as_train(const ModelSizes& model, SearchReport& report);
  Status add_layouts(const ModelSizes& model, SearchReport& report);
  Result<RoutedForecast> plan_routing(const ModelSizes& model, std::vector<PlannedRun> runs,
                                      const ClusterSheet& where) const;
  ClusterDemand demand() const {
    return {config_.data.sequence_len, config_.train.tokens_per_step / config_.data.sequence_len};
  }
  // What was found; kDoesNotFit where nothing was.
  Status print(const SearchReport& report) const;

  std::string machine_, cluster_, html_, routing_;
  std::optional<RoutingTrace> trace_;  // the file that routing_ names
  std::optional<ClusterSheet> where_;  // the file that cluster_ names
  int64_t tokens_ = 0;
  bool json_ = false, search_ = false;
};

Status PlanCommand::read() {
  RETURN_IF_ERROR(read_run_file());
  if (config_.model.path.empty()) {
    return Status(Exit::kUsage,
                  "model.path is missing: name a config.json, or a folder that has one, in the run "
                  "file or with --model.path");
  }
  constexpr int64_t kMostTokens = 1'000'000'000'000'000;
  if (tokens_ < 0 || tokens_ > kMostTokens) {
    return Status(Exit::kUsage, "--tokens: must be from 0 to 10^15");
  }
  if (!machine_.empty() && !cluster_.empty()) {
    return Status(Exit::kUsage, "--machine and --cluster: name one of them");
  }
  if (tokens_ > 0 && search_ && cluster_.empty()) {
    return Status(Exit::kUsage,
                  "--tokens: plans the run as it is, or with --cluster the best layout; "
                  "leave out --search");
  }
  if (!html_.empty() && search_ && cluster_.empty()) {
    return Status(Exit::kUsage,
                  "--html: shows a step of the run as it is, or with --cluster of "
                  "the best layout; leave out --search");
  }
  if (!routing_.empty() && search_ && cluster_.empty()) {
    return Status(Exit::kUsage,
                  "--routing: is of the run as it is, or with --cluster of the one that a process "
                  "on each node makes; leave out --search");
  }
  if (!routing_.empty()) {
    ASSIGN_OR_RETURN(trace_, read_routing_trace(routing_));
  }
  const bool elsewhere = !machine_.empty() || !cluster_.empty();
  if (!cluster_.empty()) {
    ASSIGN_OR_RETURN(const ClusterSheet listed, read_cluster_sheet(cluster_));
    where_ = in_rank_order(listed);
    ASSIGN_OR_RETURN(const std::vector<RunConfig> ranks, settings_of_ranks(*where_));
    config_.total_devices = ranks.front().total_devices;
    // Microbatches are the search's, rows each.
    config_.train.micro_batch_tokens = config_.data.sequence_len;
  }
  return elsewhere ? config_.validate_for_planning() : config_.validate();
}

// Leaves a machine the GPUs that the run lists, or all where it lists none.
Status leave_listed_gpus(const RunConfig& config, MachineSheet& sheet) {
  const std::vector<ListedDevice> listed = config.devices();
  if (!names_gpus(listed)) return Status();
  const int64_t gpus = std::ssize(listed);
  if (!sheet.gpu()) {
    return Status(Exit::kUsage, strf("train.devices names GPUs, of which \"%s\" has none; leave "
                                     "train.devices out",
                                     printable(sheet.machine.name).c_str()));
  }
  if (gpus > sheet.device.count) {
    return Status(
        Exit::kUsage,
        strf("train.devices names %lld GPUs, and \"%s\" has %lld; name fewer, or set device.count "
             "and link.gb_s in the sheet",
             (long long)gpus, printable(sheet.machine.name).c_str(),
             (long long)sheet.device.count));
  }
  sheet.device.count = gpus;
  return Status();
}

Result<MachineSheet> PlanCommand::sheet() const {
  if (machine_.empty()) return this_machine_sheet(config_.gpus());
  ASSIGN_OR_RETURN(MachineSheet sheet, read_machine_sheet(machine_));
  RETURN_IF_ERROR(leave_listed_gpus(config_, sheet));
  return sheet;
}

// A machine is a cluster of one node.
ClusterSheet one_node(const MachineSheet& machine) {
  ClusterSheet one;
  one.cluster.name = machine.machine.name;
  one.network.gb_s = machine.link.gb_s > 0 ? machine.link.gb_s : machine.host.copy_gb_s;
  one.nodes.push_back(machine);
  return one;
}

Status PlanCommand::print(const SearchReport& report) const {
  print_result(json_ ? report.json() + "\n" : report.text());
  return report.fits() ? Status() : Status(Exit::kDoesNotFit, report.why);
}

// With several devices also layouts of the run.
Status PlanCommand::search_machine(const ModelSizes& model) {
  ASSIGN_OR_RETURN(const MachineSheet machine, sheet());
  const bool several = machine.device.count > 1 || config_.num_devices() > 1;
  SearchReport report{model, "machine", machine.machine.name, config_.train.tokens_per_step,
                      kMostShown};
  auto settings = search_settings(model, config_, machine, kSearchPlan);
  if (!settings.ok() && !several) return settings.status();
  if (settings.ok()) report.settings = settings.take();
  if (several) {
    report.own = {config_};
    RunConfig own = config_;
    own.total_devices = devices_of_nodes(own, one_node(machine));
    if (own.train.micro_batch_tokens == 0) {
      ASSIGN_OR_RETURN(own.train.micro_batch_tokens,
                       choose_micro_batch_tokens(model, own, machine, 1, kSearchPlan));
    }
    const ClusterSheet alone = one_node(machine);
    report.layouts = search_layouts(model, {&own, 1}, alone, kSearchPlan);
    if (report.layouts.runs.empty() && !settings.ok()) return settings.status();
    if (!report.layouts.runs.empty()) {
      report.ways = layout_ways(model, {&own, 1}, alone, kSearchPlan, report.layouts);
    }
  }
  const std::string& with = report.settings.fits_with;
  report.why = report.settings.fits.message() + (with.empty() ? "" : "; it fits with " + with);
  return print(report);
}

// Returns the cluster with the GPUs alone that `train` takes: those that a rank lists, or one.
Result<ClusterSheet> PlanCommand::nodes_of_train() {
  ClusterSheet taken = *where_;
  for (size_t r = 0; r < taken.nodes.size(); ++r) {
    MachineSheet& node = taken.nodes[r];
    ASSIGN_OR_RETURN(const RunConfig config, settings_of(static_cast<int>(r)));
    RETURN_IF_ERROR(config.check_devices());
    RETURN_IF_ERROR(leave_listed_gpus(config, node));
    if (node.gpu() && !names_gpus(config.devices())) node.device.count = 1;
  }
  return taken;
}

// Returns [rank] the settings that the run file and the flags have for it.
Result<std::vector<RunConfig>> PlanCommand::settings_of_ranks(const ClusterSheet& where) {
  std::vector<RunConfig> configs;
  for (size_t r = 0; r < where.nodes.size(); ++r) {
    ASSIGN_OR_RETURN(RunConfig config, settings_of(static_cast<int>(r)));
    RETURN_IF_ERROR(config.check_devices());
    configs.push_back(std::move(config));
  }
  const int64_t devices = devices_of_nodes(configs, where);
  for (RunConfig& config : configs) config.total_devices = devices;
  return configs;
}

// Returns the same of the run as a process on each node makes it. whole_rows: with
// microbatches of a row each, where its own divides rows.
Result<std::vector<RunConfig>> PlanCommand::configs_of_ranks(const ModelSizes& model,
                                                             const ClusterSheet& where,
                                                             bool whole_rows) {
  ASSIGN_OR_RETURN(std::vector<RunConfig> configs, settings_of_ranks(where));
  int64_t microbatch = 0;
  for (size_t r = 0; r < where.nodes.size(); ++r) {
    RunConfig& config = configs[r];
    int64_t& tokens = config.train.micro_batch_tokens;
    if (whole_rows && tokens % config.data.sequence_len != 0) tokens = config.data.sequence_len;
    RETURN_IF_ERROR(config.validate_for_planning());
    if (config.train.micro_batch_tokens == 0) {
      ASSIGN_OR_RETURN(
          const int64_t chosen,
          choose_micro_batch_tokens(model, config, where.nodes[r],
                                    static_cast<int>(where.nodes.size()), kSearchPlan));
      microbatch = microbatch == 0 ? chosen : std::min(microbatch, chosen);
    }
  }
  for (RunConfig& config : configs) {
    if (config.train.micro_batch_tokens == 0) config.train.micro_batch_tokens = microbatch;
  }
  return configs;
}

Result<RoutedForecast> PlanCommand::plan_routing(const ModelSizes& model,
                                                 std::vector<PlannedRun> runs,
                                                 const ClusterSheet& where) const {
  std::vector<PlannedRank> ranks;
  for (size_t r = 0; r < runs.size(); ++r) ranks.push_back({std::move(runs[r]), &where.nodes[r]});
  const ClusterSheet::Network& network = where.network;
  return forecast_routed(model, std::move(ranks),
                         {WorkClock::link(network.gb_s, network.latency_us), network.gb_s * kGiga},
                         *trace_);
}

// The best layout is what is planned.
Status PlanCommand::add_layouts(const ModelSizes& model, SearchReport& report) {
  const ClusterSheet& where = *where_;
  ASSIGN_OR_RETURN(report.own, settings_of_ranks(where));
  ASSIGN_OR_RETURN(const std::vector<RunConfig> configs, configs_of_ranks(model, where, true));
  report.layouts = search_layouts(model, configs, where, kSearchPlan);
  if (report.layouts.runs.empty()) {
    const SearchedLayout own{configs, true, {}};
    report.fit_with = cluster_fits_with(layout_planner(model, own, kSearchPlan), where, demand());
    report.why = report.no_ranks;
    if (report.why.empty()) {
      report.why = forecast_layout(model, configs, where, kSearchPlan).status().message();
    }
    if (!report.fit_with.empty()) report.why += "; it fits with " + report.fit_with.front().text;
    return Status();
  }
  report.total_tokens = tokens_;
  report.best_layout = true;
  report.ways = layout_ways(model, configs, where, kSearchPlan, report.layouts);
  const SearchedLayout& best = report.layouts.runs.front();
  if (search_) {
    report.helps = cluster_helps(layout_planner(model, best, kSearchPlan), where, demand(),
                                 best.forecast.tokens_per_s());
  }
  if (html_.empty()) return Status();
  return write_output(html_, layout_page(report));
}

// Plans equal copies of a run, with rank 0's settings, on a cluster of too many devices for one.
Status PlanCommand::plan_copies(const ModelSizes& model, SearchReport& report) {
  if (!html_.empty() || trace_) {
    return Status(Exit::kUsage,
                  strf("--html and --routing: are of a run, which has %d devices at most; "
                       "plan a smaller cluster with them",
                       kMostDevices));
  }
  ASSIGN_OR_RETURN(report.own, settings_of_ranks(*where_));
  ASSIGN_OR_RETURN(const std::vector<RunConfig> configs, configs_of_ranks(model, *where_, true));
  std::vector<DividedCluster> divided =
      divide_cluster(model, configs.front(), *where_, kSearchPlan);
  if (divided.empty()) {
    report.why = strf("no equal copies of at most %d devices fit, with whole microbatches each",
                      kMostDevices);
    return print(report);
  }
  report.copies = divided.front().copies;
  report.layouts = std::move(divided.front().found);
  report.total_tokens = tokens_;
  report.best_layout = true;
  return print(report);
}

// A run that there is not is said in the report.
Status PlanCommand::add_as_train(const ModelSizes& model, SearchReport& report) {
  const auto none = [&](const Status& why) {
    report.no_ranks = why.message();
    return Status();
  };
  auto taken = nodes_of_train();
  if (!taken.ok()) return none(taken.status());
  auto configs = configs_of_ranks(model, *taken);
  if (!configs.ok()) return none(configs.status());
  auto own = forecast_layout(model, *configs, *taken, kSearchPlan);
  if (!own.ok()) return none(own.status());
  report.few_layers = own->few_layers;
  report.ranks = std::move(own->forecast);
  report.sharing = recommend_sharing(model, *configs, *taken, kSearchPlan);
  if (!trace_) return Status();
  ASSIGN_OR_RETURN(std::vector<PlannedRun> runs, planned_ranks(model, *configs, *taken));
  ASSIGN_OR_RETURN(report.routed, plan_routing(model, std::move(runs), *taken));
  return Status();
}

Status PlanCommand::search_cluster(const ModelSizes& model) {
  const ClusterSheet& where = *where_;
  SearchReport report{model, "cluster", where.cluster.name, config_.train.tokens_per_step,
                      search_ ? kMostShown : 1};
  if (config_.total_devices > kMostDevices && where.equal_nodes()) {
    return plan_copies(model, report);
  }
  report.hostfile = hostfile(where);
  RETURN_IF_ERROR(add_as_train(model, report));
  RETURN_IF_ERROR(add_layouts(model, report));
  return print(report);
}

Status PlanCommand::plan_machine(const ModelSizes& model) {
  ASSIGN_OR_RETURN(const MachineSheet machine, sheet());
  if (config_.train.micro_batch_tokens == 0) {
    ASSIGN_OR_RETURN(config_.train.micro_batch_tokens,
                     choose_micro_batch_tokens(model, config_, machine, 1, kCoarsePlan));
  }
  RETURN_IF_ERROR(choose_layout(model, machine, config_).status());
  ASSIGN_OR_RETURN(RunForecast plan, forecast_run(model, config_, machine, kFinePlan));
  PlanReport report{model, config_, machine, std::move(plan), tokens_, {}, {}};
  const ClusterSheet alone = one_node(machine);
  if (report.plan.fits.ok()) {
    // A model with very many experts is planned in coarser pieces, for an answer in two seconds,
    // and so is one on several devices, whose exchanges are many more tasks.
    constexpr int64_t kMany = 8192;
    const bool many = model.shape.num_layers() * model.shape.num_experts > kMany ||
                      report.plan.devices.size() > 1;
    report.advice = advise(model, config_, machine, many ? kSearchPlan : kCoarsePlan);
    RunConfig own = config_;
    own.total_devices = devices_of_nodes(own, alone);
    report.sharing = recommend_sharing(model, {&own, 1}, alone, kSearchPlan);
  } else {
    report.fitting = fitting_changes(model, config_, machine);
  }
  if (trace_ && report.plan.step) {
    std::vector<PlannedRun> runs(1);
    ASSIGN_OR_RETURN(runs[0], planned_run(model, config_, machine));
    ASSIGN_OR_RETURN(report.routed, plan_routing(model, std::move(runs), alone));
  }
  if (!html_.empty() && report.plan.step) {
    RETURN_IF_ERROR(write_output(html_, plan_page(report)));
  }
  print_result(json_ ? report.json() + "\n" : report.text());
  if (report.plan.fits.ok() || report.fitting.empty()) return report.plan.fits;
  return Status(Exit::kDoesNotFit,
                report.plan.fits.message() + "; it fits with " + report.fitting.front().text);
}

Status PlanCommand::run() {
  RETURN_IF_ERROR(read());
  ASSIGN_OR_RETURN(ModelSizes model, read_model_sizes(config_.model.path));
  RETURN_IF_ERROR(model.cut_experts(config_.hidden_shares()));
  if (!cluster_.empty()) return search_cluster(model);
  return search_ ? search_machine(model) : plan_machine(model);
}

}  // namespace

CommandPtr add_plan_command(CLI::App& root) { return std::make_unique<PlanCommand>(root); }

}  // namespace pagoda
