#include "plan/mesh/cluster.h"

#include <algorithm>

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

Status check_degrees(const Mesh& mesh) {
  RETURN_IF_ERROR(check_integer("PP", mesh.pipeline));
  RETURN_IF_ERROR(check_integer("EP", mesh.expert));
  return check_integer("DP", mesh.data);
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

Status check_mesh(const Mesh& mesh, const ClusterProfile& cluster, int64_t num_layers,
                  int64_t num_experts) {
  RETURN_IF_ERROR(check_counts(cluster));
  RETURN_IF_ERROR(check_degrees(mesh));
  RETURN_IF_ERROR(check_integer("the number of layers", num_layers));
  RETURN_IF_ERROR(check_integer("num_experts", num_experts, 0));
  const auto refuse = [](const std::string& why) { return Status(Exit::kUsage, why); };
  if (__int128{mesh.pipeline} * mesh.expert * mesh.data != __int128{cluster.devices()}) {
    return refuse(strf("PP %lld x EP %lld x DP %lld is not the number of devices, %lld",
                       (long long)mesh.pipeline, (long long)mesh.expert, (long long)mesh.data,
                       (long long)cluster.devices()));
  }
  if (num_experts == 0 ? mesh.expert != 1 : num_experts % mesh.expert != 0) {
    return refuse(strf("EP %lld does not divide the %lld experts of a layer",
                       (long long)mesh.expert, (long long)num_experts));
  }
  if (mesh.pipeline > num_layers) {
    return refuse(strf("PP %lld leaves stages without one of the %lld layers",
                       (long long)mesh.pipeline, (long long)num_layers));
  }
  const int64_t near = cluster.devices_per_node * cluster.nodes_per_switch;
  if (mesh.expert > near) {
    return refuse(strf("EP %lld goes beyond the %lld devices under one switch",
                       (long long)mesh.expert, (long long)near));
  }
  return Status();
}

Result<std::vector<Mesh>> meshes(const ClusterProfile& cluster, int64_t num_layers,
                                 int64_t num_experts) {
  RETURN_IF_ERROR(check_counts(cluster));
  RETURN_IF_ERROR(check_integer("the number of layers", num_layers));
  RETURN_IF_ERROR(check_integer("num_experts", num_experts, 0));
  const int64_t devices = cluster.devices();
  std::vector<Mesh> found;
  for (int64_t pp = 1; pp <= std::min(devices, num_layers); ++pp) {
    if (devices % pp != 0) continue;
    for (int64_t ep = 1; ep <= std::min(devices / pp, std::max<int64_t>(1, num_experts)); ++ep) {
      if (devices / pp % ep != 0) continue;
      const Mesh mesh{pp, ep, devices / pp / ep};
      if (check_mesh(mesh, cluster, num_layers, num_experts).ok()) found.push_back(mesh);
    }
  }
  return found;
}

std::pair<int64_t, int64_t> stage_layers(int64_t num_layers, int64_t stages, int64_t stage) {
  CHECK(stages > 0 && stage >= 0 && stage < stages);
  return {num_layers * stage / stages, num_layers * (stage + 1) / stages};
}

Result<ClusterProfile> expert_group(const ClusterProfile& cluster, int64_t expert) {
  RETURN_IF_ERROR(check_counts(cluster));
  RETURN_IF_ERROR(check_integer("EP", expert, 1, cluster.devices()));
  ClusterProfile group = cluster;
  const auto uneven = [](int64_t a, int64_t b) { return a % b != 0 && b % a != 0; };
  const int64_t per_node = cluster.devices_per_node;
  group.devices_per_node = std::min(expert, per_node);
  group.nodes = expert / group.devices_per_node;
  if (uneven(expert, per_node) || uneven(group.nodes, cluster.nodes_per_switch)) {
    return Status(Exit::kUsage,
                  strf("groups of %lld devices would not be alike on nodes of %lld, %lld under a "
                       "switch",
                       (long long)expert, (long long)per_node,
                       (long long)cluster.nodes_per_switch));
  }
  return group;
}

}  // namespace pagoda
