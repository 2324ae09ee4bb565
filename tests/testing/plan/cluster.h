// The devices of a cluster of equal nodes under switches (Piper, section III). Pure.
#pragma once

#include <cstdint>

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

}  // namespace pagoda
