// What planning asks about optimizer steps that were put off. train/ledger.h keeps the account.
#pragma once

#include <cstdint>

namespace pagoda {

class PendingUpdates {
 public:
  virtual ~PendingUpdates() = default;

  // How many optimizer steps the record's next kAdam task applies.
  virtual int64_t pending(int64_t record) const = 0;
  bool has_pending(int64_t record) const { return pending(record) > 0; }
  // Whether one of them has a gradient, which waits as a page.
  virtual bool has_gradient(int64_t record) const = 0;
  // Whether they have become too many to wait any longer.
  virtual bool overdue(int64_t record) const = 0;

 protected:
  PendingUpdates() = default;
  PendingUpdates(const PendingUpdates&) = default;
  PendingUpdates& operator=(const PendingUpdates&) = default;
};

}  // namespace pagoda
