#include "base/numa.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "base/log.h"

namespace pagoda {
namespace {

std::vector<int> own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

// The numbers of a list such as "0-3,8-11"; none if there is no such file.
std::vector<int> read_list(const std::string& path) {
  std::vector<int> numbers;
  std::ifstream in(path);
  for (std::string range; std::getline(in, range, ',');) {
    std::istringstream text(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(text >> first)) continue;
    if (!(text >> dash >> last)) last = first;
    for (int number = first; number <= std::min(last, CPU_SETSIZE - 1); ++number) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::string& root) { return numa_nodes(root, own_cores()); }

std::vector<NumaNode> numa_nodes(const std::string& root, const std::vector<int>& cores) {
  std::vector<NumaNode> nodes;
  size_t placed = 0;
  for (const int number : read_list(root + "/online")) {
    NumaNode node;
    for (const int core : read_list(root + "/node" + std::to_string(number) + "/cpulist")) {
      if (std::binary_search(cores.begin(), cores.end(), core)) node.cores.push_back(core);
    }
    placed += node.cores.size();
    if (!node.cores.empty()) nodes.push_back(std::move(node));
  }
  if (placed != cores.size() || nodes.empty()) return {{cores}};
  return nodes;
}

size_t node_of_thread(int thread, int threads, const std::vector<NumaNode>& nodes) {
  CHECK(thread >= 0 && thread < threads && !nodes.empty());
  size_t cores = 0;
  for (const NumaNode& node : nodes) cores += node.cores.size();
  size_t place = static_cast<size_t>(thread) * cores / static_cast<size_t>(threads);
  size_t node = 0;
  while (node + 1 < nodes.size() && place >= nodes[node].cores.size()) {
    place -= nodes[node++].cores.size();
  }
  return node;
}

void stay_on(const NumaNode& node) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : node.cores) CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof(set), &set) == 0) return;
  log_warn(strf("threads are not kept on their NUMA node (%s); they run on", std::strerror(errno)));
}

}  // namespace pagoda
