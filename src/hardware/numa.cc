#include "hardware/numa.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/check.h"

namespace pagoda {
namespace {

constexpr int kMostCores = 1 << 16;  // whatever a file says

using CoreSet = std::vector<cpu_set_t>;  // one set of CPU_SETSIZE cores behind the other

CoreSet set_of(int cores) {
  return CoreSet(static_cast<size_t>((cores + CPU_SETSIZE - 1) / CPU_SETSIZE), cpu_set_t{});
}

size_t bytes_of(const CoreSet& set) { return set.size() * sizeof(cpu_set_t); }

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
    for (int number = first; number <= std::min(last, kMostCores - 1); ++number) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

}  // namespace

// The system refuses a set that is too small for the cores it could have.
std::vector<int> own_cores() {
  std::vector<int> cores;
  for (int most = CPU_SETSIZE; most <= kMostCores; most *= 2) {
    CoreSet set = set_of(most);
    if (sched_getaffinity(0, bytes_of(set), set.data()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    for (int core = 0; core < most; ++core) {
      if (CPU_ISSET_S(core, bytes_of(set), set.data())) cores.push_back(core);
    }
    break;
  }
  return cores;
}

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

Status stay_on(const NumaNode& node) {
  CHECK(!node.cores.empty());
  CoreSet set = set_of(node.cores.back() + 1);
  for (const int core : node.cores) CPU_SET_S(core, bytes_of(set), set.data());
  if (sched_setaffinity(0, bytes_of(set), set.data()) == 0) return Status();
  return Status(Exit::kUnavailable,
                strf("threads are not kept on their NUMA node (%s); they run on",
                     std::strerror(errno)));
}

}  // namespace pagoda
