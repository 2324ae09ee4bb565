// Cores by NUMA node, read from made-up machines, and threads that stay on them.
#include "hardware/numa.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "device/device.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

using Cores = std::vector<int>;

// The folders of a machine: what is online, and each node's cores.
class Machine {
 public:
  Machine(const std::string& online, const std::map<int, std::string>& cores_of_node) {
    put_file(root() + "/online", online + "\n");
    for (const auto& [node, cores] : cores_of_node) {
      const std::string folder = root() + "/node" + std::to_string(node);
      std::filesystem::create_directory(folder);
      put_file(folder + "/cpulist", cores + "\n");
    }
  }
  std::string root() const { return folder_.path(); }

 private:
  TempDir folder_;
};

std::vector<Cores> cores_of(const std::vector<NumaNode>& nodes) {
  std::vector<Cores> cores;
  for (const NumaNode& node : nodes) cores.push_back(node.cores);
  return cores;
}

Cores counted(int count) {
  Cores cores(static_cast<size_t>(count));
  std::iota(cores.begin(), cores.end(), 0);
  return cores;
}

Cores cores_by_system() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  Cores cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

TEST(Numa, NodesHoldTheCoresThatMayBeUsed) {
  const Machine two("0-1", {{0, "0-3,8-11"}, {1, "4-7,12-15"}});
  EXPECT_EQ(cores_of(numa_nodes(two.root(), counted(16))),
            (std::vector<Cores>{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}}));
  EXPECT_EQ(cores_of(numa_nodes(two.root(), {2, 3, 4})), (std::vector<Cores>{{2, 3}, {4}}));
  EXPECT_EQ(cores_of(numa_nodes(two.root(), {5, 13})), (std::vector<Cores>{{5, 13}}));
  // Nodes of memory alone, numbers that are missing.
  const Machine sparse("0,2,4", {{0, "0"}, {2, ""}, {4, "1"}});
  EXPECT_EQ(cores_of(numa_nodes(sparse.root(), {0, 1})), (std::vector<Cores>{{0}, {1}}));
}

TEST(Numa, WhatCannotBeReadIsOneNode) {
  const TempDir empty;
  EXPECT_EQ(cores_of(numa_nodes(empty.path(), {0, 1})), (std::vector<Cores>{{0, 1}}));
  const Machine without_cores("0-1", {{0, "0"}});  // where is core 1?
  EXPECT_EQ(cores_of(numa_nodes(without_cores.root(), {0, 1})), (std::vector<Cores>{{0, 1}}));
  const Machine invalid("zero", {{0, "0-1"}});
  EXPECT_EQ(cores_of(numa_nodes(invalid.root(), {0, 1})), (std::vector<Cores>{{0, 1}}));
}

TEST(Numa, ThisMachinesNodesHoldItsCores) {
  EXPECT_EQ(own_cores(), cores_by_system());
  Cores found;
  for (const NumaNode& node : numa_nodes()) {
    EXPECT_FALSE(node.cores.empty());
    found.insert(found.end(), node.cores.begin(), node.cores.end());
  }
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, cores_by_system());
}

std::vector<size_t> nodes_of(int threads, const std::vector<NumaNode>& nodes) {
  std::vector<size_t> found;
  for (int t = 0; t < threads; ++t) found.push_back(node_of_thread(t, threads, nodes));
  return found;
}

TEST(Numa, ThreadsAreSharedOutInRuns) {
  const std::vector<NumaNode> even = {{{0, 1}}, {{2, 3}}}, uneven = {{{0}}, {{1, 2, 3}}};
  EXPECT_EQ(nodes_of(4, even), (std::vector<size_t>{0, 0, 1, 1}));
  EXPECT_EQ(nodes_of(2, even), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(nodes_of(3, even), (std::vector<size_t>{0, 0, 1}));
  EXPECT_EQ(nodes_of(8, even), (std::vector<size_t>{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(nodes_of(4, uneven), (std::vector<size_t>{0, 1, 1, 1}));
  EXPECT_EQ(nodes_of(3, {{{0, 1, 2}}}), (std::vector<size_t>{0, 0, 0}));
}

// Where the threads of a pool may run, by worker; worker 0 is the caller.
std::vector<Cores> cores_of_workers(ThreadPool& pool) {
  std::vector<Cores> cores(static_cast<size_t>(pool.threads()));
  pool.parallel_for(pool.threads(),
                    [&](int64_t i) { cores[static_cast<size_t>(i)] = cores_by_system(); });
  return cores;
}

TEST(Numa, PoolsStayOnTwoNodesAndNotOnOne) {
  const Cores cores = cores_by_system();
  ThreadPool free(4, {{cores}});
  EXPECT_EQ(cores_of_workers(free), std::vector<Cores>(4, cores)) << "one node";
  if (cores.size() < 2) GTEST_SKIP() << "this process has one core; two nodes need two";
  const std::vector<NumaNode> nodes = {{{cores[0]}}, {{cores[1]}}};
  ThreadPool pool(4, nodes);
  const Cores first = {cores[0]}, second = {cores[1]};
  EXPECT_EQ(cores_of_workers(pool), (std::vector<Cores>{cores, first, second, second}))
      << "a caller is left alone";
  std::thread([&] {
    pool.stay_as_caller();
    EXPECT_EQ(cores_by_system(), first);
  }).join();
  std::thread([&] {
    ThreadPool(1, nodes).stay_as_caller();
    EXPECT_EQ(cores_by_system(), cores) << "a pool of one";
  }).join();
  // The threads of streams that use a pool, if they compute.
  const auto shared = std::make_shared<ThreadPool>(2, nodes);
  for (const auto& [kind, stays] : {std::pair{WorkKind::kCompute, true},
                                    {WorkKind::kOptimizer, true}, {WorkKind::kFetch, false}}) {
    const auto stream = make_host_stream({"stream", kind}, shared);
    Cores found;
    stream->enqueue([&] { found = cores_by_system(); });
    stream->synchronize();
    EXPECT_EQ(found, stays ? first : cores) << work_kind_name(kind);
  }
}

// Cores that no machine here has, in sets larger than the C library's own.
TEST(Numa, APoolThatIsRefusedItsCoresSaysSoOnce) {
  const Cores cores = cores_by_system();
  ::testing::internal::CaptureStderr();
  {
    ThreadPool pool(4, {{{60000}}, {{60001, 60002}}});
    EXPECT_EQ(cores_of_workers(pool), std::vector<Cores>(4, cores)) << "they run on";
    EXPECT_EQ(stay_on({{60000}}).code(), Exit::kUnavailable);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string warning = "threads are not kept on their NUMA node";
  const size_t first = log.find(warning);
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(warning, first + 1), std::string::npos) << log;
}

}  // namespace
}  // namespace pagoda
