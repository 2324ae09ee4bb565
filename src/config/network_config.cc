#include "config/network_config.h"

#include <string>

#include "base/number_text.h"
#include "config/option_value.h"

namespace pagoda {
namespace {

// 0: the text is no number.
double rate_of(const std::string& text) {
  double rate = 0;
  return parse_real(text, rate) ? rate : 0;
}

}  // namespace

Status check_network_rates(const RunConfig& c) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  for (const std::string& text : c.parallel.network_gb_s) {
    const double rate = rate_of(text);
    if (rate >= kLeast && rate <= kMost) continue;
    return refuse("parallel.network_gb_s", text,
                  "must be a rate for each process, from 1e-6 to 1e6, for example 12.5");
  }
  return Status();
}

Status check_network_ranks(std::span<const double> rates, int ranks) {
  if (rates.empty() || std::ssize(rates) == ranks) return Status();
  return Status(Exit::kUsage, strf("parallel.network_gb_s has %zu numbers, and there are %d "
                                   "ranks; give one for each, or none",
                                   rates.size(), ranks));
}

std::vector<double> RunConfig::network_rates() const {
  std::vector<double> rates;
  for (const std::string& text : parallel.network_gb_s) rates.push_back(rate_of(text));
  return rates;
}

}  // namespace pagoda
