// All-to-alls whose counts are drawn or recorded, the orders in which their parcels may travel, and
// rows of tables of their times: for programs that time them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "plan/rounds/exchange_order.h"
#include "plan/rounds/square_matrix.h"
#include "plan/step/routing_trace.h"
#include "tools/bench/exchange/executed_exchange.h"

namespace pagoda {

// Skewed: few devices take most. Recorded: the first layer of a trace's last step.
enum class ExchangeCounts { kEven, kRandom, kSkewed, kRecorded };
inline constexpr std::pair<ExchangeCounts, const char*> kExchangeCounts[] = {
    {ExchangeCounts::kEven, "even"},
    {ExchangeCounts::kRandom, "random"},
    {ExchangeCounts::kSkewed, "skewed"},
    {ExchangeCounts::kRecorded, "recorded"}};
inline constexpr int64_t kParcelSizes[] = {kKiB, 16 * kKiB, 256 * kKiB, kMiB, 4 * kMiB};

// [from][to] relative, with a mean of 1 off the diagonal.
SquareMatrix<double> drawn_shares(ExchangeCounts counts, int devices, const RoutingTrace& trace);
// Such parcels of `mean` bytes in the mean, each a multiple of 64; none on the diagonal.
SquareMatrix<int64_t> parcel_bytes(const SquareMatrix<double>& shares, int64_t mean);
// Receiver by receiver.
std::vector<ParcelBytes> parcels_of(const SquareMatrix<int64_t>& bytes);

// Shortest first is Aurora's SJF.
enum class ParcelOrder { kFlat, kHalo, kRounds, kShortest, kRandom };
inline constexpr std::pair<ParcelOrder, const char*> kParcelOrders[] = {
    {ParcelOrder::kFlat, "flat"},
    {ParcelOrder::kHalo, "halo"},
    {ParcelOrder::kRounds, "rounds"},
    {ParcelOrder::kShortest, "shortest"},
    {ParcelOrder::kRandom, "random"}};

ExchangeLegs legs_in_order(const SquareMatrix<int64_t>& bytes, ParcelOrder order,
                           const ExchangeNodes& nodes);
// The bound, and behind it all of kParcelOrders.
std::vector<ExchangeLegs> bound_and_orders(const ExchangeLeg& bound,
                                           const SquareMatrix<int64_t>& bytes,
                                           const ExchangeNodes& nodes);

// "16 KiB"
std::string size_text(int64_t bytes);

// A row: seconds of what bound_and_orders() has, and those that are simulated.
struct TimedOrders {
  std::vector<double> executed_s, simulated_s;

  double bound_s() const { return executed_s.front(); }
  double order_s(size_t i) const { return executed_s[i + 1]; }
  double order_s(ParcelOrder order) const { return order_s(static_cast<size_t>(order)); }
  void print(const char* counts, int64_t mean) const;
  static void print_heading(const char* simulated);
};

// What rounds of large parcels took over the bound, which is to be 1.10 at most, and shortest first
// over rounds (Aurora's Figure 11a has up to 1.38).
class LargeParcels {
 public:
  void note(int64_t mean, const TimedOrders& timed);
  void print() const;  // nothing where there were none

 private:
  std::vector<double> rounds_, shortest_;
};

}  // namespace pagoda
