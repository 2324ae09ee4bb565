// Machines, clusters and published models of configs/, and runs on them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/sheet_file.h"
#include "preview/model_sizes.h"
#include "preview/run_forecast.h"
#include "tests/testing/golden.h"

namespace pagoda {

inline std::string configs(const std::string& name) { return golden("../../configs/" + name); }

inline MachineSheet machine(const std::string& name) {
  return read_machine_sheet(configs("machines/" + name + ".toml")).take();
}

inline ModelSizes published(const std::string& name) {
  return read_model_sizes(configs("models/" + name + ".json")).take();
}

// A run of the quick start's size on a workstation.
inline RunConfig workstation_run() {
  RunConfig config;
  config.train.tokens_per_step = 65536;
  config.train.micro_batch_tokens = 4096;
  config.train.save_steps = 0;
  return config;
}

// Nodes that are alike, on a network of 10 GB/s.
inline ClusterSheet equal_nodes(int count, const MachineSheet& node) {
  ClusterSheet cluster;
  cluster.network = {10, 20};
  cluster.nodes.assign(static_cast<size_t>(count), node);
  return cluster;
}

// One of each kind, the fastest at attention first.
inline ClusterSheet three_kinds() {
  ClusterSheet cluster;
  cluster.network.gb_s = 12;
  cluster.network.latency_us = 15;
  cluster.nodes = {machine("gpu-l40s"), machine("gpu-a40"), machine("gpu-t4")};
  return cluster;
}

// [rank] of a run on all devices, whose steps have so many rows of so many tokens.
inline std::vector<RunConfig> rows_of(int64_t rows, int64_t tokens, const ClusterSheet& cluster) {
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = tokens;
  config.train.tokens_per_step = rows * tokens;
  config.train.save_steps = 0;
  config.total_devices = devices_of_nodes(config, cluster);
  return std::vector(cluster.nodes.size(), config);
}

}  // namespace pagoda
