// The sheet of a machine: what it has and how fast each part is, by itself, as a person or
// `pagoda bench machine` writes it (configs/machines/*.toml). Keys of the file are the members
// here. From it and a run come the costs of tasks (plan/machine/task_costs.h). Pure.
//
// GB are 10^9 bytes, TFLOP 10^12 operations (a multiply-add is two); rates are what a long run
// gets, not what is advertised, except where a peak is named.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/memory_size.h"
#include "base/options.h"
#include "base/status.h"

namespace pagoda {

// What "auto" budgets are, as parts of memory; the rest is for the program and the page cache, and
// of a GPU's for CUDA and kernels.
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
    MemorySize memory;                 // of a GPU
    double peak_tflops = 0;            // of bf16 products, for MFU
    double gemm_tflops = 0;            // of tall products
    double weight_gb_s = 0;            // that weights are read at beside that, once for a product
    double attention_tflops = 0;       // of scores over long sequences
    double attention_half_tokens = 0;  // of a sequence that reaches half of it
    double memory_gb_s = 0;            // what norms, gathers and sums move
    double adam_gb_s = 0;  // what updates on a GPU move, read and written; 0: as memory_gb_s
    double launch_us = 0;              // before a task works
  } device;

  struct Host {
    double cores = 1;
    MemorySize memory;
    double copy_gb_s = 0;      // to a device, and from it at once
    double checksum_gb_s = 0;  // of a core
    double adam_gb_s = 0;      // of all cores: gradients, weights and states, read and written
  } host;

  // Of `drives` equal ones that pages are spread over.
  struct Disk {
    int64_t drives = 1;
    MemorySize size = MemorySize::of_bytes(0);  // of each
    double read_gb_s = 0, write_gb_s = 0;       // of each
    bool half_duplex = true;                    // reads and writes share its time
    double latency_us = 0;
    double tbw = 0;  // 10^12 bytes that each may be written by its rating; 0: not told
  } disk;

  // Between two devices, each way; only where there are several.
  struct Link {
    double gb_s = 0;
    double latency_us = 0;
  } link;

  // Adds every key to `table`, which then refers to this object.
  void declare(OptionTable& table);
  // kUsage naming the key: rates that no machine has, amounts below zero, sizes that are missing or
  // parts of what is not known, several devices without a link.
  Status check() const;
  // A file with every key in it.
  std::string to_toml() const;

  bool gpu() const { return device.kind == Processor::kGpu; }
  int64_t host_bytes() const { return host.memory.resolve(0, 0); }
  int64_t device_bytes() const { return gpu() ? device.memory.resolve(0, 0) : host_bytes(); }
  int64_t disk_bytes() const { return disk.drives * disk.size.resolve(0, 0); }  // 0: not told
  // What budgets are that a run file leaves to the program.
  int64_t auto_device_bytes() const;
  int64_t auto_host_bytes() const;
};

// One of the machine's devices with its part of what they share: cores, host memory, drives. What
// equal devices do side by side, one of them does with that.
MachineSheet share_of_device(const MachineSheet& sheet);

// Machines in a network: nodes under switches. Keys of a cluster's file are [cluster] and
// [network].
struct ClusterSheet {
  struct Cluster {
    std::string name = "a cluster";
    SheetSource source = SheetSource::kDatasheet;
    std::vector<std::string> nodes;  // files of machines, relative to this one, one for each
    int64_t nodes_per_switch = 0;    // 0: all
  } cluster;
  // Of a device, each way, to another node: under the same switch, and beyond it.
  struct Network {
    double gb_s = 0, latency_us = 0;
    double beyond_gb_s = 0, beyond_latency_us = 0;  // 0: as within
  } network;
  std::vector<MachineSheet> nodes;  // read from those files; not a key

  void declare(OptionTable& table);
  // kUsage: no node, a rate that is not above zero; the errors of each node's sheet.
  Status check() const;
  // A file with every key in it.
  std::string to_toml() const;
  int64_t devices() const;
  bool equal_nodes() const;  // as far as work is divided by it
};

}  // namespace pagoda
