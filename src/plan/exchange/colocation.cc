#include "plan/exchange/colocation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/refusals.h"
#include "plan/rounds/bipartite_matching.h"
#include "plan/rounds/traffic.h"

namespace pagoda {
namespace {

std::vector<int> ascending(std::span<const double> values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return values[a] < values[b]; });
  return order;
}

std::vector<double> sent_by(std::span<const ExpertTraffic> experts) {
  std::vector<double> sent;
  for (const ExpertTraffic& expert : experts) sent.push_back(expert.sent);
  return sent;
}

std::vector<double> received_by(std::span<const ExpertTraffic> experts) {
  std::vector<double> received;
  for (const ExpertTraffic& expert : experts) received.push_back(expert.received);
  return received;
}

Status check_experts(std::span<const ExpertTraffic> a, std::span<const ExpertTraffic> b) {
  RETURN_IF_ERROR(check_count("experts of model b", b.size(), a.size()));
  for (const auto& model : {a, b}) {
    RETURN_IF_ERROR(check_amounts("what experts send", sent_by(model)));
    RETURN_IF_ERROR(check_amounts("what experts receive", received_by(model)));
  }
  return Status();
}

}  // namespace

std::vector<ExpertTraffic> expert_traffic(const SquareMatrix<double>& traffic) {
  const std::vector<double> sent = sent_by_device(traffic), received = received_by_device(traffic);
  std::vector<ExpertTraffic> experts;
  for (size_t e = 0; e < sent.size(); ++e) experts.push_back({sent[e], received[e]});
  return experts;
}

Result<Colocation> colocate_sorted(std::span<const double> a, std::span<const double> b) {
  RETURN_IF_ERROR(check_count("experts of model b", b.size(), a.size()));
  RETURN_IF_ERROR(check_amounts("traffic of model a", a));
  RETURN_IF_ERROR(check_amounts("traffic of model b", b));
  const std::vector<int> of_a = ascending(a), of_b = ascending(b);
  Colocation colocation{std::vector<int>(a.size()), 0};
  for (size_t k = 0; k < a.size(); ++k) {
    const int i = of_a[k], j = of_b[a.size() - 1 - k];
    colocation.b_of_a[i] = j;
    colocation.busiest = std::max(colocation.busiest, a[i] + b[j]);
  }
  return colocation;
}

Result<Colocation> colocate(std::span<const ExpertTraffic> a, std::span<const ExpertTraffic> b) {
  RETURN_IF_ERROR(check_experts(a, b));
  const auto even = [](const ExpertTraffic& expert) { return expert.sent == expert.received; };
  if (std::all_of(a.begin(), a.end(), even) && std::all_of(b.begin(), b.end(), even)) {
    return colocate_sorted(sent_by(a), sent_by(b));
  }
  SquareMatrix<double> weights(static_cast<int>(a.size()));
  for (int i = 0; i < weights.size(); ++i) {
    for (int j = 0; j < weights.size(); ++j) {
      weights.at(i, j) = std::max(a[i].sent + b[j].sent, a[i].received + b[j].received);
    }
  }
  ASSIGN_OR_RETURN(auto matching, bottleneck_matching(weights));
  return Colocation{std::move(matching.column_of_row), matching.largest_weight};
}

}  // namespace pagoda
