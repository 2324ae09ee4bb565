// The ledger: which optimizer steps of each record are pending.
//
// Updates are numbered 1, 2, ...; each has a learning rate and a clip factor. A record with a
// gradient has a real step pending; a record without one (an expert that no token chose) has the
// step that AdamW makes for a zero gradient. Steps are applied lazily and in order when the record
// is next needed, so the bits are those of applying them at once. After kMostMissed updates a
// record is overdue in any case, so the history is bounded. With `skip` an expert without tokens
// has nothing pending and counts its own steps.
//
// One thread. Nothing here is saved: a checkpoint is taken when nothing is pending.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "plan/step/pending_updates.h"

namespace pagoda {

class Ledger final : public PendingUpdates {
 public:
  static constexpr int64_t kMostMissed = 64;

  // `count`: updates that were made before (a resumed run). steps_of_record[r]: Adam's t of record
  // r.
  Ledger(bool skip_untouched, int64_t count, std::vector<int64_t> steps_of_record);

  struct Step {
    double learning_rate = 0;
    float clip_factor = 1;
    int64_t t = 0;  // Adam's step count, from 1
    bool has_gradient = false;
  };

  int64_t updates() const { return count_; }
  // Starts update updates() + 1. Records marked with touch() until the next begin() belong to it.
  void begin(double learning_rate, float clip_factor);
  void touch(int64_t record);
  int64_t pending(int64_t record) const override;
  bool has_gradient(int64_t record) const override { return gradient_of_[record] != 0; }
  // True when kMostMissed updates are pending.
  bool overdue(int64_t record) const override;
  // Returns the record's pending steps, oldest first, and counts them as applied.
  std::vector<Step> apply(int64_t record);

  const std::vector<int64_t>& steps_of_record() const { return t_; }

 private:
  struct Update {
    double learning_rate;
    float clip_factor;
  };
  const Update& update(int64_t number) const { return history_[number - first_]; }

  bool skip_untouched_;
  int64_t count_;
  int64_t first_;  // number of history_[0]
  std::deque<Update> history_;
  std::vector<int64_t> paid_;         // newest update applied to the record
  std::vector<int64_t> gradient_of_;  // update whose gradient waits; 0: none
  std::vector<int64_t> t_;
};

}  // namespace pagoda
