#include "plan/mesh/data_model_centric.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "plan/refusals.h"

namespace pagoda {
namespace {

constexpr Refusal invalid("shares");

Status check_experts(const SharedExperts& e) {
  const int64_t counts[] = {e.layers, e.layer_weight_bytes, e.layer_gradient_bytes, e.token_bytes,
                            e.tokens, e.cached_layers};
  if (*std::min_element(std::begin(counts), std::end(counts)) >= 1) return Status();
  return invalid(
      strf("%d layers of %lld B with gradients of %lld B, %lld tokens of %lld B, %d "
           "layers cached: give at least one of each",
           e.layers, static_cast<long long>(e.layer_weight_bytes),
           static_cast<long long>(e.layer_gradient_bytes), static_cast<long long>(e.tokens),
           static_cast<long long>(e.token_bytes), e.cached_layers));
}

Status check_share(double share) {
  if (is_rate(share) && share <= 1) return Status();
  return invalid(strf("a device has %g of the whole; give a share above 0 and up to 1", share));
}

int64_t part_of(int64_t whole, double share) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(whole) * share));
}

int64_t resident_bytes(const SharedExperts& e, double hidden_share) {
  return e.layers * part_of(e.layer_weight_bytes, hidden_share);
}

}  // namespace

Result<std::vector<int64_t>> shares_by_speed(std::span<const double> device_s, int64_t whole,
                                             int64_t tile) {
  if (device_s.empty()) return invalid("no device; name at least one");
  if (whole < 1 || tile < 1 || whole % tile != 0) {
    return invalid(strf("%lld do not divide into tiles of %lld; choose a divisor",
                        static_cast<long long>(whole), static_cast<long long>(tile)));
  }
  double speeds = 0;
  for (size_t i = 0; i < device_s.size(); ++i) {
    if (!is_rate(device_s[i]) || !is_rate(1 / device_s[i])) {
      return invalid(
          strf("device %zu takes %g s, which no device does; measure it again", i, device_s[i]));
    }
    speeds += 1 / device_s[i];
  }
  const int64_t tiles = whole / tile;
  int64_t left = tiles;
  std::vector<int64_t> shares;
  for (const double seconds : device_s) {
    const double share = static_cast<double>(tiles) / seconds / speeds;
    shares.push_back(std::min(left, static_cast<int64_t>(share)));
    left -= shares.back();
  }
  for (; left > 0; --left) {
    const auto done_s = [&](size_t i) { return device_s[i] * static_cast<double>(shares[i] + 1); };
    size_t soonest = 0;
    for (size_t i = 1; i < shares.size(); ++i) {
      if (done_s(i) < done_s(soonest)) soonest = i;
    }
    ++shares[soonest];
  }
  for (int64_t& share : shares) share *= tile;
  return shares;
}

Result<SharedBytes> data_centric_bytes(const SharedExperts& experts, double hidden_share) {
  RETURN_IF_ERROR(check_experts(experts));
  RETURN_IF_ERROR(check_share(hidden_share));
  SharedBytes bytes;
  bytes.resident = resident_bytes(experts, hidden_share);
  bytes.cache = experts.cached_layers * experts.layer_weight_bytes + experts.layer_gradient_bytes;
  return bytes;
}

Result<SharedBytes> saved_layers_bytes(const SharedExperts& experts, double hidden_share) {
  SharedExperts all = experts;
  all.cached_layers = experts.layers;
  return data_centric_bytes(all, hidden_share);
}

Result<SharedBytes> model_centric_bytes(const SharedExperts& experts, double hidden_share,
                                        double token_share) {
  RETURN_IF_ERROR(check_experts(experts));
  RETURN_IF_ERROR(check_share(hidden_share));
  RETURN_IF_ERROR(check_share(token_share));
  SharedBytes bytes;
  bytes.resident = resident_bytes(experts, hidden_share);
  const int64_t own = static_cast<int64_t>(static_cast<double>(experts.tokens) * token_share);
  bytes.gathered = 2 * (experts.tokens - own) * experts.token_bytes;
  return bytes;
}

int64_t data_centric_traffic(const SharedExperts& experts) {
  return 2 * experts.layer_weight_bytes + experts.layer_gradient_bytes;
}

int64_t model_centric_traffic(const SharedExperts& experts) {
  constexpr int64_t kGather = 1, kSum = 2, kPasses = 2;
  return kPasses * (kGather + kSum) * experts.tokens * experts.token_bytes;
}

int64_t crossover_tokens(const SharedExperts& experts) {
  CHECK(experts.token_bytes > 0);
  SharedExperts one = experts;
  one.tokens = 1;
  return data_centric_traffic(experts) / model_centric_traffic(one) + 1;
}

Result<ExchangeSeconds> exchange_seconds(const SharedExperts& experts, int32_t devices,
                                         double link_bytes_per_s, double overlapped_s) {
  RETURN_IF_ERROR(check_experts(experts));
  if (devices < 1 || !is_rate(link_bytes_per_s) || !std::isfinite(overlapped_s) ||
      overlapped_s < 0) {
    return invalid(
        strf("%d devices with links of %g bytes/s and %g s of other work; give what "
             "the machine has",
             devices, link_bytes_per_s, overlapped_s));
  }
  const double others = static_cast<double>(devices - 1) / devices;
  const auto seconds = [&](int64_t bytes) {
    return static_cast<double>(bytes) * others / link_bytes_per_s;
  };
  ExchangeSeconds exchange;
  exchange.data_centric_s = std::max(0.0, seconds(data_centric_traffic(experts)) - overlapped_s);
  exchange.model_centric_s = seconds(model_centric_traffic(experts));
  return exchange;
}

}  // namespace pagoda
