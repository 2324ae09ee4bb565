#include "plan/search/cluster_search.h"

#include <algorithm>

#include "optim/state_format.h"
#include "plan/refusals.h"
#include "plan/search/node_pair_search.h"

namespace pagoda {
namespace {

const char* sharing_name(ExpertSharing sharing) {
  switch (sharing) {
    case ExpertSharing::kRows: return "rows exchanged";
    case ExpertSharing::kDataCentric: return "data-centric";
    case ExpertSharing::kModelCentric: return "model-centric";
  }
  return "";
}

// "1 microbatch", "8 microbatches".
std::string counted(int64_t count, const char* one, const char* more) {
  return strf("%lld %s", static_cast<long long>(count), count == 1 ? one : more);
}

std::string microbatches_text(int64_t count) {
  return counted(count, "microbatch", "microbatches");
}

// Bytes of a parameter beside its bf16 weight. Borders between the parts of a large record do not
// count.
double state_bytes(StateFormat format) {
  constexpr int64_t kElements = 1 << 20;
  return static_cast<double>(StateLayout(format, DType::kBF16, kElements).bytes) / kElements;
}

}  // namespace

const std::vector<StateChoice>& state_choices() {
  static const std::vector<StateChoice> kChoices = {
      {"fp32 states", state_bytes(StateFormat::kFp32), false},
      {"bf16 states", state_bytes(StateFormat::kBf16), false},
      {"8bit states", state_bytes(StateFormat::k8Bit), false},
      {"fp32 states in host memory", state_bytes(StateFormat::kFp32), true},
      {"8bit states in host memory", state_bytes(StateFormat::k8Bit), true}};
  return kChoices;
}

bool Strategy::runs() const {
  if (sharing != ExpertSharing::kRows) return false;
  if (kind == StrategyKind::kZebra) return send_again && (mesh.pipeline == 1 || microbatches == 2);
  return kind == StrategyKind::kExpertParallel;
}

std::string Strategy::text() const {
  const auto n = [](int64_t value) { return static_cast<long long>(value); };
  switch (kind) {
    case StrategyKind::kZebra: {
      int64_t moved = 0;
      for (const int32_t experts : offloaded) moved += experts;
      return strf("zebra, %s of %d + %lld devices (PP %lld x DP %lld), %s, %s, %s on attention "
                  "devices%s",
                  counted(mesh.pipeline * mesh.data, "group", "groups").c_str(),
                  attention_devices, n(mesh.expert), n(mesh.pipeline), n(mesh.data),
                  chunks > 1 ? strf("%d x %s", chunks, microbatches_text(microbatches).c_str())
                                   .c_str()
                             : microbatches_text(microbatches).c_str(),
                  state.name,
                  counted(moved * mesh.expert * mesh.data, "expert", "experts").c_str(),
                  send_again ? ", inputs of experts sent again" : "");
    }
    case StrategyKind::kExpertParallel:
      return strf("expert parallel over both kinds of devices, DP %lld, all-to-alls in %s, %s",
                  n(mesh.data), counted(parts, "part", "parts").c_str(), state.name);
    case StrategyKind::kDisaggregated:
      return strf(
          "attention on the faster devices, experts on the slower, DP %lld, all-to-alls in "
          "%s, %s",
          n(mesh.data), counted(parts, "part", "parts").c_str(), state.name);
    case StrategyKind::kShared:
      return strf("%s over both kinds of devices, shares by their speed, %s",
                  sharing_name(sharing), state.name);
    case StrategyKind::kPipeline:
      return strf("pipelines of whole layers, PP %lld x DP %lld, %s, %s", n(mesh.pipeline),
                  n(mesh.data), microbatches_text(microbatches).c_str(), state.name);
  }
  return "";
}

Result<std::vector<Strategy>> search_cluster(const ModelShape& model, const ClusterSheet& cluster,
                                             const ClusterDemand& demand) {
  RETURN_IF_ERROR(cluster.check());
  RETURN_IF_ERROR(check_integer("sequence_len", demand.sequence_len));
  RETURN_IF_ERROR(check_integer("the sequences of a step", demand.sequences));
  ASSIGN_OR_RETURN(std::vector<Strategy> strategies, search_node_pair(model, cluster, demand));
  std::stable_sort(strategies.begin(), strategies.end(),
                   [](const Strategy& a, const Strategy& b) { return a.step_s < b.step_s; });
  return strategies;
}

}  // namespace pagoda
