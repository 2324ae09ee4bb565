// Residency against a model of memory: random acquires, discards and flushes over random budgets.
// The model carries out every move on version numbers; a use must find the newest version where the
// residency says it is. Futures are foreseen that come, come in part, or do not come.
#include "offload/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace pagoda {
namespace {

// Versions in every slot and on disk. Version 0: garbage.
class MemoryModel {
 public:
  MemoryModel(const Residency& residency, size_t pages)
      : residency_(residency), newest_(pages, 0), on_disk_(pages, 0) {}

  void carry_out(const Move& move) {
    int64_t& host = slot(move.page, Place::host(), move.host_slot);
    switch (move.kind) {
      case Move::Kind::kFetch: host = on_disk_[move.page]; break;
      case Move::Kind::kWriteBack: on_disk_[move.page] = host; break;
      case Move::Kind::kUpload: slot(move.page, on(move), move.device_slot) = host; break;
      case Move::Kind::kDownload: host = slot(move.page, on(move), move.device_slot); break;
    }
    ++moves_[move.kind];
  }
  void use(const PageUse& use, int32_t at, int64_t version) {
    int64_t& content = slot(use.page, use.place, at);
    if (use.access != Access::kCreate) {
      ASSERT_EQ(content, newest_[use.page]) << "page " << use.page;
    }
    if (changes_content(use.access)) content = newest_[use.page] = version;
  }
  int64_t newest(PageId page) const { return newest_[page]; }
  int64_t on_disk(PageId page) const { return on_disk_[page]; }
  int64_t moves(Move::Kind kind) const {
    const auto at = moves_.find(kind);
    return at == moves_.end() ? 0 : at->second;
  }

 private:
  static Place on(const Move& move) { return Place::on_device(move.device); }
  int64_t& slot(PageId page, Place place, int32_t slot) {
    const int where = place.tier == Tier::kHost ? -1 : place.device;
    return slots_[{residency_.page_class(page), where, slot}];
  }
  const Residency& residency_;
  std::vector<int64_t> newest_, on_disk_;
  std::map<std::tuple<int, int, int>, int64_t> slots_;
  std::map<Move::Kind, int64_t> moves_;
};

struct Trial {
  explicit Trial(uint32_t seed) : random(seed) {}
  std::mt19937 random;
  int pick(int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); }
};

std::vector<PageUse> random_uses(Trial& trial, const Residency& residency, int devices) {
  std::vector<PageUse> uses;
  const int count = 1 + trial.pick(2);
  for (int i = 0; i < count; ++i) {
    PageUse use;
    use.page = static_cast<PageId>(trial.pick(static_cast<int>(residency.num_pages())));
    const int place = trial.pick(devices + 1);
    use.place = place == devices ? Place::host() : Place::on_device(place);
    use.access = static_cast<Access>(trial.pick(4));
    if (!residency.has_content(use.page)) use.access = Access::kCreate;
    const bool twice = !uses.empty() && uses[0].page == use.page;
    if (!twice) uses.push_back(use);
  }
  return uses;
}

// Random uses; one of them may use a page that will have no content.
std::vector<PageUse> random_future(Trial& trial, const Residency& residency, int devices) {
  std::vector<PageUse> future;
  for (int n = trial.pick(12); n > 0; --n) {
    for (PageUse use : random_uses(trial, residency, devices)) {
      if (trial.pick(8) == 0) use.access = Access::kRead;
      use.last = trial.pick(8) == 0;  // it need not come true
      future.push_back(use);
    }
  }
  return future;
}

void run_trial(uint32_t seed, bool* paged) {
  Trial trial(seed);
  const int devices = 1 + trial.pick(3);
  std::vector<SlotClass> classes(2);
  for (SlotClass& c : classes) {
    for (int d = 0; d < devices; ++d) c.device_slots.push_back(2 + trial.pick(4));
    c.host_slots = 4 + trial.pick(4);
    c.device_depth = 1 + trial.pick(3);
    c.host_depth = 1 + trial.pick(4);
    c.host_kept = trial.pick(c.host_slots + 1);
  }
  const size_t pages = 4 + trial.pick(24);
  std::vector<uint16_t> page_class;
  for (size_t p = 0; p < pages; ++p) page_class.push_back(static_cast<uint16_t>(p % 2));
  Residency residency(devices, classes, page_class);
  MemoryModel model(residency, pages);
  for (int64_t version = 1; version <= 400; ++version) {
    const PageId page = static_cast<PageId>(trial.pick(static_cast<int>(pages)));
    std::vector<Move> moves;
    const int action = trial.pick(25);
    if (action == 0) {
      residency.discard(page);
    } else if (action == 20) {
      residency.foresee(random_future(trial, residency, devices));
    } else if (action == 21) {
      residency.keep({&page, 1});
    } else if (action == 22) {
      residency.begin_cycle();
    } else if (action == 23) {
      residency.foresee_later(random_future(trial, residency, devices));
    } else if (action == 24) {
      residency.leave_cycle();
    } else if (action == 1 && residency.has_content(page)) {
      residency.flush(page, moves);
      for (const Move& move : moves) model.carry_out(move);
      ASSERT_EQ(model.on_disk(page), model.newest(page));
    } else if (action > 1) {
      const std::vector<PageUse> uses = random_uses(trial, residency, devices);
      std::vector<int32_t> slots;
      residency.acquire(uses, moves, slots);
      for (const Move& move : moves) model.carry_out(move);
      for (size_t i = 0; i < uses.size(); ++i) {
        // A guess may have found no room, and is not pinned, so it may be gone again.
        const bool there = slots[i] != kNoSlot && residency.valid_at(uses[i].page, uses[i].place);
        if (uses[i].access == Access::kPrefetch && !there) continue;
        model.use(uses[i], slots[i], version);
      }
      residency.release(uses);
    }
    residency.check_invariants();
  }
  *paged = model.moves(Move::Kind::kFetch) > 0 && model.moves(Move::Kind::kWriteBack) > 0;
}

TEST(Residency, RandomUsesAlwaysFindTheNewestVersion) {
  int paged_trials = 0;
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    bool paged = false;
    run_trial(seed, &paged);
    if (HasFatalFailure()) return;
    paged_trials += paged;
  }
  EXPECT_GT(paged_trials, 100) << "the trials must really page";
}

TEST(Residency, SameCallsSameMoves) {
  auto moves_of = [] {
    Residency residency(1, {{{2}, 2}}, std::vector<uint16_t>(6, 0));
    std::vector<Move> moves;
    std::vector<int32_t> slots;
    for (int i = 0; i < 60; ++i) {
      const PageUse use{static_cast<PageId>(i * 7 % 6), Place::on_device(0),
                        i < 6 ? Access::kCreate : Access::kRead};
      residency.acquire({&use, 1}, moves, slots);
      residency.release({&use, 1});
    }
    return moves;
  };
  const auto first = moves_of(), second = moves_of();
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].page, second[i].page);
    EXPECT_EQ(first[i].kind, second[i].kind);
  }
}

TEST(Residency, EverythingFitsMovesNothing) {
  Residency residency(1, {{{8}, 0}}, std::vector<uint16_t>(8, 0));
  std::vector<Move> moves;
  std::vector<int32_t> slots;
  for (int round = 0; round < 5; ++round) {
    for (PageId page = 0; page < 8; ++page) {
      const PageUse use{page, Place::on_device(0), round == 0 ? Access::kCreate : Access::kWrite};
      residency.acquire({&use, 1}, moves, slots);
      residency.release({&use, 1});
    }
  }
  EXPECT_TRUE(moves.empty());
}

// Pages of which others are elsewhere change places with those, in the middle of cycles and with
// some kept in the host: what is here is used as if it had always been.
TEST(Residency, PagesChangePlaces) {
  constexpr PageId kPages = 24;
  std::vector<uint16_t> page_class;
  for (PageId page = 0; page < kPages; ++page) {
    page_class.push_back(page % 3 == 0 ? uint16_t{0} : kNoSlotClass);
  }
  Residency residency(2, {{{2, 3}, 6, 2, 3, 3}}, page_class);
  MemoryModel model(residency, kPages);
  std::vector<PageId> here;
  for (PageId page = 0; page < kPages; page += 3) here.push_back(page);
  Trial trial(3);
  std::vector<Move> moves;
  std::vector<int32_t> slots;
  int64_t version = 0;
  const auto use = [&](PageId page, Place place, Access access) {
    const PageUse of{page, place, access};
    moves.clear();
    residency.acquire({&of, 1}, moves, slots);
    for (const Move& move : moves) model.carry_out(move);
    model.use(of, slots[0], ++version);
    residency.release({&of, 1});
    residency.check_invariants();
  };
  for (const PageId page : here) use(page, Place::host(), Access::kCreate);
  for (int round = 0; round < 300; ++round) {
    if (round % 2 == 0) residency.begin_cycle();
    std::vector<PageUse> future;
    for (const PageId page : here) future.push_back({page, Place::on_device(round % 2)});
    residency.foresee(future);
    for (const PageId page : here) use(page, Place::on_device(round % 2), Access::kRead);
    residency.foresee({});
    residency.foresee_later({});
    for (int swaps = trial.pick(4); swaps > 0; --swaps) {
      PageId& out = here[static_cast<size_t>(trial.pick(8))];
      PageId in = 0;
      while (residency.page_class(in) != kNoSlotClass) in = static_cast<PageId>(trial.pick(kPages));
      residency.discard(out);
      residency.replace(out, in);
      EXPECT_EQ(residency.page_class(out), kNoSlotClass);
      out = in;
      use(in, Place::host(), Access::kCreate);
    }
  }
  EXPECT_GT(model.moves(Move::Kind::kFetch), 0);
  EXPECT_GT(model.moves(Move::Kind::kWriteBack), 0);
}

// Forward then backward over all pages is a palindrome; LRU misses as often as the clairvoyant
// optimum: pages minus slots in each direction after the first pass.
TEST(Residency, PalindromeMissesAreMinimal) {
  constexpr int kPages = 12, kSlots = 5;
  Residency residency(1, {{{kSlots}, kPages}}, std::vector<uint16_t>(kPages, 0));
  std::vector<int32_t> slots;
  auto pass = [&](bool reverse, Access access) {
    std::vector<Move> moves;
    for (int i = 0; i < kPages; ++i) {
      const PageUse use{static_cast<PageId>(reverse ? kPages - 1 - i : i), Place::on_device(0),
                        access};
      residency.acquire({&use, 1}, moves, slots);
      residency.release({&use, 1});
    }
    int uploads = 0;
    for (const Move& move : moves) uploads += move.kind == Move::Kind::kUpload;
    return uploads;
  };
  pass(false, Access::kCreate);
  EXPECT_EQ(pass(true, Access::kRead), kPages - kSlots);
  EXPECT_EQ(pass(false, Access::kRead), kPages - kSlots);
}

// States: each is changed in the host once a cycle, in the order of the ids. Gradients: made on the
// device in a cycle's second half, the last one first, and used up in the host in the next one's
// first.
enum class Order { kStates, kGradients };

class KeptInHost {
 public:
  KeptInHost(int pages, int host_slots, int host_kept, Order order)
      : order_(order),
        residency_(1, {slots(host_slots, host_kept)}, std::vector<uint16_t>(pages, 0)) {
    for (PageId page = 0; order == Order::kStates && page < residency_.num_pages(); ++page) {
      residency_.set_on_disk(page);
    }
  }

  // The next cycle. [page] whether it came from disk.
  std::vector<uint8_t> cycle() {
    const auto pages = static_cast<PageId>(residency_.num_pages());
    std::vector<uint8_t> fetched(pages, 0);
    residency_.begin_cycle();
    const Access access = order_ == Order::kStates ? Access::kWrite : Access::kRead;
    for (PageId page = 0; page < pages; ++page) {
      if (!residency_.has_content(page)) continue;  // no gradient was made yet
      fetched[page] = use({page, Place::host(), access});
      if (order_ == Order::kGradients) residency_.discard(page);
    }
    for (PageId page = pages; order_ == Order::kGradients && page-- > 0;) {
      use({page, Place::on_device(0), Access::kCreate});
    }
    return fetched;
  }

 private:
  static SlotClass slots(int host_slots, int host_kept) {
    SlotClass slots{{2}, host_slots};
    slots.host_kept = host_kept;
    return slots;
  }
  // Whether it was read from disk.
  bool use(const PageUse& use) {
    std::vector<Move> moves;
    std::vector<int32_t> slots;
    residency_.acquire({&use, 1}, moves, slots);
    residency_.release({&use, 1});
    residency_.check_invariants();
    return std::any_of(moves.begin(), moves.end(),
                       [](const Move& move) { return move.kind == Move::Kind::kFetch; });
  }

  Order order_;
  Residency residency_;
};

int longest_run(const std::vector<uint8_t>& fetched) {
  int longest = 0, run = 0;
  for (const uint8_t f : fetched) longest = std::max(longest, run = f ? run + 1 : 0);
  return longest;
}

class HostKept : public testing::TestWithParam<Order> {};

// With k of n pages kept in s slots, once a cycle was seen the same k pages never come from disk,
// and fewer than n / k pages, rounded up, lie between two of them. That costs no more than the
// slots which work and transfers need. With none kept, the missed pages follow one another.
TEST_P(HostKept, StayFromCycleToCycleAndWhatIsMissedIsSpread) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    Trial trial(seed);
    const int n = 20 + trial.pick(180), s = 8 + trial.pick(n - 8), k = 1 + trial.pick(s - 5);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << k << " of " << n
                                    << " pages kept in " << s << " slots");
    KeptInHost some(n, s, k, GetParam()), none(n, s, 0, GetParam());
    std::vector<uint8_t> ever(n, 0);
    for (int cycle = 0; cycle < 9; ++cycle) {
      const std::vector<uint8_t> fetched = some.cycle(), of_none = none.cycle();
      if (cycle < 3) continue;
      for (int page = 0; page < n; ++page) ever[page] |= fetched[page];
      const auto missed = std::count(fetched.begin(), fetched.end(), 1);
      EXPECT_LE(missed, n - s + SlotClass().host_depth);
      EXPECT_GE(missed, n - s - 2) << "two may be on the device";
      EXPECT_GE(2 * longest_run(of_none), std::count(of_none.begin(), of_none.end(), 1));
    }
    EXPECT_GE(std::count(ever.begin(), ever.end(), 0), k);
    EXPECT_LT(longest_run(ever), (n + k - 1) / k);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, HostKept, testing::Values(Order::kStates, Order::kGradients));

TEST(ResidencyDeathTest, TooFewSlotsIsABug) {
  Residency residency(1, {{{1}, 2}}, std::vector<uint16_t>(2, 0));
  std::vector<Move> moves;
  std::vector<int32_t> slots;
  const PageUse uses[] = {{0, Place::on_device(0), Access::kCreate},
                          {1, Place::on_device(0), Access::kCreate}};
  EXPECT_DEATH(residency.acquire(uses, moves, slots), "no slot for page 1");
}

}  // namespace
}  // namespace pagoda
