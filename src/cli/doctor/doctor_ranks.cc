#include "cli/doctor/doctor_ranks.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "bench/sheet/nodes.h"
#include "parallel/heartbeat.h"
#include "parallel/launcher.h"

namespace pagoda {
namespace {

constexpr double kHeartbeatS = 1, kDeadlineS = 20;

// Sends each rank this rank's number and looks what comes. Returns the first rank from which
// something else did.
Result<std::optional<int>> find_mute_rank(Communicator& all) {
  const auto n = static_cast<size_t>(all.size());
  std::vector<int> sent(n, all.rank()), got(n, -1);
  std::vector<OutgoingPiece> out;
  std::vector<IncomingPiece> in;
  for (int rank = 0; rank < all.size(); ++rank) {
    const auto i = static_cast<size_t>(rank);
    if (rank == all.rank()) continue;
    out.push_back({rank, reinterpret_cast<const std::byte*>(&sent[i]), sizeof(int)});
    in.push_back({rank, reinterpret_cast<std::byte*>(&got[i]), sizeof(int)});
  }
  RETURN_IF_ERROR(all.exchange(out, in));
  for (int rank = 0; rank < all.size(); ++rank) {
    if (rank != all.rank() && got[static_cast<size_t>(rank)] != rank) return std::optional(rank);
  }
  return std::optional<int>();
}

void compare_kernels(RanksReport& report) {
  for (size_t rank = 1; rank < report.ranks.size(); ++rank) {
    const std::string &first = report.ranks[0].kernel_set, &other = report.ranks[rank].kernel_set;
    if (first == other) continue;
    report.warnings.push_back(strf("rank %zu computes with %s, rank 0 with %s: which rank computes "
                                   "what changes bits", rank, other.c_str(), first.c_str()));
  }
}

std::string reach_row(const char* name, const std::string& why_not) {
  return strf("%-14s %s\n", name,
              why_not.empty() ? "every rank reaches every other"
                              : printable("no (" + why_not + ")", 1000).c_str());
}

}  // namespace

Result<RanksReport> examine_ranks(MpiCommunicator& all, const DoctorReport& mine) {
  all.set_deadline(kDeadlineS);
  RanksReport report;
  ASSIGN_OR_RETURN(const std::vector<Node> nodes, gather_nodes(all));
  ASSIGN_OR_RETURN(const std::vector<std::string> kernel_sets, all.gather(mine.kernel_set));
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all.gather(mine.text()));
  ASSIGN_OR_RETURN(const std::vector<std::string> jsons, all.gather(mine.json()));
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    report.ranks.push_back({nodes[rank].host, kernel_sets[rank], texts[rank], jsons[rank]});
  }
  const std::string launcher = read_launch().launcher;
  report.mpi = mpi_library() + (launcher.empty() ? "" : ", started by " + launcher);
  ASSIGN_OR_RETURN(const std::optional<int> mute, find_mute_rank(all));
  const Status told = agree(
      all, mute ? Status(Exit::kIoError, strf("rank %d sent something else", *mute)) : Status());
  if (all.broken()) return told;
  report.messages = told.message();
  const auto heartbeat =
      Heartbeat::start(all, {kHeartbeatS, kDeadlineS}, [](int, const Status&) {});
  if (all.broken()) return heartbeat.status();
  report.heartbeat = heartbeat.status().message();
  compare_kernels(report);
  return report;
}

std::string RanksReport::text() const {
  std::string out;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    out += strf("rank %zu on ", rank) + printable(ranks[rank].host) + "\n";
    out += ranks[rank].text + "\n";
  }
  out += strf("%zu ranks together\n", ranks.size());
  out += strf("%-14s %s\n", "MPI", printable(mpi).c_str());
  out += reach_row("messages", messages) + reach_row("heartbeat", heartbeat);
  for (const std::string& warning : warnings) {
    out += strf("%-14s %s\n", "warning", printable(warning, 1000).c_str());
  }
  return out;
}

std::string RanksReport::json() const {
  using nlohmann::ordered_json;
  ordered_json out;
  out["ranks"] = ordered_json::array();
  for (const DoctorRank& rank : ranks) {
    ordered_json machine = ordered_json::parse(rank.json, nullptr, false);
    out["ranks"].push_back({{"host", rank.host}, {"machine", std::move(machine)}});
  }
  out["mpi"] = mpi;
  out["messages"] = {{"usable", messages.empty()}, {"text", messages}};
  out["heartbeat"] = {{"usable", heartbeat.empty()}, {"text", heartbeat}};
  out["warnings"] = warnings;
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace pagoda
