// pagoda bench network [--json] [--rounds N], as several processes
#include <CLI/CLI.hpp>

#include "base/log.h"
#include "base/options.h"
#include "base/stop_signal.h"
#include "base/terminal_text.h"
#include "bench/sheet/network.h"
#include "cli/bench_options.h"
#include "cli/commands.h"
#include "cli/joined_run.h"
#include "cli/value_option.h"
#include "parallel/launcher.h"

namespace pagoda {
namespace {

class BenchNetworkCommand final : public Command {
 public:
  explicit BenchNetworkCommand(CLI::App& bench)
      : Command(bench.add_subcommand(
            "network", "The network between processes, against cards, memory and MPI's exchange")) {
    app().add_flag("--json", json_, "print one JSON object");
    add_value(app(), "--rounds", rounds_, "times that ours and the roof take turns")
        ->type_name("INT");
    app().footer("Start it as several processes, one on each node or two on one:\n"
                 "  mpirun -n 4 --map-by ppr:1:node --bind-to none pagoda bench network");
  }

  Status run() override {
    RETURN_IF_ERROR(check_range("--rounds", rounds_, kMaxRounds));
    install_stop_signals();
    if (!read_launch().together()) {
      return Status(Exit::kUsage, "bench network measures between processes; start several of it: "
                                  "mpirun -n 2 pagoda bench network");
    }
    ASSIGN_OR_RETURN(const std::unique_ptr<MpiCommunicator> all, join_processes());
    return run_joined(*all, [&] { return run_together(*all); });
  }

 private:
  Status run_together(MpiCommunicator& all) const {
    if (all.size() == 1) return Status(Exit::kUsage, "one process was started; start several");
    RETURN_IF_ERROR(check_same_words(
        all, strf("pagoda %s bench network --rounds %lld%s", PAGODA_VERSION, (long long)rounds_,
                  json_ ? " --json" : "")));
    ASSIGN_OR_RETURN(const std::vector<Node> nodes, gather_nodes(all));
    ASSIGN_OR_RETURN(NetworkFound found,
                     run_network_bench(all, nodes, static_cast<int>(rounds_)));
    if (all.rank() != 0) return Status();
    const std::string gb_s = strf("%.4g", found.gb_s), us = strf("%.4g", found.latency_us);
    std::string cards;  // as parallel.network_gb_s
    for (const double rate : found.card_gb_s) {
      cards += (cards.empty() ? "" : ", ") + toml_string(strf("%.3g", rate));
    }
    if (json_) {
      found.report.facts.push_back({"gb_s", gb_s});
      found.report.facts.push_back({"latency_us", us});
      if (!cards.empty()) found.report.facts.push_back({"network_gb_s", cards});
      print_result(found.report.json() + "\n");
    } else {
      print_result(
          found.report.text() + "\nFor a cluster's sheet:\n[network]\ngb_s = " + gb_s +
          "\nlatency_us = " + us + "\n" +
          (cards.empty() ? "" : "\nFor a run file:\n[parallel]\nnetwork_gb_s = [" + cards + "]\n"));
    }
    return Status();
  }

  bool json_ = false;
  int64_t rounds_ = 7;
};

}  // namespace

CommandPtr add_bench_network_command(CLI::App& bench) {
  return std::make_unique<BenchNetworkCommand>(bench);
}

}  // namespace pagoda
