// pagoda bench machine [--device auto|cpu|cuda] [--out FILE], also as several processes, one a node
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/bytes.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/stop_signal.h"
#include "base/terminal_text.h"
#include "bench/sheet/machine.h"
#include "bench/sheet/merge_equal_nodes.h"
#include "bench/sheet/network.h"
#include "bench/sheet/nodes.h"
#include "bench/sheet/run_profile.h"
#include "cli/bench_options.h"
#include "cli/commands.h"
#include "cli/joined_run.h"
#include "cli/run_command.h"
#include "cli/sheet_file.h"
#include "cli/value_option.h"
#include "config/run_config.h"
#include "config/usable_gpu.h"
#include "hardware/machine.h"
#include "parallel/launcher.h"
#include "parallel/mpi_communicator.h"

namespace pagoda {
namespace {

// No race: a sheet for `pagoda plan --machine`; of several nodes one for `pagoda plan --cluster`.
class BenchMachineCommand final : public RunCommand {
 public:
  explicit BenchMachineCommand(CLI::App& bench)
      : RunCommand(bench.add_subcommand(
            "machine", "This machine's sheet, for pagoda plan; a cluster's under mpirun")) {
    app()
        .add_option("--dir", directory_, "folder on the drive to be measured (default: here)")
        ->type_name("DIR");
    app()
        .add_option("--out", out_,
                    "file to write (default: standard output); of several nodes the cluster's, "
                    "with the machines' beside it as NAME-nodeN.toml")
        ->type_name("FILE");
    add_value(app(), "--device", device_,
              "device that computes: cpu, cuda, or auto: a GPU if there is one")
        ->type_name("KIND");
    add_value(app(), "--rounds", rounds_, "rounds of each measurement")->type_name("INT");
    add_value(app(), "--bytes", bytes_, "size of arrays and files, each")->type_name("SIZE");
    add_run_flags([](const Option&) { return true; });
    app().footer(
        "With a run file it also measures what the run's devices take for its model's layers.\n"
        "Started as one process on each node it also measures the network between them:\n"
        "  mpirun -n 4 --map-by ppr:1:node --bind-to none pagoda bench machine --out lab.toml");
  }

  Status run() override;

 private:
  Status run_alone();
  Status run_together(MpiCommunicator& all);

  Result<MachineBench> bench() const;
  Status check_out() const;
  Result<std::optional<Gpu>> find_gpu() const;
  Status check_same_options(Communicator& all) const;
  Result<std::vector<MachineSheet>> measure_nodes(Communicator& all, const MachineBench& bench,
                                                  const std::vector<Node>& nodes) const;
  Status write_cluster(const std::vector<MachineSheet>& nodes, const std::vector<Node>& places,
                       const NetworkFound& network) const;

  std::string directory_ = ".", out_, bytes_ = "256MiB", device_ = "auto";
  int64_t rounds_ = 3;
};

Status BenchMachineCommand::run() {
  install_stop_signals();
  const Launch launch = read_launch();
  if (!launch.together()) {
    if (!launch.launcher.empty()) {
      log_warn(launch.launcher + " started one process: no network is measured; start one on each "
                                 "node for that");
    }
    return run_alone();
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<MpiCommunicator> all, join_processes());
  if (all->size() == 1) return run_alone();
  return run_joined(*all, [&] { return run_together(*all); });
}

Status BenchMachineCommand::run_alone() {
  ASSIGN_OR_RETURN(const MachineBench wanted, bench());
  RETURN_IF_ERROR(check_out());
  RETURN_IF_ERROR(read_run_file());
  if (!config_.model.path.empty()) RETURN_IF_ERROR(config_.validate());
  ASSIGN_OR_RETURN(MachineSheet sheet, measure_machine(wanted));
  if (!config_.model.path.empty()) {
    take_gpus(config_, sheet);
    ASSIGN_OR_RETURN(RunProfile found,
                     profile_run(config_, sheet, directory_, static_cast<int>(rounds_)));
    for (const std::string& line : found.lines()) log_info(line);
    sheet.profile = std::move(found.profile);
  }
  if (!out_.empty()) return write_output(out_, sheet.to_toml());
  print_result(sheet.to_toml());
  return Status();
}

Result<MachineBench> BenchMachineCommand::bench() const {
  RETURN_IF_ERROR(check_range("--rounds", rounds_, kMaxRounds));
  RETURN_IF_ERROR(check_folder(directory_));
  ASSIGN_OR_RETURN(const int64_t bytes, parse_size("--bytes", bytes_, 16 * kMiB, kMaxArrayBytes));
  ASSIGN_OR_RETURN(const std::optional<Gpu> gpu, find_gpu());
  return MachineBench{directory_, static_cast<int>(rounds_), usable_cores(), bytes, gpu};
}

// Better now than in a minute.
Status BenchMachineCommand::check_out() const {
  if (out_.empty()) return Status();
  const std::string folder = std::filesystem::path(out_).parent_path();
  std::error_code error;
  if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
    return Status(Exit::kCannotCreate, "--out " + printable(out_) + ": there is no folder " +
                                           printable(folder) + "; create it");
  }
  if (std::filesystem::is_directory(out_, error)) {
    return Status(Exit::kCannotCreate, "--out " + printable(out_) + ": is a folder; name a file");
  }
  return check_output(out_);
}

Result<std::optional<Gpu>> BenchMachineCommand::find_gpu() const {
  enum class Measured : uint8_t { kAuto, kCpu, kCuda };
  ASSIGN_OR_RETURN(const Measured device, parse_choice<Measured>("--device", device_,
                                                                 {{"auto", Measured::kAuto},
                                                                  {"cpu", Measured::kCpu},
                                                                  {"cuda", Measured::kCuda}}));
  if (device == Measured::kCpu) return std::optional<Gpu>();
  const UsableGpu found = usable_gpu();
  if (device == Measured::kCuda && !found.gpu) {
    return Status(Exit::kUnavailable, "--device cuda: " + found.why_not);
  }
  return found.gpu;
}

// What all measure together, or one writes for all. A node may have its own drive and device.
Status BenchMachineCommand::check_same_options(Communicator& all) const {
  const std::string mine = strf("pagoda %s --rounds %lld --bytes ", PAGODA_VERSION,
                                (long long)rounds_) + bytes_ + " --out " + out_;
  RETURN_IF_ERROR(check_same_words(all, mine));
  if (!out_.empty()) return Status();
  return Status(Exit::kUsage, "--out: name the cluster's file to be written");
}

// Rank 0 says what a launcher did that is not meant.
Status warn_of_places(Communicator& all, const std::vector<Node>& nodes) {
  const int cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  ASSIGN_OR_RETURN(
      const auto bound,
      all.gather(usable_cores() < cores ? strf("%d of %d", usable_cores(), cores) : ""));
  for (int rank = 0; all.rank() == 0 && rank < all.size(); ++rank) {
    const Node& node = nodes[static_cast<size_t>(rank)];
    if (const int first = first_on_machine(nodes, rank); first != rank) {
      log_warn(strf("ranks %d and %d share the machine %s: what is between them is memory, no "
                    "network; start one process a node (mpirun --map-by ppr:1:node)",
                    first, rank, printable(node.host).c_str()));
    } else if (!bound[static_cast<size_t>(rank)].empty()) {
      log_warn(strf("rank %d on %s may use %s cores, and is measured with them; to give it all: "
                    "mpirun --bind-to none",
                    rank, printable(node.host).c_str(), bound[static_cast<size_t>(rank)].c_str()));
    }
  }
  return Status();
}

// Returns the sheets of all ranks at rank 0, and none elsewhere. One process measures a machine,
// while others there sleep.
Result<std::vector<MachineSheet>> BenchMachineCommand::measure_nodes(
    Communicator& all, const MachineBench& bench, const std::vector<Node>& nodes) const {
  std::string mine;
  Status status;
  if (first_on_machine(nodes, all.rank()) == all.rank()) {
    const Result<MachineSheet> sheet = measure_machine(bench);
    status = sheet.status();
    if (sheet.ok()) mine = sheet.value().to_toml();
  }
  RETURN_IF_ERROR(agree(all, status));
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all.gather(mine));
  std::vector<MachineSheet> sheets;
  for (int rank = 0; all.rank() == 0 && rank < all.size(); ++rank) {
    const std::string& text = texts[static_cast<size_t>(first_on_machine(nodes, rank))];
    sheets.push_back(parse_machine_sheet(text, strf("rank %d", rank)).take());  // was checked there
  }
  return sheets;
}

// The machines before the cluster that names them.
Status BenchMachineCommand::write_cluster(const std::vector<MachineSheet>& nodes,
                                          const std::vector<Node>& places,
                                          const NetworkFound& network) const {
  const std::filesystem::path out = out_;
  const std::vector<size_t> firsts = first_equal(nodes);
  ClusterSheet cluster;
  cluster.cluster.source = SheetSource::kMeasured;
  cluster.network = {network.gb_s, network.latency_us};
  std::string names;
  for (size_t node = 0; node < nodes.size(); ++node) {
    const std::string file = out.stem().string() + strf("-node%zu.toml", firsts[node]);
    cluster.cluster.nodes.push_back(file);
    cluster.cluster.hosts.push_back(places[node].host);
    if (firsts[node] != node) continue;
    MachineSheet sheet = nodes[node];
    for (size_t i = node + 1; i < nodes.size(); ++i) {
      if (firsts[i] == node) sheet = worst_of(sheet, nodes[i]);
    }
    names += (names.empty() ? "" : " and ") + sheet.machine.name;
    RETURN_IF_ERROR(write_text_file((out.parent_path() / file).string(), sheet.to_toml()));
  }
  cluster.cluster.name = strf("%zu nodes: ", nodes.size()) + names;
  return write_text_file(out_, cluster.to_toml());
}

Status BenchMachineCommand::run_together(MpiCommunicator& all) {
  RETURN_IF_ERROR(check_same_options(all));
  RETURN_IF_ERROR(read_run_file());
  if (!config_.model.path.empty()) {
    return Status(Exit::kUsage,
                  "a run's devices are measured by one process; leave out the run file");
  }
  const Result<MachineBench> wanted = bench();
  RETURN_IF_ERROR(agree(all, wanted.status()));
  RETURN_IF_ERROR(agree(all, all.rank() == 0 ? check_out() : Status()));
  ASSIGN_OR_RETURN(const std::vector<Node> nodes, gather_nodes(all));
  RETURN_IF_ERROR(warn_of_places(all, nodes));
  ASSIGN_OR_RETURN(const NetworkFound network,
                   run_network_bench(all, nodes, wanted.value().rounds));
  auto sheets = measure_nodes(all, wanted.value(), nodes);
  RETURN_IF_ERROR(sheets.status());
  const bool writes = all.rank() == 0;
  for (size_t rank = 0; writes && rank < network.card_gb_s.size(); ++rank) {
    sheets.value()[rank].network.gb_s = network.card_gb_s[rank];
  }
  RETURN_IF_ERROR(agree(all, writes ? write_cluster(sheets.value(), nodes, network) : Status()));
  if (writes) print_result(network.report.text());
  return Status();
}

}  // namespace

CommandPtr add_bench_machine_command(CLI::App& bench) {
  return std::make_unique<BenchMachineCommand>(bench);
}

}  // namespace pagoda
