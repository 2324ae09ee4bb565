#include "tests/testing/plan/place_search.h"

#include <algorithm>
#include <limits>

#include "tests/testing/plan/random_traffic.h"

namespace pagoda {

double fastest_colocation_s(const std::vector<ExpertDemand>& a, const std::vector<ExpertDemand>& b,
                            const std::vector<ServingDevice>& devices) {
  const int n = static_cast<int>(devices.size());
  std::vector<SquareMatrix<double>> seconds(n, SquareMatrix<double>(n));  // [device] (a, b)
  for (int d = 0; d < n; ++d) {
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        seconds[d].at(i, j) = colocated_device_s(a[i], b[j], devices[d]);
      }
    }
  }
  double least = std::numeric_limits<double>::infinity();
  each_permutation(n, [&](const std::vector<int>& a_on) {
    each_permutation(n, [&](const std::vector<int>& b_on) {
      double most = 0;
      for (int d = 0; d < n && most < least; ++d) {
        most = std::max(most, seconds[d].at(a_on[d], b_on[d]));
      }
      least = std::min(least, most);
    });
  });
  return least;
}

}  // namespace pagoda
