#include "bench/sheet/nodes.h"

#include <cstdlib>
#include <fstream>

#include "base/check.h"
#include "parallel/host_name.h"

namespace pagoda {
namespace {

// The boot id of the running kernel, which containers share; the host's name if there is none.
std::string machine_name() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  return std::getline(in, id) ? id : host_name();
}

}  // namespace

Result<std::vector<Node>> gather_nodes(Communicator& all) {
  const NetworkLink link = fastest_network_link();
  ASSIGN_OR_RETURN(const auto hosts, all.gather(host_name()));
  ASSIGN_OR_RETURN(const auto machines, all.gather(machine_name()));
  ASSIGN_OR_RETURN(const auto links, all.gather(link.name));
  ASSIGN_OR_RETURN(const auto speeds, all.gather(strf("%.17g", link.gbit_s)));
  std::vector<Node> nodes;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const double gbit_s = std::strtod(speeds[rank].c_str(), nullptr);
    nodes.push_back({hosts[rank], machines[rank], {links[rank], gbit_s}});
  }
  return nodes;
}

int first_on_machine(const std::vector<Node>& nodes, int rank) {
  const std::string& machine = nodes[static_cast<size_t>(rank)].machine;
  int first = 0;
  while (nodes[static_cast<size_t>(first)].machine != machine) ++first;
  return first;
}

}  // namespace pagoda
