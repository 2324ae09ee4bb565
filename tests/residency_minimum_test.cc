// Misses are the minimum where the future is known. References that share no code with Residency:
// every choice of victims tried (small instances), and a plain simulation of Belady's rule that
// looks for the farthest use by walking the trace (long ones). A miss on a device is an upload, one
// in the host a fetch from disk.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <random>
#include <set>

#include "offload/residency.h"
#include "plan/step_plan.h"

namespace pagoda {
namespace {

constexpr Place kDevice{Tier::kDevice, 0};
constexpr PageId kNobody = ~PageId{0};

// What happens to one place.
struct Happening {
  enum Kind { kRead, kCreate, kReplaced } kind;  // kReplaced: this place's copy is void from now on
  PageId page;
  PageId held = kNobody;  // must stay meanwhile
};

// One place's history: what comes before the first miss that counts, and what counts.
struct Trace {
  int slots = 0, depth = 1;
  std::vector<Happening> before, counted;
  std::set<PageId> start;  // resident between the two
};

// Which pages were used among the last depth - 1 uses of different pages in a row.
class Recent {
 public:
  explicit Recent(int depth) : depth_(depth) {}
  void happen(const Happening& h) {
    if (h.kind == Happening::kReplaced) {
      if (h.page == latest_) latest_ = kNobody;
      return;
    }
    if (h.page != latest_) ++turn_;
    latest_ = h.page;
    turn_of_[h.page] = turn_;
  }
  bool has(PageId page) const {
    const auto at = turn_of_.find(page);
    return at != turn_of_.end() && turn_ - at->second < depth_ - 1;
  }

 private:
  int depth_, turn_ = 0;
  PageId latest_ = kNobody;
  std::map<PageId, int> turn_of_;
};

// Who may be evicted of those resident: not who was used just now, while there is another.
std::vector<PageId> victims(const std::set<PageId>& resident, const Happening& h,
                            const Recent& recent) {
  std::vector<PageId> all, others;
  for (PageId page : resident) {
    if (page == h.held) continue;
    all.push_back(page);
    if (!recent.has(page)) others.push_back(page);
  }
  return others.empty() ? all : others;
}

// Fewest misses over all choices of victims: for every set of pages that can be resident, the
// fewest misses that lead to it.
int fewest_misses(const Trace& trace) {
  Recent recent(trace.depth);
  for (const Happening& h : trace.before) recent.happen(h);
  std::map<std::set<PageId>, int> reached{{trace.start, 0}};
  for (const Happening& h : trace.counted) {
    std::map<std::set<PageId>, int> next;
    const auto reach = [&](std::set<PageId> resident, PageId out, int misses) {
      resident.erase(out);
      if (h.kind != Happening::kReplaced) resident.insert(h.page);
      const auto [at, fresh] = next.try_emplace(std::move(resident), misses);
      if (!fresh) at->second = std::min(at->second, misses);
    };
    for (const auto& [resident, misses] : reached) {
      const int then = misses + (h.kind == Happening::kRead);
      if (h.kind == Happening::kReplaced) {
        reach(resident, h.page, misses);
      } else if (resident.contains(h.page)) {
        reach(resident, kNobody, misses);
      } else if (static_cast<int>(resident.size()) < trace.slots) {
        reach(resident, kNobody, then);
      } else {
        for (PageId out : victims(resident, h, recent)) reach(resident, out, then);
      }
    }
    recent.happen(h);
    reached = std::move(next);
  }
  int fewest = INT32_MAX;
  for (const auto& [resident, misses] : reached) fewest = std::min(fewest, misses);
  return fewest;
}

// Belady's rule, by walking.
int belady_misses(const Trace& trace) {
  Recent recent(trace.depth);
  for (const Happening& h : trace.before) recent.happen(h);
  std::set<PageId> resident = trace.start;
  const auto next_read = [&](size_t from, PageId page) {
    for (size_t i = from; i < trace.counted.size(); ++i) {
      if (trace.counted[i].page != page) continue;
      return trace.counted[i].kind == Happening::kRead ? i : trace.counted.size();
    }
    return trace.counted.size();
  };
  int misses = 0;
  for (size_t i = 0; i < trace.counted.size(); ++i) {
    const Happening& h = trace.counted[i];
    if (h.kind == Happening::kReplaced) {
      resident.erase(h.page);
    } else if (!resident.contains(h.page)) {
      misses += h.kind == Happening::kRead;
      if (static_cast<int>(resident.size()) == trace.slots) {
        const std::vector<PageId> out = victims(resident, h, recent);
        resident.erase(*std::max_element(out.begin(), out.end(), [&](PageId a, PageId b) {
          return next_read(i + 1, a) < next_read(i + 1, b);
        }));
      }
      resident.insert(h.page);
    }
    recent.happen(h);
  }
  return misses;
}

// The two places' histories of the pages of one class, and what moved.
class History {
 public:
  History(const SlotClass& slots, const std::vector<uint16_t>& page_class, uint16_t mine)
      : page_class_(page_class), mine_(mine) {
    device_.slots = slots.device_slots[0];
    device_.depth = slots.device_depth;
    host_.slots = slots.host_slots;
    host_.depth = slots.host_depth;
  }

  bool has(PageId page) const { return page_class_[page] == mine_; }

  // From here on misses count.
  void start(const Residency& residency) {
    for (PageId page = 0; page < residency.num_pages(); ++page) {
      if (!has(page)) continue;
      if (residency.valid_at(page, kDevice)) device_.start.insert(page);
      if (residency.valid_at(page, Place::host())) host_.start.insert(page);
    }
    counting_ = true;
  }

  // A use of one of its pages, the only one of an acquire that made these moves.
  void note(const PageUse& use, const std::vector<Move>& all_moves, bool came = true) {
    std::vector<Move> moves;
    std::copy_if(all_moves.begin(), all_moves.end(), std::back_inserter(moves),
                 [&](const Move& move) { return has(move.page); });
    // A page that is in the host already and goes up from there is held meanwhile.
    PageId held = kNobody;
    for (const Move& move : moves) {
      const bool comes = move.kind == Move::Kind::kFetch || move.kind == Move::Kind::kDownload;
      if (move.kind == Move::Kind::kUpload && held == kNobody) held = move.page;
      if (comes && move.page == use.page) break;
    }
    for (const Move& move : moves) {
      if (move.kind == Move::Kind::kUpload) add(host_, {Happening::kRead, move.page});
      if (move.kind == Move::Kind::kDownload) add(host_, {Happening::kCreate, move.page, held});
      uploads_ += counting_ && move.kind == Move::Kind::kUpload && use.access != Access::kPrefetch;
      fetches_ += counting_ && move.kind == Move::Kind::kFetch;
    }
    const bool on_device = use.place == kDevice;
    if (use.access == Access::kPrefetch && !came) return;
    const bool costs_nothing = use.access == Access::kCreate || use.access == Access::kPrefetch;
    const auto kind = costs_nothing ? Happening::kCreate : Happening::kRead;
    add(on_device ? device_ : host_, {kind, use.page});
    const bool void_elsewhere = changes_content(use.access) || use.last;
    if (void_elsewhere) add(on_device ? host_ : device_, {Happening::kReplaced, use.page});
    if (use.last) add(on_device ? device_ : host_, {Happening::kReplaced, use.page});
  }

  const Trace& device() const { return device_; }
  const Trace& host() const { return host_; }
  int uploads() const { return uploads_; }
  int fetches() const { return fetches_; }

 private:
  void add(Trace& trace, const Happening& h) {
    (counting_ ? trace.counted : trace.before).push_back(h);
  }

  const std::vector<uint16_t>& page_class_;
  uint16_t mine_;
  Trace device_, host_;
  bool counting_ = false;
  int uploads_ = 0, fetches_ = 0;
};

// A residency of one device and one class.
class Machine {
 public:
  Machine(int pages, const SlotClass& slots)
      : page_class_(pages, 0),
        residency_(1, {slots}, page_class_),
        history_(slots, page_class_, 0) {
    for (PageId page = 0; page < residency_.num_pages(); ++page) residency_.set_on_disk(page);
  }

  Residency& residency() { return residency_; }

  void use(const PageUse& use) {
    std::vector<Move> moves;
    std::vector<int32_t> slots;
    residency_.acquire({&use, 1}, moves, slots);
    residency_.release({&use, 1});
    residency_.check_invariants();
    history_.note(use, moves);
  }

  // From here on misses count, and these uses are what comes.
  void foresee(const std::vector<PageUse>& uses) {
    history_.start(residency_);
    residency_.foresee(uses);
    residency_.check_invariants();
  }

  const Trace& device() const { return history_.device(); }
  const Trace& host() const { return history_.host(); }
  int uploads() const { return history_.uploads(); }
  int fetches() const { return history_.fetches(); }

 private:
  std::vector<uint16_t> page_class_;
  Residency residency_;
  History history_;
};

struct Dice {
  explicit Dice(uint32_t seed) : random(seed) {}
  int pick(int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); }
  std::mt19937 random;
};

enum class Mix { kReads, kDeviceWrites, kEverything };

std::vector<PageUse> random_uses(Dice& dice, int count, int pages, Mix mix) {
  std::vector<PageUse> uses;
  for (int i = 0; i < count; ++i) {
    PageUse use{static_cast<PageId>(dice.pick(pages)), kDevice, Access::kRead};
    if (mix != Mix::kReads && dice.pick(3) == 0) use.access = static_cast<Access>(dice.pick(3));
    if (mix == Mix::kEverything && dice.pick(3) == 0) use.place = Place::host();
    uses.push_back(use);
  }
  return uses;
}

SlotClass random_slots(Dice& dice, int most_device, int most_host) {
  SlotClass slots;
  slots.device_slots = {1 + dice.pick(most_device)};
  slots.host_slots = 2 + dice.pick(most_host - 1);
  // As many as leave a slot that was not used just now.
  slots.device_depth = 1 + dice.pick(std::min(3, slots.device_slots[0]));
  slots.host_depth = 1 + dice.pick(std::min(3, slots.host_slots));
  return slots;
}

class MinimumMisses : public testing::TestWithParam<Mix> {};

TEST_P(MinimumMisses, NoChoiceOfVictimsHasFewer) {
  int missed = 0;
  for (uint32_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(seed);
    const int pages = 3 + dice.pick(4);
    Machine machine(pages, random_slots(dice, 4, 4));
    for (const PageUse& use : random_uses(dice, 8, pages, GetParam())) machine.use(use);
    const auto future = random_uses(dice, 14, pages, GetParam());
    machine.foresee(future);
    for (const PageUse& use : future) machine.use(use);
    ASSERT_EQ(machine.uploads(), fewest_misses(machine.device()));
    ASSERT_EQ(machine.uploads(), belady_misses(machine.device()));
    ASSERT_EQ(machine.fetches(), fewest_misses(machine.host()));
    ASSERT_EQ(machine.fetches(), belady_misses(machine.host()));
    missed += machine.fetches() > 2 && machine.uploads() > machine.fetches();
  }
  EXPECT_GT(missed, 300) << "the trials must really miss";
}

TEST_P(MinimumMisses, AsBeladyOnLongTraces) {
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(seed);
    const int pages = 10 + dice.pick(50);
    Machine machine(pages, random_slots(dice, pages / 2, pages / 2));
    for (const PageUse& use : random_uses(dice, 100, pages, GetParam())) machine.use(use);
    const auto future = random_uses(dice, 700, pages, GetParam());
    machine.foresee(future);
    for (const PageUse& use : future) machine.use(use);
    EXPECT_EQ(machine.uploads(), belady_misses(machine.device()));
    EXPECT_EQ(machine.fetches(), belady_misses(machine.host()));
    EXPECT_GT(machine.fetches(), 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, MinimumMisses,
                         testing::Values(Mix::kReads, Mix::kDeviceWrites, Mix::kEverything));

// Forward and back over the same pages, some of them skipped: LRU is worse, what is known is not.
TEST(Residency, SkippedExpertsAreNotKept) {
  int lru_more = 0;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(seed);
    constexpr int kLayers = 6, kExperts = 8, kPages = kLayers * kExperts;
    SlotClass slots{{4 + dice.pick(20)}, 6 + dice.pick(30), 1, 1};
    std::vector<PageUse> forward, backward;
    std::vector<std::vector<PageUse>> layers(kLayers);
    for (PageId page = 0; page < kPages; ++page) {
      if (dice.pick(3) > 0) layers[page / kExperts].push_back({page, kDevice, Access::kRead});
    }
    for (const auto& layer : layers) forward.insert(forward.end(), layer.begin(), layer.end());
    for (int l = kLayers - 1; l >= 0; --l) {
      backward.insert(backward.end(), layers[l].begin(), layers[l].end());
    }
    Machine known(kPages, slots), unknown(kPages, slots);
    for (Machine* machine : {&known, &unknown}) {
      for (const PageUse& use : forward) machine->use(use);
      machine->foresee(machine == &known ? backward : std::vector<PageUse>());
      for (const PageUse& use : backward) machine->use(use);
    }
    EXPECT_EQ(known.uploads(), belady_misses(known.device()));
    EXPECT_EQ(known.fetches(), belady_misses(known.host()));
    EXPECT_LE(known.uploads(), unknown.uploads());
    lru_more += known.uploads() < unknown.uploads();
  }
  EXPECT_GT(lru_more, 10);
}

// Round after round over the same pages. Once a round was watched, the device misses as often as
// the clairvoyant, but for what he gains at the end and for a page used on both sides of a round's
// end, which is not noted. What a device asks of the host is not the same in every round.
TEST(Residency, RoundsAreExpectedToComeAgain) {
  constexpr int kRounds = 12;
  int saved = 0;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(seed);
    const int pages = 6 + dice.pick(30), slots = 2 + dice.pick(pages - 3);
    const SlotClass room{{slots}, 2 + dice.pick(pages), 1, 1};
    Machine machine(pages, room), lru(pages, room);
    const auto round = random_uses(dice, 2 * pages, pages, Mix::kReads);
    for (int i = 0; i < kRounds; ++i) {
      machine.residency().begin_cycle();
      if (i == 1) machine.foresee({});
      if (i == 1) lru.foresee({});
      for (const PageUse& use : round) machine.use(use);
      for (const PageUse& use : round) lru.use(use);
    }
    EXPECT_LE(machine.uploads(), belady_misses(machine.device()) + slots + kRounds);
    EXPECT_LE(machine.uploads(), lru.uploads());
    EXPECT_LE(machine.fetches(), lru.fetches());
    saved += lru.uploads() - machine.uploads();
  }
  EXPECT_GT(saved, 2000);
}

// Uses of several pages at once: none evicts another's page, and misses are still the fewest.
TEST(Residency, TasksOfSeveralPagesMissTheMinimum) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(seed);
    const int pages = 4 + dice.pick(20);
    const SlotClass slots{{2 + dice.pick(pages - 2)}, pages, 1, 1};
    Residency residency(1, {slots}, std::vector<uint16_t>(pages, 0));
    for (PageId page = 0; page < residency.num_pages(); ++page) residency.set_on_disk(page);
    std::vector<PageUse> future;
    Trace trace{slots.device_slots[0], 1, {}, {}, {}};
    for (int i = 0; i < 60; ++i) {
      const auto page = static_cast<PageId>(dice.pick(pages));
      const auto other = static_cast<PageId>((page + 1 + dice.pick(pages - 1)) % pages);
      future.push_back({page, kDevice, Access::kRead});
      future.push_back({other, kDevice, Access::kRead});
      // Said twice, a pair of neighbours asks for both at once.
      for (PageId p : {page, other, page, other}) trace.counted.push_back({Happening::kRead, p});
    }
    residency.foresee(future);
    int uploads = 0;
    for (size_t i = 0; i < future.size(); i += 2) {
      std::vector<Move> moves;
      std::vector<int32_t> at;
      residency.acquire({&future[i], 2}, moves, at);
      residency.release({&future[i], 2});
      for (const Move& move : moves) uploads += move.kind == Move::Kind::kUpload;
    }
    ASSERT_EQ(uploads, belady_misses(trace));
  }
}

// A guess takes nothing from what is known, on the device or in the host, and is not pinned.
TEST(Residency, PrefetchEvictsNothingForeseen) {
  int came = 0, refused = 0;
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(seed);
    const int pages = 6 + dice.pick(12);
    Machine machine(pages, random_slots(dice, 6, 8));
    for (const PageUse& use : random_uses(dice, 30, pages, Mix::kEverything)) machine.use(use);
    const auto future = random_uses(dice, dice.pick(12), pages, Mix::kReads);
    Residency& residency = machine.residency();
    residency.foresee(future);
    for (int i = 0; i < 5; ++i) {
      std::set<PageId> on_device, in_host;
      for (const PageUse& use : future) {
        if (residency.valid_at(use.page, kDevice)) on_device.insert(use.page);
      }
      // What the device holds it will not ask the host for, unless it comes to leave.
      for (const PageUse& use : future) {
        const bool here = residency.valid_at(use.page, Place::host());
        if (here && !on_device.contains(use.page)) in_host.insert(use.page);
      }
      const PageUse guess{static_cast<PageId>(dice.pick(pages)), kDevice, Access::kPrefetch};
      const bool was_there = residency.valid_at(guess.page, kDevice);
      std::vector<Move> moves;
      std::vector<int32_t> slots;
      residency.acquire({&guess, 1}, moves, slots);
      residency.release({&guess, 1});
      residency.check_invariants();
      for (PageId page : on_device) ASSERT_TRUE(residency.valid_at(page, kDevice)) << page;
      for (PageId page : in_host) ASSERT_TRUE(residency.valid_at(page, Place::host())) << page;
      EXPECT_EQ(slots[0], residency.slot_at(guess.page, kDevice));
      EXPECT_TRUE(slots[0] != kNoSlot || moves.empty());
      if (!was_there) ++(slots[0] == kNoSlot ? refused : came);
    }
  }
  EXPECT_GT(came, 200);
  EXPECT_GT(refused, 200);
}

// Kept pages go last: reads of many others leave them where they are.
TEST(Residency, KeptPagesStayWhileThereIsAnother) {
  Machine machine(12, {{5}, 12, 2, 3});
  for (PageId page = 0; page < 5; ++page) machine.use({page, kDevice, Access::kRead});
  const std::vector<PageId> kept = {1, 3};
  machine.residency().keep(kept);
  for (int round = 0; round < 3; ++round) {
    for (PageId page = 5; page < 12; ++page) machine.use({page, kDevice, Access::kRead});
  }
  EXPECT_TRUE(machine.residency().valid_at(1, kDevice));
  EXPECT_TRUE(machine.residency().valid_at(3, kDevice));
  machine.residency().keep({});
  for (PageId page = 5; page < 12; ++page) machine.use({page, kDevice, Access::kRead});
  EXPECT_FALSE(machine.residency().valid_at(1, kDevice));
}

// A residency of a plan's pages, with a history of each class.
class PlanMachine {
 public:
  PlanMachine(const PageTable& pages, const std::vector<SlotClass>& classes)
      : page_class_(classes_of(pages)), residency_(1, classes, page_class_) {
    for (size_t c = 0; c < classes.size(); ++c) {
      histories_.emplace_back(classes[c], page_class_, static_cast<uint16_t>(c));
    }
    for (PageId p = 0; p < pages.pages.size(); ++p) {
      if (pages.pages[p].durable) residency_.set_on_disk(p);
    }
  }

  // From here on misses count, and these tasks are what comes.
  void foresee(const TaskList& tasks) {
    std::vector<PageUse> uses;
    add_uses(tasks, uses);
    for (History& history : histories_) history.start(residency_);
    residency_.foresee(uses);
  }

  void run(const TaskList& tasks) {
    for (const Task& task : tasks) {
      std::vector<Move> moves;
      std::vector<int32_t> slots;
      residency_.acquire(task.used(), moves, slots);
      residency_.release(task.used());
      for (const PageUse& use : task.used()) {
        const bool came = use.access != Access::kPrefetch || residency_.valid_at(use.page, use.place);
        histories_[page_class_[use.page]].note(use, moves, came);
      }
      for (const PageUse& use : task.used()) {
        if (use.last) residency_.discard(use.page);
      }
    }
    residency_.check_invariants();
  }

  const std::vector<History>& histories() const { return histories_; }

 private:
  static std::vector<uint16_t> classes_of(const PageTable& pages) {
    std::vector<uint16_t> classes;
    for (const PageTable::Page& page : pages.pages) classes.push_back(page.slot_class);
    return classes;
  }

  std::vector<uint16_t> page_class_;
  Residency residency_;
  std::vector<History> histories_;
};

RunShape shape_with_experts() {
  RunShape shape;
  shape.num_layers = 4;
  shape.is_moe = {1, 1, 0, 1};
  shape.num_experts = 12;
  shape.hidden_size = 64;
  shape.experts_per_token = 2;
  shape.microbatches = 2;
  shape.microbatch_tokens = 300;
  shape.row_block = 64;
  shape.records.push_back({10000});
  for (int64_t l = 0; l < 4; ++l) {
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({20000, l});
    for (int64_t e = 0; e < (shape.is_moe[l] ? 12 : 0); ++e) shape.records.push_back({9000, l, e});
  }
  shape.records.push_back({10064});
  return shape;
}

// The forward of a real plan as far as it is resolved, and its backward.
struct PlannedStep {
  PlannedStep(const StepPlan& plan, Dice& dice) {
    const RunShape& shape = plan.shape();
    std::vector<std::vector<int64_t>> tokens(4, std::vector<int64_t>(12, 0));
    plan.embed(StepPlan::kAll, forward);
    for (int64_t l = 0; l < 4; ++l) {
      for (int64_t& count : tokens[l]) count = dice.pick(3) == 0 ? 0 : 1 + dice.pick(150);
      plan.forward_layer(l, StepPlan::kAll, forward);
      if (shape.is_moe[l]) plan.forward_experts(l, StepPlan::kAll, tokens[l], forward);
    }
    plan.head(forward);
    for (int64_t l = 3; l >= 0; --l) plan.backward_layer(l, tokens[l], backward);
  }
  TaskList forward, backward;
};

// The backward of a real plan, experts skipped, blocks of rows, gradients that leave, activations
// that die, optimizer work on the host in it or not: what devices miss is the fewest in every class
// of pages, and so is what the host fetches from disk for what the devices ask of it.
TEST(Residency, BackwardOfAPlanMissesTheMinimum) {
  const RunShape shape = shape_with_experts();
  const PageTable pages(shape);
  const uint16_t experts = pages.pages[pages.weights(shape.expert(0, 0))].slot_class;
  int missed[2] = {0, 0}, fetched[2] = {0, 0};
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(seed);
    const bool eager = seed % 2 == 0;
    std::vector<SlotClass> classes;
    for (size_t c = 0; c < pages.classes.size(); ++c) {
      classes.push_back({{4 + dice.pick(4)}, 5 + dice.pick(8), 1 + dice.pick(3), 1 + dice.pick(3)});
    }
    classes[experts].device_slots = {4 + dice.pick(28)};
    const StepPlan plan(shape, pages, {.eager_adam = eager});
    const PlannedStep step(plan, dice);
    PlanMachine machine(pages, classes);
    machine.run(step.forward);
    machine.foresee(step.backward);
    machine.run(step.backward);
    for (size_t c = 0; c < classes.size(); ++c) {
      SCOPED_TRACE(testing::Message() << "class " << c << " of kind "
                                      << static_cast<int>(pages.classes[c].kind));
      const History& history = machine.histories()[c];
      EXPECT_EQ(history.uploads(), belady_misses(history.device()));
      EXPECT_EQ(history.fetches(), belady_misses(history.host()));
      missed[eager] += history.uploads();
      fetched[eager] += history.fetches();
    }
  }
  for (const bool eager : {false, true}) {
    EXPECT_GT(missed[eager], 500);
    EXPECT_GT(fetched[eager], 300);
  }
}

// Fewest fetches over all choices of victims on the device and in the host together, of reads on a
// device with depths of 1; first_uploads: of those with the fewest uploads.
int fewest_fetches(const Machine& machine, const std::vector<PageUse>& uses, bool first_uploads) {
  using Pages = uint32_t;  // a bit each
  const auto bits = [](const std::set<PageId>& pages) {
    Pages all = 0;
    for (PageId page : pages) all |= Pages{1} << page;
    return all;
  };
  // With the page in, all that may be resident then.
  const auto with = [](Pages resident, PageId page, int slots) {
    std::vector<Pages> next;
    const Pages in = resident | Pages{1} << page;
    if (std::popcount(in) <= slots) return std::vector<Pages>{in};
    for (PageId out = 0; out < 32; ++out) {
      if (out != page && (in >> out & 1) != 0) next.push_back(in & ~(Pages{1} << out));
    }
    return next;
  };
  const int upload = first_uploads ? 1000 : 0;
  std::map<std::pair<Pages, Pages>, int> reached{
      {{bits(machine.device().start), bits(machine.host().start)}, 0}};
  for (const PageUse& use : uses) {
    std::map<std::pair<Pages, Pages>, int> next;
    const auto reach = [&](Pages device, Pages host, int cost) {
      const auto [at, fresh] = next.try_emplace({device, host}, cost);
      if (!fresh) at->second = std::min(at->second, cost);
    };
    for (const auto& [at, cost] : reached) {
      const auto [device, host] = at;
      if ((device >> use.page & 1) != 0) {
        reach(device, host, cost);
        continue;
      }
      const bool here = (host >> use.page & 1) != 0;
      const auto hosts = here ? std::vector{host} : with(host, use.page, machine.host().slots);
      for (Pages up : with(device, use.page, machine.device().slots)) {
        for (Pages in : hosts) reach(up, in, cost + upload + (here ? 0 : 1));
      }
    }
    reached = std::move(next);
  }
  int fewest = INT32_MAX;
  for (const auto& [at, cost] : reached) fewest = std::min(fewest, cost);
  return first_uploads ? fewest % 1000 : fewest;
}

// The host's fetches are the fewest for what the devices ask. Were the device's victims chosen for
// the host's sake, there would be fewer: on these small instances we fetch 1.044 times the fewest
// that go with the fewest uploads, and 1.086 times the fewest of all, for which the device misses
// more than it must.
TEST(Residency, FetchesBesideTheFewestOfBothPlacesTogether) {
  int ours = 0, with_fewest_uploads = 0, fewest = 0;
  for (uint32_t seed = 1; seed <= 1500; ++seed) {
    Dice dice(seed);
    const int pages = 4 + dice.pick(3);
    SlotClass slots{{1 + dice.pick(3)}, 2 + dice.pick(3), 1, 1};
    Machine machine(pages, slots);
    for (const PageUse& use : random_uses(dice, 8, pages, Mix::kReads)) machine.use(use);
    const auto future = random_uses(dice, 16, pages, Mix::kReads);
    machine.foresee(future);
    for (const PageUse& use : future) machine.use(use);
    const int lexical = fewest_fetches(machine, future, true);
    const int joint = fewest_fetches(machine, future, false);
    ASSERT_LE(joint, lexical) << "seed " << seed;
    ASSERT_LE(lexical, machine.fetches()) << "seed " << seed;
    ours += machine.fetches();
    with_fewest_uploads += lexical;
    fewest += joint;
  }
  EXPECT_GT(fewest, 2000);
  EXPECT_LE(ours, 1.05 * with_fewest_uploads);
  EXPECT_LE(ours, 1.09 * fewest);
}

}  // namespace
}  // namespace pagoda
