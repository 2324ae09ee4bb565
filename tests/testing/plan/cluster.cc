#include "tests/testing/plan/cluster.h"

#include "plan/refusals.h"

namespace pagoda {
namespace {

Status check_link(const char* what, const Cost& link) {
  RETURN_IF_ERROR(check_amount((std::string(what) + ".fixed_s").c_str(), link.fixed_s));
  return check_rate((std::string(what) + ".unit_s").c_str(), link.unit_s);
}

Status check_counts(const ClusterProfile& cluster) {
  RETURN_IF_ERROR(check_integer("nodes", cluster.nodes));
  RETURN_IF_ERROR(check_integer("devices_per_node", cluster.devices_per_node));
  return check_integer("nodes_per_switch", cluster.nodes_per_switch);
}

}  // namespace

const Cost& ClusterProfile::link(int64_t from, int64_t to) const {
  if (node(from) == node(to)) return in_node;
  const bool one_hop = node(from) / nodes_per_switch == node(to) / nodes_per_switch;
  return one_hop ? in_switch : between_switches;
}

Status check_cluster(const ClusterProfile& cluster) {
  RETURN_IF_ERROR(check_counts(cluster));
  RETURN_IF_ERROR(check_link("in_node", cluster.in_node));
  RETURN_IF_ERROR(check_link("in_switch", cluster.in_switch));
  return check_link("between_switches", cluster.between_switches);
}

}  // namespace pagoda
