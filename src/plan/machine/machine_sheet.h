// The sheet of a machine lists its parts and the rate of each by itself. A person or `pagoda bench
// machine` writes it (configs/machines/*.toml); keys of the file are the members here. The costs of
// a run's tasks follow from it (plan/machine/task_costs.h). Pure.
//
// GB are 10^9 bytes, TFLOP 10^12 operations (a multiply-add is two); rates are those of a long run,
// not advertised ones, except where a peak is named.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/memory_size.h"
#include "base/options.h"
#include "base/status.h"

namespace pagoda {

// The "auto" budgets as parts of memory. The rest is for the program and the page cache, and on a
// GPU for CUDA and kernels.
inline constexpr double kAutoGpu = 0.85, kAutoDevice = 0.3, kAutoHost = 0.4;

enum class SheetSource : uint8_t { kDatasheet, kMeasured };
enum class Processor : uint8_t { kGpu, kCpu };

struct MachineSheet {
  struct Machine {
    std::string name = "this machine";
    SheetSource source = SheetSource::kDatasheet;
  } machine;

  // One of `count` equal devices.
  struct Device {
    Processor kind = Processor::kCpu;  // a CPU's memory is the host's, and its cores work for all
    int64_t count = 1;
    MemorySize memory;                 // a GPU's memory
    double peak_tflops = 0;            // peak of bf16 products, for MFU
    double gemm_tflops = 0;            // rate of tall products
    double weight_gb_s = 0;            // rate at which weights are also read, once for each product
    double attention_tflops = 0;       // rate of scores over long sequences
    double attention_half_tokens = 0;  // tokens of a sequence that reaches half of it
    double memory_gb_s = 0;            // rate of norms, gathers and sums
    double adam_gb_s = 0;  // rate of updates on a GPU, read and written; 0: as memory_gb_s
    double launch_us = 0;              // time before a task works
  } device;

  struct Host {
    double cores = 1;
    MemorySize memory;
    double copy_gb_s = 0;      // to a device, and at once from it
    double checksum_gb_s = 0;  // rate of one core
    double adam_gb_s = 0;      // rate of all cores: gradients, weights and states, read and written
  } host;

  // One of `drives` equal drives that pages are spread over.
  struct Disk {
    int64_t drives = 1;
    MemorySize size = MemorySize::of_bytes(0);  // of each
    double read_gb_s = 0, write_gb_s = 0;       // of each
    bool half_duplex = true;                    // reads and writes share the drive's time
    double latency_us = 0;
    double tbw = 0;  // rated endurance of each, 10^12 bytes; 0: unknown
  } disk;

  // The link between two devices, each way; only if there are several.
  struct Link {
    double gb_s = 0;
    double latency_us = 0;
  } link;

  // A device's link to another machine, each way, where it is not as fast as those of a cluster's
  // other nodes.
  struct Network {
    double gb_s = 0;  // 0: as the cluster's file says
  } network;

  // What `pagoda bench machine RUN` found of a run's devices, which it measures beside each other
  // (HeterMoE section 5, plan/machine/device_profile.h). Empty: nothing was measured.
  struct Profile {
    std::string model;                 // the sizes it holds for (profile_key)
    std::vector<std::string> devices;  // as train.devices names them
    // What tasks take, "cpu/8:24, attention: 120.5 3.25": us of a task, of each of its units, and,
    // as a third number where tasks are computed together, of their start.
    std::vector<std::string> costs;
    // Experts of all layers that those which attend must keep, since the others cannot hold them,
    // and that each of them can hold; and the run that they were counted for (kept_experts_key):
    // they depend on more than the costs. Empty: they were not counted.
    int64_t least_kept = 0, most_kept = 0;
    std::string kept_by;
  } profile;

  // Adds every key to `table`, which then refers to this object.
  void declare(OptionTable& table);
  // kUsage naming the key: rates that no machine has, amounts below zero, sizes that are missing or
  // percentages of unknown totals, several devices without a link.
  Status check() const;
  // A file with every key in it.
  std::string to_toml() const;

  bool gpu() const { return device.kind == Processor::kGpu; }
  // Devices of a run may be unlike: those of a CPU, by what they are called, and all that were
  // measured. Other GPUs are alike.
  bool knows_devices() const { return !gpu() || !profile.devices.empty(); }
  int64_t host_bytes() const { return host.memory.resolve(0, 0); }
  int64_t device_bytes() const { return gpu() ? device.memory.resolve(0, 0) : host_bytes(); }
  int64_t disk_bytes() const { return disk.drives * disk.size.resolve(0, 0); }  // 0: unknown
  // Links to other nodes: each GPU has one of its own; and the rate of each, in a cluster whose
  // file has this one.
  int64_t network_links() const { return gpu() ? device.count : 1; }
  double network_gb_s(double of_cluster) const {
    return network.gb_s > 0 ? network.gb_s : of_cluster;
  }
  // The budgets if a run file leaves them to the program.
  int64_t auto_device_bytes() const;
  int64_t auto_host_bytes() const;
};

// Machines in a network: nodes under switches. A cluster's file has [cluster] and [network].
struct ClusterSheet {
  struct Cluster {
    std::string name = "a cluster";
    SheetSource source = SheetSource::kDatasheet;
    std::vector<std::string> nodes;  // one machine's file for each node, relative to this file
    int64_t nodes_per_switch = 0;    // 0: all
    std::vector<std::string> hosts;  // names of nodes, for a hostfile; or none
  } cluster;
  // A device's link to another node, each way, wherever that is, unless a node's own file has its
  // rate.
  struct Network {
    double gb_s = 0, latency_us = 0;
  } network;
  std::vector<MachineSheet> nodes;  // the sheets in those files; not a key

  void declare(OptionTable& table);
  // kUsage: no node, hosts for some nodes only, a rate not above zero; each sheet's errors.
  Status check() const;
  // A file with every key in it.
  std::string to_toml() const;
  int64_t devices() const;
  bool equal_nodes() const;  // in all that the division of work depends on
  // [node] the rate of a device's link to others; empty: all have the same.
  std::vector<double> unequal_network_gb_s() const;
};

}  // namespace pagoda
