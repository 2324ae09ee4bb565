#include "train/ledger.h"

#include "base/check.h"

namespace pagoda {

Ledger::Ledger(bool skip_untouched, int64_t count, std::vector<int64_t> steps_of_record)
    : skip_untouched_(skip_untouched),
      count_(count),
      first_(count + 1),
      paid_(steps_of_record.size(), count),
      gradient_of_(steps_of_record.size(), 0),
      t_(std::move(steps_of_record)) {}

void Ledger::begin(double learning_rate, float clip_factor) {
  ++count_;
  history_.push_back({learning_rate, clip_factor});
  // A record is overdue at kMostMissed and its steps are applied before the update after that
  // begins.
  if (static_cast<int64_t>(history_.size()) > 2 * kMostMissed) {
    history_.pop_front();
    ++first_;
  }
}

void Ledger::touch(int64_t record) {
  CHECK(gradient_of_[record] == 0, "record %lld has two gradients", (long long)record);
  gradient_of_[record] = count_;
}

int64_t Ledger::pending(int64_t record) const {
  if (skip_untouched_) return has_gradient(record) ? 1 : 0;
  return count_ - paid_[record];
}

bool Ledger::overdue(int64_t record) const {
  return !skip_untouched_ && count_ - paid_[record] >= kMostMissed;
}

std::vector<Ledger::Step> Ledger::apply(int64_t record) {
  std::vector<Step> steps;
  const int64_t with_gradient = gradient_of_[record];
  if (skip_untouched_) {
    if (with_gradient != 0) {
      const Update& u = update(with_gradient);
      steps.push_back({u.learning_rate, u.clip_factor, ++t_[record], true});
    }
  } else {
    CHECK(paid_[record] + 1 >= first_ || paid_[record] == count_, "the history was dropped");
    for (int64_t n = paid_[record] + 1; n <= count_; ++n) {
      const Update& u = update(n);
      steps.push_back({u.learning_rate, u.clip_factor, ++t_[record], n == with_gradient});
    }
  }
  paid_[record] = count_;
  gradient_of_[record] = 0;
  return steps;
}

}  // namespace pagoda
