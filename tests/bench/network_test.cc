// What is known of a network without one: who launched, what a card says of its link, which nodes
// are alike. What processes say to each other: tests/process/process_mpi_test.cc.
#include "bench/sheet/network.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "bench/sheet/merge_equal_nodes.h"
#include "bench/sheet/nodes.h"
#include "hardware/network_link.h"
#include "parallel/launcher.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

class LauncherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) ::unsetenv(name);
  }
  void TearDown() override { SetUp(); }
  static Launch launch_with(const char* name, const char* value) {
    ::setenv(name, value, 1);
    return read_launch();
  }

  static constexpr const char* kNames[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                           "SLURM_STEP_NUM_TASKS", "PMIX_RANK"};
};

TEST_F(LauncherTest, AnOrdinaryRunHasNone) {
  EXPECT_EQ(read_launch().launcher, "");
  EXPECT_FALSE(read_launch().together());
  for (const char* nonsense : {"", "zero", "0", "-3", "99999999999"}) {
    EXPECT_FALSE(launch_with("PMI_SIZE", nonsense).together()) << nonsense;
  }
}

TEST_F(LauncherTest, SaysWhoAndHowMany) {
  const Launch unsaid = launch_with("PMIX_RANK", "0");
  EXPECT_EQ(unsaid.launcher, "PMIx");
  EXPECT_TRUE(unsaid.together());
  // srun of one task, and mpirun within it.
  EXPECT_FALSE(launch_with("SLURM_STEP_NUM_TASKS", "1").together());
  EXPECT_EQ(launch_with("SLURM_STEP_NUM_TASKS", "4").processes, 4);
  EXPECT_EQ(launch_with("PMI_SIZE", "3").processes, 3);
  const Launch mpirun = launch_with("OMPI_COMM_WORLD_SIZE", "2");
  EXPECT_EQ(mpirun.launcher, "Open MPI");
  EXPECT_EQ(mpirun.processes, 2);
}

TEST(NetworkLink, IsTheFastestThatIsUp) {
  const TempDir dir;
  const auto put = [&](const std::string& name, const std::string& content) {
    const std::filesystem::path path = dir.file(name);
    std::filesystem::create_directories(path.parent_path());
    put_file(path, content + "\n");
  };
  const auto link = [&] { return fastest_network_link(dir.file("net"), dir.file("ib")); };
  EXPECT_EQ(link().text(), "");
  put("net/lo/operstate", "unknown");
  put("net/lo/speed", "100000");
  put("net/virtual/operstate", "up");
  put("net/virtual/speed", "-1");
  EXPECT_EQ(link().text(), "");
  EXPECT_EQ(link().gb_s(), 0);
  put("net/eth0/operstate", "up");
  put("net/eth0/speed", "10000");
  put("net/eth1/operstate", "down");
  put("net/eth1/speed", "25000");
  EXPECT_EQ(link().text(), "eth0, 10 Gbit/s");
  EXPECT_EQ(link().gb_s(), 1.25);
  put("ib/mlx5_0/ports/1/state", "1: DOWN");
  put("ib/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)");
  EXPECT_EQ(link().text(), "eth0, 10 Gbit/s");
  put("ib/mlx5_0/ports/2/state", "4: ACTIVE");
  put("ib/mlx5_0/ports/2/rate", "100 Gb/sec (4X EDR)");
  EXPECT_EQ(link().text(), "mlx5_0, 100 Gbit/s");
}

TEST(Nodes, OneProcessSpeaksForAMachine) {
  std::vector<Node> nodes(5);
  const char* machines[] = {"a", "b", "a", "c", "b"};
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i].machine = machines[i];
  const int firsts[] = {0, 1, 0, 3, 1};
  for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(first_on_machine(nodes, rank), firsts[rank]);
}

TEST(NetworkCards, AreAsFastAsThoseThatAreHardlySlower) {
  using Rates = std::vector<double>;
  EXPECT_TRUE(unequal_cards(Rates{}).empty());
  EXPECT_TRUE(unequal_cards(Rates{10, 12, 11}).empty());
  EXPECT_EQ(unequal_cards(Rates{10, 12, 40, 11, 46}), (Rates{10, 10, 40, 10, 40}));
  EXPECT_EQ(unequal_cards(Rates{12.5, 10}), (Rates{12.5, 10}));
}

MachineSheet sheet_named(const std::string& name, double scale) {
  MachineSheet sheet;
  sheet.machine.name = name;
  OptionTable table;
  sheet.declare(table);
  for (const Option& option : table.options()) {
    if (double* const* value = std::get_if<double*>(&option.target)) **value = 8 * scale;
    if (MemorySize* const* size = std::get_if<MemorySize*>(&option.target)) {
      **size = MemorySize::of_bytes(static_cast<int64_t>(8 * scale) << 30);
    }
  }
  // Not measured, or what tells them apart.
  sheet.host.cores = 4;
  sheet.disk.tbw = sheet.link.gb_s = sheet.link.latency_us = sheet.network.gb_s = 1;
  sheet.disk.half_duplex = false;
  return sheet;
}

TEST(AlikeNodes, HaveTheWorstOfEach) {
  const MachineSheet quick = sheet_named("x", 2), slow = sheet_named("x", 0.5);
  EXPECT_EQ(first_equal({quick, sheet_named("y", 1), slow, sheet_named("y", 3)}),
            (std::vector<size_t>{0, 1, 0, 1}));
  MachineSheet wider = quick;
  wider.host.cores = 8;
  EXPECT_EQ(first_equal({quick, wider}), (std::vector<size_t>{0, 1}));
  wider = quick;
  wider.network.gb_s = 2 * quick.network.gb_s;
  EXPECT_EQ(first_equal({quick, wider}), (std::vector<size_t>{0, 1}));

  MachineSheet worst = worst_of(quick, slow);
  EXPECT_EQ(worst.to_toml(), worst_of(slow, quick).to_toml());
  OptionTable table;
  worst.declare(table);
  const std::vector<std::string> more_is_worse = {"device.attention_half_tokens",
                                                  "device.launch_us", "disk.latency_us"};
  const std::vector<std::string> others = {"host.cores", "disk.tbw", "link.gb_s", "link.latency_us",
                                           "network.gb_s"};
  const auto holds = [](const std::vector<std::string>& keys, const std::string& key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  for (const Option& option : table.options()) {
    if (holds(others, option.key)) continue;
    if (double* const* value = std::get_if<double*>(&option.target)) {
      EXPECT_EQ(**value, holds(more_is_worse, option.key) ? 16 : 4) << option.key;
    }
    if (MemorySize* const* size = std::get_if<MemorySize*>(&option.target)) {
      EXPECT_EQ((*size)->resolve(0, 0), int64_t{4} << 30) << option.key;
    }
  }
  EXPECT_FALSE(worst.disk.half_duplex);
  MachineSheet half = quick;
  half.disk.half_duplex = true;
  EXPECT_TRUE(worst_of(quick, half).disk.half_duplex);
}

}  // namespace
}  // namespace pagoda
