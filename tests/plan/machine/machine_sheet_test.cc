// Sheets of machines: those that are shipped are read and make sense, each wrong key is named, a
// sheet that is written is read back as it was, and a device's share of a machine adds up.
#include "plan/machine/machine_sheet.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/bytes.h"
#include "cli/sheet_file.h"
#include "preview/this_machine.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

std::string configs(const std::string& name) {
  return std::string(PAGODA_GOLDEN_DIR) + "/../../configs/" + name;
}

TEST(MachineSheet, ShippedOnesAreRead) {
  int machines = 0, clusters = 0;
  for (const auto& entry : std::filesystem::directory_iterator(configs("machines"))) {
    const auto sheet = read_machine_sheet(entry.path());
    EXPECT_TRUE(sheet.ok()) << sheet.status().message();
    ++machines;
  }
  for (const auto& entry : std::filesystem::directory_iterator(configs("clusters"))) {
    const auto sheet = read_cluster_sheet(entry.path());
    EXPECT_TRUE(sheet.ok()) << sheet.status().message();
    ++clusters;
  }
  EXPECT_GE(machines, 3);
  EXPECT_GE(clusters, 1);
  EXPECT_TRUE(this_machine_sheet().check().ok()) << this_machine_sheet().check().message();
}

TEST(MachineSheet, IsReadBackAsItWasWritten) {
  const TempDir dir;
  auto sheet = read_machine_sheet(configs("machines/gpu-4x48gb.toml"));
  ASSERT_TRUE(sheet.ok());
  sheet->device.gemm_tflops = 1.0 / 3.0;
  put_file(dir.file("again.toml"), sheet->to_toml());
  auto again = read_machine_sheet(dir.file("again.toml"));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->to_toml(), sheet->to_toml());
  EXPECT_EQ(again->device.gemm_tflops, 1.0 / 3.0);
  EXPECT_EQ(again->machine.source, SheetSource::kDatasheet);
}

TEST(ClusterSheet, NodesMayHaveCardsOfTheirOwn) {
  const MachineSheet node = read_machine_sheet(configs("machines/gpu-4x48gb.toml")).take();
  ClusterSheet cluster;
  cluster.network.gb_s = 12.5;
  cluster.nodes.assign(3, node);
  EXPECT_TRUE(cluster.unequal_network_gb_s().empty());
  cluster.nodes[1].network.gb_s = 12.5;
  EXPECT_TRUE(cluster.unequal_network_gb_s().empty());
  cluster.nodes[1].network.gb_s = 50;
  EXPECT_EQ(cluster.unequal_network_gb_s(), (std::vector<double>{12.5, 50, 12.5}));
  EXPECT_FALSE(cluster.equal_nodes());
}

// In a line of text that names the file and the key.
TEST(MachineSheet, RefusesNonsense) {
  const TempDir dir;
  const MachineSheet good = read_machine_sheet(configs("machines/gpu-4x48gb.toml")).take();
  const auto refuse = [&](const char* word, const std::string& from, const std::string& to) {
    std::string text = get_file(configs("machines/gpu-4x48gb.toml"));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    put_file(dir.file("bad.toml"), text);
    const Status status = read_machine_sheet(dir.file("bad.toml")).status();
    EXPECT_EQ(status.code(), Exit::kUsage) << to;
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("bad.toml"), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  };
  refuse("device.gemm_tflops", "gemm_tflops = 270.0", "gemm_tflops = 0.0");
  refuse("device.gemm_tflops", "gemm_tflops = 270.0", "gemm_tflops = -5");
  refuse("device.gemm_tflops", "gemm_tflops = 270.0", "gemm_tflops = 1e4");
  refuse("device.gemm_tflops", "gemm_tflops = 270.0", "gemm_tflops = nan");
  refuse("device.peak_tflops", "peak_tflops = 362.0", "");
  refuse("device.count", "count = 4", "count = 0");
  refuse("device.memory", "memory = \"48GiB\"", "memory = \"auto\"");
  refuse("device.memory", "memory = \"48GiB\"", "memory = \"50%\"");
  refuse("device.kind", "kind = \"gpu\"", "kind = \"tpu\"");
  refuse("kind cpu", "kind = \"gpu\"", "kind = \"cpu\"");
  refuse("network.gb_s", "[host]", "[network]\ngb_s = -2.0\n\n[host]");
  refuse("host.cores", "cores = 64.0", "cores = inf");
  refuse("host.adam_gb_s", "adam_gb_s = 300.0", "adam_gb_s = 1e-300");
  refuse("device.launch_us", "launch_us = 5.0", "launch_us = 1e300");
  refuse("host.memory", "memory = \"512GiB\"", "");
  refuse("host.adam_gb_s", "adam_gb_s = 300.0", "adam_gb_s = \"fast\"");
  refuse("disk.drives", "drives = 4", "drives = 0");
  refuse("disk.read_gb_s", "read_gb_s = 6.8", "read_gb_s = -1.0");
  refuse("link.gb_s", "gb_s = 22.0", "gb_s = 0.0");
  refuse("did you mean", "latency_us = 10.0", "latencyus = 10.0");
  refuse("bad.toml:", "[link]", "[link");
  EXPECT_TRUE(good.check().ok());
  EXPECT_EQ(read_machine_sheet(dir.file("none.toml")).status().code(), Exit::kNoInput);
}

TEST(ClusterSheet, RefusesNonsense) {
  const TempDir dir;
  const auto refuse = [&](const char* word, const std::string& text, Exit code = Exit::kUsage) {
    put_file(dir.file("cluster.toml"), text);
    const Status status = read_cluster_sheet(dir.file("cluster.toml")).status();
    EXPECT_EQ(status.code(), code) << text;
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  };
  std::filesystem::copy(configs("machines/gpu-8x80gb.toml"), dir.file("node.toml"));
  refuse("cluster.nodes", "[network]\ngb_s = 45.0\n");
  refuse("network.gb_s", "[cluster]\nnodes = [\"node.toml\"]\n");
  refuse("beyond_gb_s",
         "[cluster]\nnodes = [\"node.toml\"]\n[network]\ngb_s = 45.0\nbeyond_gb_s = 12.0\n");
  refuse("other.toml", "[cluster]\nnodes = [\"other.toml\"]\n[network]\ngb_s = 45.0\n",
         Exit::kNoInput);
  std::string many = "\"other.toml\"";
  for (int node = 0; node < 5000; ++node) many += ", \"other.toml\"";
  refuse("cluster.nodes is 5001", "[cluster]\nnodes = [" + many + "]\n[network]\ngb_s = 45.0\n");
  put_file(dir.file("cluster.toml"),
           "[cluster]\nnodes = [\"node.toml\", \"node.toml\"]\n[network]\ngb_s = 45.0\n");
  auto cluster = read_cluster_sheet(dir.file("cluster.toml"));
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  EXPECT_EQ(cluster->devices(), 16);
  EXPECT_TRUE(cluster->equal_nodes());
  cluster->nodes[1].device.gemm_tflops /= 2;
  EXPECT_FALSE(cluster->equal_nodes());
}

}  // namespace
}  // namespace pagoda
