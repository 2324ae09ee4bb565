// What records still owe of the optimizer, as planning sees it: train/ledger.h keeps the account.
#pragma once

#include <cstdint>

namespace pagoda {

class Debts {
 public:
  virtual ~Debts() = default;

  // Optimizer steps that the record's next kAdam task pays.
  virtual int64_t owed(int64_t record) const = 0;
  bool owes(int64_t record) const { return owed(record) > 0; }
  // One of them has a gradient, which waits as a page.
  virtual bool has_gradient(int64_t record) const = 0;
  // They have become too many to wait any longer.
  virtual bool due(int64_t record) const = 0;

 protected:
  Debts() = default;
  Debts(const Debts&) = default;
  Debts& operator=(const Debts&) = default;
};

}  // namespace pagoda
