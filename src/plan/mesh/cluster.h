// Devices of a cluster and how they are arranged for training: nodes of equal devices under
// switches, and the mesh of pipeline x experts x data of Piper (sections III and III-C). Pure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "plan/machine/machine_profile.h"

namespace pagoda {

// Device i is in node i / devices_per_node, nodes likewise under switches.
struct ClusterProfile {
  int64_t nodes = 1;             // n
  int64_t devices_per_node = 1;  // g
  int64_t nodes_per_switch = 1;  // N_h: of one hop between them; the last switch may have fewer
  int64_t device_bytes = 0;      // C_GPU, memory of one device
  // A message, by byte, as the device sees it that sends (one at a time at each kind of link).
  Cost in_node, in_switch, between_switches;

  int64_t devices() const { return nodes * devices_per_node; }
  int64_t node(int64_t device) const { return device / devices_per_node; }
  // What a message between two devices goes over.
  const Cost& link(int64_t from, int64_t to) const;
};

// kUsage: counts that are not positive, links whose time for a byte is not above zero or whose
// latency is below it.
Status check_cluster(const ClusterProfile& cluster);

// P = PP x EP x DP devices. Device (data * PP + stage) * EP + e: those that exchange rows of
// experts are neighbours, then the stages of one pipeline, then copies of it.
struct Mesh {
  int64_t pipeline = 1;  // PP, stages
  int64_t expert = 1;    // EP, devices that the experts of a layer are divided among
  int64_t data = 1;      // DP, copies of all that

  int64_t devices() const { return pipeline * expert * data; }
};

// Constraints (7) to (10), (7) with data parallelism as third axis: PP EP DP = n g, EP divides E
// (0: no experts, EP = 1), PP <= L, EP <= g N_h. kUsage naming the one that does not hold.
// Constraint (11), memory, is check_device_memory of plan/mesh/stage_memory.h.
Status check_mesh(const Mesh& mesh, const ClusterProfile& cluster, int64_t num_layers,
                  int64_t num_experts);

// All that check_mesh lets pass, by PP, then EP. kUsage: counts that are not positive.
// O(layers x experts).
Result<std::vector<Mesh>> meshes(const ClusterProfile& cluster, int64_t num_layers,
                                 int64_t num_experts);

// The layers [first, second) of a stage: as many as of any other, give or take one.
std::pair<int64_t, int64_t> stage_layers(int64_t num_layers, int64_t stages, int64_t stage);

// The devices that exchange rows of experts, as a cluster of their own: a part of a node, or whole
// nodes. kUsage: EP neither divides devices_per_node nor is a multiple of it, or likewise its nodes
// those under a switch, so that groups would not be alike.
Result<ClusterProfile> expert_group(const ClusterProfile& cluster, int64_t expert);

}  // namespace pagoda
