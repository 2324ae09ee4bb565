// pagoda train [run.toml] [--section.key VALUE ...], also as several processes, one on each node
#include <CLI/CLI.hpp>
#include <optional>

#include "base/log.h"
#include "cli/joined_run.h"
#include "cli/run_command.h"
#include "cli/shared_settings.h"
#include "cli/sheet_file.h"
#include "commands/commands.h"

namespace pagoda {
namespace {

class TrainCommand : public RunCommand {
 public:
  explicit TrainCommand(CLI::App& root)
      : RunCommand(root.add_subcommand("train", "Fine-tune every parameter of a model")) {
    app().add_flag("--resume", flags_.resume, "continue the run in train.output_dir");
    app()
        .add_option(
            "--machine", machine_,
            "sheet of the machine, by which what zebra leaves open is chosen (none: a rough "
            "one), and parallel.layout = auto in one process if it has a profile of the run "
            "(else experts)")
        ->type_name("FILE");
    app().add_flag("-q,--quiet", flags_.quiet, "print warnings and errors only");
    add_run_flags([](const Option&) { return true; });
    app().footer(
        "The balance loss of experts is trained with optim.balance_loss, or the model's\n"
        "router_aux_loss_coef, whatever its output_router_logits says.");
  }

  Status run() override;

 private:
  Status run_alone();
  Status run_together(MpiCommunicator& all);
  Status share_settings(RankGroup& ranks, Status mine);
  Status resolve_together(RankGroup& ranks);

  Result<std::optional<MachineSheet>> measured() const {
    if (machine_.empty()) return std::optional<MachineSheet>();
    ASSIGN_OR_RETURN(MachineSheet sheet, read_machine_sheet(machine_));
    return std::optional(std::move(sheet));
  }

  TrainFlags flags_;
  std::string machine_;
};

Status TrainCommand::run() {
  return run_alone_or_joined([&] { return run_alone(); },
                             [&](MpiCommunicator& all) { return run_together(all); });
}

Status TrainCommand::run_alone() {
  RETURN_IF_ERROR(read_run_file());
  RETURN_IF_ERROR(config_.validate_for_training());
  set_log_quiet(flags_.quiet);
  RankGroup alone;
  ASSIGN_OR_RETURN(const std::optional<MachineSheet> sheet, measured());
  RETURN_IF_ERROR(resolve_run(config_, flags_.resume, alone, sheet));
  return run_train(config_, flags_);
}

// Rank 0's settings, as numbers, on all ranks. `mine`: what reading this rank's own gave.
Status TrainCommand::share_settings(RankGroup& ranks, Status mine) {
  const auto devices = parse_devices(config_.train.devices);
  if (mine.ok() && !devices.ok()) {
    mine = Status(devices.status().code(), "train.devices: " + devices.status().message());
  }
  const int64_t count = mine.ok() ? std::max<int64_t>(1, std::ssize(devices.value())) : 0;
  ASSIGN_OR_RETURN(const std::vector<std::string> counts,
                   ranks.agree(mine, strf("%lld", (long long)count)));
  for (const std::string& text : counts)
    config_.total_devices += std::strtoll(text.c_str(), nullptr, 10);
  const std::string before =
      (flags_.resume ? "# --resume\n" : "# no --resume\n") + shared_text(table_);
  RETURN_IF_ERROR(ranks.agree(ranks.rank() == 0 ? config_.validate_for_training() : Status()));
  ASSIGN_OR_RETURN(const int64_t resumes, ranks.most(ranks.rank() == 0 && flags_.resume));
  RETURN_IF_ERROR(take_settings_of_rank_0(table_, before, ranks));
  flags_.resume = resumes != 0;
  return Status();
}

// What rank 0's settings leave open.
Status TrainCommand::resolve_together(RankGroup& ranks) {
  const RankGroup::OwnWork plans(ranks);
  Result<std::optional<MachineSheet>> sheet = std::optional<MachineSheet>();
  if (ranks.rank() == 0) sheet = measured();
  RETURN_IF_ERROR(ranks.agree(sheet.status()));
  RETURN_IF_ERROR(resolve_run(config_, flags_.resume, ranks, sheet.value()));
  RETURN_IF_ERROR(take_settings_of_rank_0(table_, "", ranks));
  return ranks.agree(config_.validate());
}

Status TrainCommand::run_together(MpiCommunicator& all) {
  set_log_quiet(flags_.quiet || all.rank() != 0);
  const auto settle = [&](RankGroup& ranks) {
    const Status read = read_run_file(all.rank());
    const RunConfig::Parallel& times = config_.parallel;
    if (read.ok() && times.deadline_s > 0) ranks.set_deadlines(times.deadline_s, times.work_s);
    return share_settings(ranks, read);
  };
  const auto work = [&](RankGroup& ranks) -> Status {
    Status ended = resolve_together(ranks);
    if (ended.ok()) ended = run_train(config_, flags_, &ranks);
    const RankGroup::OwnWork ends(ranks);  // rank 0 may still write a trace
    if (!all.broken()) RETURN_IF_ERROR(all.barrier());
    return ended;
  };
  return run_ranked(all, config_, {settle, work});
}

}  // namespace

CommandPtr add_train_command(CLI::App& root) { return std::make_unique<TrainCommand>(root); }

}  // namespace pagoda
