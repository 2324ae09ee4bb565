// Traffic matrices of an all-to-all, and lower bounds of its time in any order of transmissions
// (Aurora sections 4.2 and 5.2). Entry (i, j) is what device i sends to device j in bytes, tokens
// or seconds; the diagonal stays on its device and counts nowhere. T is int64_t (exact) or double.
// Devices share one switch that never blocks; each sends and receives at its own rate, both at
// once. Everything here is O(n^2) for n devices.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "plan/rounds/square_matrix.h"

namespace pagoda {

// kUsage unless there is a device, every entry is finite and not negative, and all of them together
// stay below 2^62 (int64_t) or finite (double). The functions below REQUIRE that.
template <typename T>
Status check_traffic(const SquareMatrix<T>& traffic);

// [device] its sent traffic: sums of rows without the diagonal.
template <typename T>
std::vector<T> sent_by_device(const SquareMatrix<T>& traffic);

// [device] its received traffic: sums of columns without the diagonal.
template <typename T>
std::vector<T> received_by_device(const SquareMatrix<T>& traffic);

// The most that one device sends or receives. In units of time, or divided by the bandwidth that
// all devices have, the least time of the all-to-all (Theorem 4.2).
template <typename T>
T line_bound(const SquareMatrix<T>& traffic);

// The second all-to-all of a layer, in which the traffic from i to j comes back (section 2.2).
SquareMatrix<double> reversed(const SquareMatrix<double>& traffic);

// Traffic from parts of the tokens to experts as traffic between devices. Several may share a
// device; traffic between them lands on the diagonal. REQUIRES: both say where, of [0, devices),
// for each row and column of `traffic`.
SquareMatrix<double> placed(const SquareMatrix<double>& traffic,
                            std::span<const int> device_of_part,
                            std::span<const int> device_of_expert, int devices);

// REQUIRES: equal sizes.
SquareMatrix<double> added(const SquareMatrix<double>& a, const SquareMatrix<double>& b);

// Seconds of each transmission that has both ends to itself: bytes over the smaller of the two
// bandwidths. line_bound() of it is the least time of an all-to-all in which every device has one
// partner at a time, and transmission_order() reaches it (appendix B).
Result<SquareMatrix<double>> link_seconds(const SquareMatrix<double>& traffic_bytes,
                                          std::span<const double> bytes_per_s);

}  // namespace pagoda
