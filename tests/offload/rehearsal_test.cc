// The rehearsal of what devices will ask of the host: what it costs, and that it is taken back.
#include <gtest/gtest.h>

#include "offload/residency.h"
#include "tests/testing/storage/allocations.h"
#include "tests/testing/token_cache.h"

namespace pagoda {
namespace {

// Pages of one class on disk; half of them have a slot in the host and a quarter on the device.
Residency full(int32_t pages) {
  SlotClass slots;
  slots.device_slots = {pages / 4};
  slots.host_slots = pages / 2;
  Residency residency(1, {slots}, std::vector<uint16_t>(static_cast<size_t>(pages), 0));
  std::vector<Move> moves;
  std::vector<int32_t> at;
  for (PageId page = 0; page < static_cast<PageId>(pages); ++page) {
    residency.set_on_disk(page);
    const PageUse use{page, Place::on_device(0), Access::kRead};
    residency.acquire({&use, 1}, moves, at);
    residency.release({&use, 1});
  }
  return residency;
}

std::vector<PageUse> uses_at_random(uint64_t seed, int32_t pages, int count) {
  std::vector<PageUse> uses;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<uint64_t>(i);
    PageUse use;
    use.page = static_cast<PageId>(random_below(seed, 3 * at, pages));
    use.place = random_below(seed, 3 * at + 1, 8) == 0 ? Place::host() : Place::on_device(0);
    use.access = random_below(seed, 3 * at + 2, 4) == 0 ? Access::kWrite : Access::kRead;
    uses.push_back(use);
  }
  return uses;
}

int64_t allocations_to_foresee(int32_t pages) {
  Residency residency = full(pages);
  const std::vector<PageUse> uses = uses_at_random(1, pages, 20);
  residency.foresee(uses);  // there is memory for this many then
  const int64_t before = allocations;
  residency.foresee(uses);
  return allocations - before;
}

TEST(Rehearsal, CostsNothingForSlotsThatItDoesNotTouch) {
  const int64_t few = allocations_to_foresee(200), many = allocations_to_foresee(20000);
  EXPECT_LE(many, few + 50) << "allocations with 100 times the slots, before " << few;
}

// Told and then forgotten, a future changes no later move, no slot and no count.
TEST(Rehearsal, IsTakenBack) {
  constexpr int32_t kPages = 40;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Residency plain = full(kPages);
    plain.keep(std::vector<PageId>{1, 2, 3});
    Residency told = plain;
    for (int round = 0; round < 5; ++round) {
      const auto at = seed * 10 + static_cast<uint64_t>(round);
      // A lease that is out meanwhile stays out.
      const PageUse leased{static_cast<PageId>(at % kPages), Place::on_device(0), Access::kRead};
      std::vector<Move> plain_moves, told_moves;
      std::vector<int32_t> plain_slots, told_slots;
      plain.acquire({&leased, 1}, plain_moves, plain_slots);
      told.acquire({&leased, 1}, told_moves, told_slots);
      told.foresee(uses_at_random(2 * at, kPages, 30));
      told.check_invariants();
      told.foresee({});
      told.check_invariants();
      plain.release({&leased, 1});
      told.release({&leased, 1});
      for (const PageUse& use : uses_at_random(2 * at + 1, kPages, 30)) {
        plain.acquire({&use, 1}, plain_moves, plain_slots);
        told.acquire({&use, 1}, told_moves, told_slots);
        ASSERT_EQ(plain_slots, told_slots);
        plain.release({&use, 1});
        told.release({&use, 1});
      }
      ASSERT_EQ(plain_moves.size(), told_moves.size());
      for (size_t i = 0; i < plain_moves.size(); ++i) {
        ASSERT_EQ(plain_moves[i].kind, told_moves[i].kind) << "move " << i;
        ASSERT_EQ(plain_moves[i].page, told_moves[i].page) << "move " << i;
      }
      ASSERT_EQ(plain.evictions(), told.evictions());
    }
  }
}

}  // namespace
}  // namespace pagoda
