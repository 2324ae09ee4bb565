// The devices of a cluster and their arrangement for training: nodes of equal devices under
// switches, and Piper's mesh of pipeline x experts x data (sections III and III-C). Pure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "plan/machine/machine_profile.h"

namespace pagoda {

// Device i is in node i / devices_per_node, node i under switch i / nodes_per_switch.
struct ClusterProfile {
  int64_t nodes = 1;             // n
  int64_t devices_per_node = 1;  // g
  int64_t nodes_per_switch = 1;  // N_h: one hop between them; the last switch may have fewer
  // The cost of a message, by byte, for the sending device (one message at a time on each kind of
  // link).
  Cost in_node, in_switch, between_switches;

  int64_t devices() const { return nodes * devices_per_node; }
  int64_t node(int64_t device) const { return device / devices_per_node; }
  // The link between two devices.
  const Cost& link(int64_t from, int64_t to) const;
};

// kUsage: counts that are not positive, links whose time for a byte is not above zero or whose
// latency is below it.
Status check_cluster(const ClusterProfile& cluster);

// P = PP x EP x DP devices. Device (data * PP + stage) * EP + e: devices that exchange rows of
// experts are neighbours, then come the stages of a pipeline, then its copies.
struct Mesh {
  int64_t pipeline = 1;  // PP, stages
  int64_t expert = 1;    // EP, EP, devices that share the experts of a layer
  int64_t data = 1;      // DP, copies of the pipeline

  int64_t devices() const { return pipeline * expert * data; }
};

// Constraints (7) to (10), (7) with data parallelism as third axis: PP EP DP = n g, EP divides E
// (0: no experts, EP = 1), PP <= L, EP <= g N_h. kUsage naming the one that is violated. Constraint
// (11), memory, is fullest_stage of plan/mesh/stage_memory.h.
Status check_mesh(const Mesh& mesh, const ClusterProfile& cluster, int64_t num_layers,
                  int64_t num_experts);

// All meshes that pass check_mesh, sorted by PP, then EP. kUsage: counts that are not positive.
// O(layers x experts).
Result<std::vector<Mesh>> meshes(const ClusterProfile& cluster, int64_t num_layers,
                                 int64_t num_experts);

// The layers [first, second) of a stage. All stages have the same number, give or take one.
std::pair<int64_t, int64_t> stage_layers(int64_t num_layers, int64_t stages, int64_t stage);

// The devices that exchange rows of experts, as a cluster of their own: a part of a node, or whole
// nodes. kUsage if groups would not be alike: EP must divide devices_per_node or be a multiple of
// it, and the same holds for a group's nodes and the nodes under a switch.
Result<ClusterProfile> expert_group(const ClusterProfile& cluster, int64_t expert);

}  // namespace pagoda
