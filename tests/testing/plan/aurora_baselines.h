// Baselines that Aurora compares with (section 8.1), beside plan/exchange/sending_order.h: senders'
// orders and places at random, and the packing of Lina; and what its evaluation counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/exchange/inference_time.h"
#include "plan/exchange/sending_order.h"
#include "plan/rounds/transmission_order.h"

namespace pagoda {

// RCS: every sender's order is random. The same seed gives the same orders. O(n^2).
SendingOrder random_sending_order(int devices, uint64_t seed);

// The bound that Theorem 5.2 states, with the receiver's term over its own bandwidth: the largest
// of sent[i] / B_i and received[j] / B_j. At most line_bound(link_seconds()); where it is smaller,
// reaching it takes concurrent flows at one end. REQUIRES: link_seconds() of these is no refusal.
double concurrent_bound_s(const SquareMatrix<double>& traffic_bytes,
                          std::span<const double> bytes_per_s);

// Lina's packing: n experts of one model on n / 2 devices, the one with the largest load beside the
// one with the smallest, and so on: [expert] its device, 0 for the first pair. REQUIRES: an even
// number. O(n log(n)).
std::vector<int> lina_packing(std::span<const double> loads);

// One expert each: [expert] its device. The expert with the largest load gets the device with the
// highest rate, and so on (Theorem 5.1). Among equals the lower index comes first. No assignment
// has a smaller largest load / rate. This does not hold for communication and computation together:
// section 5.1 assumes that a device which is faster in one is not slower in the other, and even
// then an expert's traffic depends on its partners'. REQUIRES: equal counts. O(n log(n)).
std::vector<int> assign_by_load(std::span<const double> loads, std::span<const double> rates);

// A random permutation of [0, count), of experts to devices (RGA) or to partners of another model
// (REC). The same seed gives the same permutation. O(n).
std::vector<int> random_assignment(int count, uint64_t seed);

// The sum of the rounds' durations, in order.
template <typename T>
T order_duration(const std::vector<TransmissionRound<T>>& rounds) {
  T duration = T();
  for (const auto& round : rounds) duration += round.duration;
  return duration;
}

// Equation (2), or (3) if one device has all maxima: all-to-alls begin when all devices are ready
// and take `dispatch_s` and `combine_s`, in any order of transmissions. The result is never below
// equation (1) for times that are not below the largest of all_to_all_s.
double barrier_time_s(const DevicePhases& phases, double dispatch_s, double combine_s);

// The share of `time_s` in which devices compute, on average and for all models that run on them. 0
// if nothing takes time. REQUIRES: as many devices in each of `models`, >= 1.
double utilisation(std::span<const DevicePhases> models, double time_s);

}  // namespace pagoda
