#include "train/step_sums.h"

#include <cstring>

namespace pagoda {
namespace {

// Visits what the rank has of the sums, always in the same order.
template <typename Sums, typename Visit>
void visit_part(const RunShape& shape, int rank, std::span<const int64_t> touched, Sums& sums,
                const Visit& visit) {
  for (int64_t b = 0; b < shape.microbatches; ++b) {
    if (shape.rank_of(shape.attending(shape.num_layers, b)) == rank)
      visit(sums.loss_sums[static_cast<size_t>(b)]);
  }
  for (size_t i = 0; i < touched.size(); ++i) {
    if (shape.home_rank(touched[i]) == rank) visit(sums.square_sums[i]);
  }
}

}  // namespace

std::string own_sums(const RunShape& shape, std::span<const int64_t> touched,
                     const StepSums& sums) {
  std::string told;
  visit_part(shape, shape.rank, touched, sums, [&](const double& sum) {
    told.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  });
  return told;
}

bool take_sums(const RunShape& shape, int rank, std::span<const int64_t> touched,
               const std::string& told, StepSums& sums) {
  size_t at = 0;
  bool whole = true;
  visit_part(shape, rank, touched, sums, [&](double& sum) {
    whole = whole && at + sizeof(sum) <= told.size();
    if (whole) std::memcpy(&sum, told.data() + at, sizeof(sum));
    at += sizeof(sum);
  });
  return whole && at == told.size();
}

Result<StepSums> gather_sums(Session& session, std::span<const int64_t> touched,
                             const Status& mine) {
  const RunShape& shape = session.shape();
  StepSums sums;
  sums.square_sums.assign(touched.size(), 0);
  std::string told;
  if (mine.ok()) {
    sums.loss_sums = session.executor().loss_sums();
    for (size_t i = 0; i < touched.size(); ++i) {
      if (shape.is_home(touched[i])) {
        sums.square_sums[i] = session.executor().square_sum(touched[i]);
      }
    }
    if (!session.ranks().alone()) told = own_sums(shape, touched, sums);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, session.ranks().agree(mine, told));
  for (int rank = 0; rank < session.ranks().size(); ++rank) {
    if (rank == session.ranks().rank()) continue;
    if (take_sums(shape, rank, touched, all[static_cast<size_t>(rank)], sums)) continue;
    return Status(Exit::kIoError, strf("rank %d sent other sums than those of its part of the run; "
                                       "the last checkpoint is intact: see that all ranks run the "
                                       "same program, and resume", rank));
  }
  return sums;
}

}  // namespace pagoda
