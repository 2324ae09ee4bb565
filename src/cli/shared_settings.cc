#include "cli/shared_settings.h"

#include <sstream>
#include <vector>

#include "base/log.h"
#include "cli/option_file.h"

namespace pagoda {
namespace {

// The first line of one text that the other has not.
std::string difference(const std::string& one, const std::string& other) {
  std::istringstream here(one), there(other);
  for (std::string mine, others; std::getline(here, mine);) {
    if (!std::getline(there, others) || mine != others) return mine;
  }
  return "more than that";
}

}  // namespace

std::string shared_text(const OptionTable& table) {
  std::string text;
  for (const Option& option : table.options()) {
    if (option.affects != Affects::kLocal) text += option.key + " = " + option.toml() + "\n";
  }
  return text;
}

bool is_about_ranks(const Option& option) {
  for (const char* key :
       {"parallel.exchange", "parallel.network_gb_s", "parallel.deadline_s", "parallel.heartbeat_s",
        "parallel.work_s", "parallel.ports", "parallel.nccl"}) {
    if (option.key == key) return true;
  }
  return false;
}

Status share_settings(const OptionTable& table, const RunConfig& config, RankGroup& ranks) {
  RETURN_IF_ERROR(take_settings_of_rank_0(table, shared_text(table), ranks));
  return ranks.agree(config.validate());
}

Status take_settings_of_rank_0(const OptionTable& table, const std::string& before,
                               RankGroup& ranks) {
  if (ranks.alone()) return Status();
  ASSIGN_OR_RETURN(const std::vector<std::string> asked, ranks.agree(Status(), before));
  for (size_t rank = 1; rank < asked.size(); ++rank) {
    if (asked[rank] == asked[0] || ranks.rank() != 0) continue;
    log_warn(
        strf("rank %zu was given other settings than rank 0 (%s there); rank 0's count for "
             "all",
             rank, printable(difference(asked[rank], asked[0])).c_str()));
    break;
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> now, ranks.agree(Status(), shared_text(table)));
  if (ranks.rank() == 0) return ranks.agree(Status());
  const auto items = parse_run_file(now[0], "the settings of rank 0", table);
  Status taken = items.status();
  for (size_t i = 0; taken.ok() && i < items.value().size(); ++i) {
    taken = table.find(items.value()[i].key)->assign(items.value()[i].texts);
  }
  return ranks.agree(taken);
}

}  // namespace pagoda
