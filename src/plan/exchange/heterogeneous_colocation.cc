#include "plan/exchange/heterogeneous_colocation.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "plan/exchange/expert_assignment.h"
#include "plan/refusals.h"
#include "plan/rounds/bipartite_matching.h"

namespace pagoda {
namespace {

ModelPhases phases_on(const ExpertDemand& expert, const ServingDevice& device) {
  return {expert.gate_s / device.speed,
          std::max(expert.bytes.sent, expert.bytes.received) / device.bytes_per_s,
          expert.ffn_s / device.speed, expert.aggregate_s / device.speed};
}

std::vector<ExpertTraffic> traffic_of(std::span<const ExpertDemand> experts) {
  std::vector<ExpertTraffic> traffic;
  for (const ExpertDemand& expert : experts) traffic.push_back(expert.bytes);
  return traffic;
}

Status check_experts(std::span<const ExpertDemand> experts, size_t devices) {
  RETURN_IF_ERROR(check_count("experts of a model", experts.size(), devices));
  for (const ExpertDemand& expert : experts) {
    const double amounts[] = {expert.gate_s, expert.ffn_s, expert.aggregate_s, expert.bytes.sent,
                              expert.bytes.received};
    RETURN_IF_ERROR(check_amounts("seconds and bytes of an expert", amounts));
  }
  return Status();
}

Status check_triples(std::span<const ExpertDemand> a, std::span<const ExpertDemand> b,
                     std::span<const ServingDevice> devices) {
  RETURN_IF_ERROR(check_devices(devices));
  RETURN_IF_ERROR(check_experts(a, devices.size()));
  return check_experts(b, devices.size());
}

// [device] its experts.
struct OnDevices {
  std::vector<int> a, b;
  double slowest_s = 0;
};

std::vector<int> places_of(const std::vector<int>& expert_on) {
  std::vector<int> device_of_expert(expert_on.size());
  for (size_t d = 0; d < expert_on.size(); ++d) {
    device_of_expert[expert_on[d]] = static_cast<int>(d);
  }
  return device_of_expert;
}

HeterogeneousColocation colocation_of(const OnDevices& at) {
  return {places_of(at.a), places_of(at.b), at.slowest_s};
}

// Matchings of triples by the weight of colocated_device_s().
class Triples {
 public:
  Triples(std::span<const ExpertDemand> a, std::span<const ExpertDemand> b,
          std::span<const ServingDevice> devices)
      : a_(a), b_(b), devices_(devices) {}

  Result<OnDevices> decoupled() const {
    ASSIGN_OR_RETURN(const auto pairs, colocate(traffic_of(a_), traffic_of(b_)));
    OnDevices start;
    for (size_t i = 0; i < a_.size(); ++i) start.a.push_back(static_cast<int>(i));
    start.b = pairs.b_of_a;
    return move_pairs(start);
  }

  Result<OnDevices> drawn(uint64_t seed) const {
    const int n = static_cast<int>(a_.size());
    // Each start has an even and an odd seed of its own.
    OnDevices start{random_assignment(n, 2 * seed), random_assignment(n, 2 * seed + 1), 0};
    return move_pairs(start);
  }

  // Matches anew until no rematch makes the slowest device faster.
  Result<OnDevices> rematched(OnDevices at) const {
    for (bool better = true; better;) {
      better = false;
      for (const auto move : {&Triples::move_pairs, &Triples::move_a, &Triples::move_b}) {
        ASSIGN_OR_RETURN(auto next, (this->*move)(at));
        if (next.slowest_s >= at.slowest_s) continue;
        at = std::move(next);
        better = true;
      }
    }
    return at;
  }

 private:
  double seconds(int device, int a, int b) const {
    return colocated_device_s(a_[a], b_[b], devices_[device]);
  }

  // Matches by weights of a device and the index that is to move there.
  Result<BottleneckMatching> match(const std::function<double(int, int)>& weight) const {
    SquareMatrix<double> weights(static_cast<int>(devices_.size()));
    for (int d = 0; d < weights.size(); ++d) {
      for (int x = 0; x < weights.size(); ++x) weights.at(d, x) = weight(d, x);
    }
    return bottleneck_matching(weights);
  }

  Result<OnDevices> move_pairs(const OnDevices& at) const {
    ASSIGN_OR_RETURN(const auto matching,
                     match([&](int d, int x) { return seconds(d, at.a[x], at.b[x]); }));
    OnDevices next{{}, {}, matching.largest_weight};
    for (int x : matching.column_of_row) {
      next.a.push_back(at.a[x]);
      next.b.push_back(at.b[x]);
    }
    return next;
  }

  Result<OnDevices> move_a(const OnDevices& at) const {
    ASSIGN_OR_RETURN(auto matching, match([&](int d, int x) { return seconds(d, x, at.b[d]); }));
    return OnDevices{std::move(matching.column_of_row), at.b, matching.largest_weight};
  }

  Result<OnDevices> move_b(const OnDevices& at) const {
    ASSIGN_OR_RETURN(auto matching, match([&](int d, int x) { return seconds(d, at.a[d], x); }));
    return OnDevices{at.a, std::move(matching.column_of_row), matching.largest_weight};
  }

  std::span<const ExpertDemand> a_, b_;
  std::span<const ServingDevice> devices_;
};

}  // namespace

std::vector<ExpertDemand> expert_demands(const MoeLayerLoad& layer) {
  std::vector<ExpertDemand> loads;
  for (const ExpertTraffic& bytes : expert_traffic(layer.traffic_bytes)) {
    const size_t e = loads.size();
    loads.push_back({layer.gate_s[e], layer.ffn_s[e], layer.aggregate_s[e], bytes});
  }
  return loads;
}

double colocated_device_s(const ExpertDemand& a, const ExpertDemand& b,
                          const ServingDevice& device) {
  const double both_bytes =
      std::max(a.bytes.sent + b.bytes.sent, a.bytes.received + b.bytes.received);
  return colocated_times(
             {phases_on(a, device), phases_on(b, device), both_bytes / device.bytes_per_s})
      .gate_a_s;
}

Result<HeterogeneousColocation> decoupled_colocation(std::span<const ExpertDemand> a,
                                                     std::span<const ExpertDemand> b,
                                                     std::span<const ServingDevice> devices) {
  RETURN_IF_ERROR(check_triples(a, b, devices));
  ASSIGN_OR_RETURN(const auto found, Triples(a, b, devices).decoupled());
  return colocation_of(found);
}

Result<HeterogeneousColocation> rematched_colocation(std::span<const ExpertDemand> a,
                                                     std::span<const ExpertDemand> b,
                                                     std::span<const ServingDevice> devices,
                                                     int restarts, uint64_t seed) {
  if (restarts < 0) {
    return Status(Exit::kUsage, strf("%d restarts; nothing was planned, give 0 or more", restarts));
  }
  RETURN_IF_ERROR(check_triples(a, b, devices));
  const Triples triples(a, b, devices);
  ASSIGN_OR_RETURN(auto first, triples.decoupled());
  ASSIGN_OR_RETURN(auto best, triples.rematched(std::move(first)));
  for (int r = 0; r < restarts; ++r) {
    ASSIGN_OR_RETURN(auto start, triples.drawn(seed + static_cast<uint64_t>(r)));
    ASSIGN_OR_RETURN(auto found, triples.rematched(std::move(start)));
    if (found.slowest_s < best.slowest_s) best = std::move(found);
  }
  return colocation_of(best);
}

}  // namespace pagoda
