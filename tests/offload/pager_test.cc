// The pager against a memory in which every page is always resident. Random leases on several
// streams, random budgets, random completion order: the work behind a lease must find, in every
// byte, the newest version of its page, and what it writes must be what later work finds, on disk
// too.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/bytes.h"
#include "offload/pager.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/storage/storages.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

constexpr uint32_t kSeeds = kUnderSanitizer ? 60 : 250;

// A page's content follows from its number and version, and every 8 bytes are different.
uint64_t word_of(PageId page, uint64_t version, int64_t index) {
  uint64_t x = version * 0x9e3779b97f4a7c15u + (uint64_t{page} << 40);
  x += static_cast<uint64_t>(index);
  x ^= x >> 29;
  return x * 0xbf58476d1ce4e5b9u;
}

void fill_version(std::byte* data, int64_t bytes, PageId page, uint64_t version) {
  auto* words = reinterpret_cast<uint64_t*>(data);
  for (int64_t i = 0; i < bytes / 8; ++i) words[i] = word_of(page, version, i);
}

// -1, or the first byte that is not of this version.
int64_t first_difference(const std::byte* data, int64_t bytes, PageId page, uint64_t version) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  for (int64_t i = 0; i < bytes / 8; ++i) {
    if (words[i] != word_of(page, version, i)) return i * 8;
  }
  return -1;
}

// What the work on the streams found wrong. Any thread.
class Findings {
 public:
  void add(const std::string& what) {
    std::lock_guard lock(mutex_);
    if (first_.empty()) first_ = what;
  }
  std::string first() const {
    std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  mutable std::mutex mutex_;  // guards first_
  std::string first_;
};

struct Dice {
  explicit Dice(uint32_t seed) : random(seed) {}
  int pick(int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); }
  bool one_in(int n) { return pick(n) == 0; }
  std::mt19937 random;
};

// A random machine: devices, classes of pages, slots, streams. Everything but the storage.
struct Machine {
  Machine(Dice& dice, Storage* storage, const std::string& directory) : storage(storage) {
    const int devices = 1 + dice.pick(3), count = 1 + dice.pick(3);
    for (int c = 0; c < count; ++c) {
      SlotClass slots;
      for (int d = 0; d < devices; ++d) slots.device_slots.push_back(3 + dice.pick(3));
      slots.host_slots = 4 + dice.pick(4);
      options.classes.push_back(slots);
      options.page_bytes.push_back(kIoAlign * (1 + c));
    }
    const int pages = 6 + dice.pick(20);
    for (int p = 0; p < pages; ++p) {
      const int c = dice.pick(count);
      options.page_class.push_back(static_cast<uint16_t>(c));
      specs.push_back({options.page_bytes[c], static_cast<uint32_t>(p / 2), !dice.one_in(3)});
    }
    for (int d = 0; d < devices; ++d) {
      const int64_t offset = kIoAlign * dice.pick(3);
      devices_owned.push_back(
          open_host_device({offset + Pager::device_bytes(options, d), 1}).take());
      options.devices.push_back(devices_owned.back().get());
      options.arena_offset.push_back(offset);
      streams.push_back(
          devices_owned.back()->make_stream(strf("compute %d", d), WorkKind::kCompute));
    }
    streams.push_back(make_host_stream({"optimizer", WorkKind::kOptimizer},
                                       std::make_shared<ThreadPool>(1)));
    file_options.directories = {directory + "/a"};
    if (dice.one_in(2)) file_options.directories.push_back(directory + "/b");
    file_options.name = "pages";
    file_options.slots = 2;
  }
  Status create() {
    ASSIGN_OR_RETURN(file, PageFile::create(storage, file_options, specs));
    ASSIGN_OR_RETURN(pager, Pager::create(options, file.get(), storage));
    return Status();
  }
  // The next program on the same files.
  Status reopen(const std::string& id, const std::vector<PageVersion>& versions) {
    close();
    ASSIGN_OR_RETURN(file, PageFile::open(storage, file_options, specs, id, versions));
    ASSIGN_OR_RETURN(pager, Pager::create(options, file.get(), storage));
    for (PageId page = 0; page < specs.size(); ++page) {
      if (specs[page].durable) pager->set_on_disk(page);
    }
    return Status();
  }
  void close() {
    for (auto& stream : streams) stream->synchronize();
    pager.reset();
    file.reset();
  }
  ~Machine() { close(); }

  Storage* storage;
  Pager::Options options;
  std::vector<PageSpec> specs;
  PageFile::Options file_options;
  std::vector<std::unique_ptr<Device>> devices_owned;
  std::vector<std::unique_ptr<Stream>> streams;
  std::unique_ptr<PageFile> file;
  std::unique_ptr<Pager> pager;
};

// The program: acts at random and knows what every page must hold.
class Program {
 public:
  Program(Machine& machine, Dice& dice, Findings& findings)
      : m_(machine), dice_(dice), findings_(findings), version_(machine.specs.size(), 0) {}

  void run(int actions) {
    for (int i = 0; i < actions; ++i) {
      const int action = dice_.pick(40);
      if (action == 0) {
        discard(static_cast<PageId>(dice_.pick(static_cast<int>(version_.size()))));
      } else if (action == 1) {
        const Status flushed = flush();
        if (m_.pager->status().ok() && !flushed.ok()) findings_.add(flushed.message());
      } else if (action == 2 && m_.pager->status().ok()) {
        commit();
      } else {
        lease();
      }
    }
  }

  // Reads every page that has content, at a random place.
  void look_at_everything() {
    for (PageId page = 0; page < version_.size(); ++page) {
      if (version_[page] != 0) work({{page, random_place(), Access::kRead}});
    }
    for (auto& stream : m_.streams) stream->synchronize();
  }

  // Flushing needs content in every durable page: those without any get one first.
  Status flush() {
    for (PageId page = 0; page < version_.size(); ++page) {
      if (version_[page] == 0 && m_.specs[page].durable) {
        work({{page, Place::host(), Access::kCreate}});
      }
    }
    const Status flushed = m_.pager->flush();
    if (!flushed.ok()) return flushed;
    for (PageId page = 0; page < version_.size(); ++page) {
      if (!m_.specs[page].durable) continue;
      if (!m_.file->has(page) || m_.file->generation(page) != version_[page]) {
        findings_.add(strf("page %u was not flushed, or under a wrong generation", page));
      }
    }
    return Status();
  }

  // A program that starts from the last commit, if there was one.
  bool restart() {
    if (store_id_.empty()) return false;
    const Status opened = m_.reopen(store_id_, committed_);
    if (!opened.ok()) findings_.add(opened.message());
    if (!opened.ok()) return false;
    version_ = committed_version_;
    return true;
  }

 private:
  Place random_place() {
    const int place = dice_.pick(static_cast<int>(m_.options.devices.size()) + 1);
    return place == 0 ? Place::host() : Place::on_device(place - 1);
  }

  // The leases to come, foreseen as they will come, in part, in another order, or not at all.
  void make_plans() {
    std::vector<PageUse> foreseen;
    for (int n = 1 + dice_.pick(10); n > 0; --n) {
      plans_.push_back(random_uses());
      if (!dice_.one_in(5)) {
        foreseen.insert(foreseen.end(), plans_.back().begin(), plans_.back().end());
      }
    }
    if (dice_.one_in(4)) std::shuffle(foreseen.begin(), foreseen.end(), dice_.random);
    for (PageUse& use : foreseen) {
      if (dice_.one_in(12)) use.access = static_cast<Access>(dice_.pick(4));
      if (dice_.one_in(12)) use.place = random_place();
    }
    m_.pager->foresee(foreseen);
    if (dice_.one_in(3)) m_.pager->begin_cycle();
    const auto page = static_cast<PageId>(dice_.pick(static_cast<int>(version_.size())));
    m_.pager->keep({&page, 1});
  }

  std::vector<PageUse> random_uses() {
    std::vector<PageUse> uses;
    for (int n = 1 + dice_.pick(3); n > 0; --n) {
      PageUse use{static_cast<PageId>(dice_.pick(static_cast<int>(version_.size()))),
                  random_place(), static_cast<Access>(dice_.pick(4))};
      bool twice = false;
      for (const PageUse& other : uses) twice = twice || other.page == use.page;
      if (!twice) uses.push_back(use);
    }
    return uses;
  }

  void lease() {
    if (plans_.empty()) make_plans();
    std::vector<PageUse> uses = plans_.front();
    plans_.pop_front();
    for (PageUse& use : uses) {
      if (version_[use.page] == 0) use.access = Access::kCreate;
    }
    work(uses);
  }

  // Acquires, enqueues a kernel that checks what it reads and writes what it must, releases.
  void work(const std::vector<PageUse>& uses) {
    Stream& stream = *m_.streams[dice_.pick(static_cast<int>(m_.streams.size()))];
    const Lease lease = m_.pager->acquire(uses, stream, ++clock_);
    const int pause_us = dice_.one_in(12) ? 1 + dice_.pick(150) : 0;
    if (pause_us > 0) {
      stream.enqueue([pause_us] {
        std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      });
    }
    for (size_t i = 0; i < uses.size(); ++i) {
      const PageUse use = uses[i];
      if (use.access == Access::kPrefetch) continue;
      const int64_t bytes = m_.specs[use.page].bytes;
      const uint64_t expected = version_[use.page];
      if (changes_content(use.access)) version_[use.page] = clock_;
      // The work may run after this program is gone; the machine waits for it.
      stream.enqueue([pager = m_.pager.get(), &findings = findings_, use, bytes, expected,
                      next = clock_, data = lease.data(i)] {
        const int64_t at = use.access == Access::kCreate
                               ? -1
                               : first_difference(data, bytes, use.page, expected);
        // After a failed transfer contents are not what they should be, and nobody believes them.
        if (at >= 0 && pager->status().ok()) {
          findings.add(strf("page %u, version %llu: byte %lld of %lld is not of it", use.page,
                           (unsigned long long)expected, (long long)at, (long long)bytes));
        }
        if (changes_content(use.access)) fill_version(data, bytes, use.page, next);
      });
    }
    if (dice_.one_in(4)) std::this_thread::yield();
  }

  void discard(PageId page) {
    if (version_[page] == 0) return;
    m_.pager->discard(page);
    version_[page] = 0;
  }

  void commit() {
    if (!flush().ok() || !m_.file->sync().ok()) return;
    committed_ = m_.file->versions();
    m_.file->committed();
    store_id_ = m_.file->store_id();
    committed_version_ = version_;
    for (PageId page = 0; page < version_.size(); ++page) {
      if (!m_.specs[page].durable) committed_version_[page] = 0;
    }
  }

  Machine& m_;
  Dice& dice_;
  Findings& findings_;
  std::deque<std::vector<PageUse>> plans_;  // leases to come
  std::vector<uint64_t> version_;  // newest version of each page as issued; 0: no content
  uint64_t clock_ = 0;
  std::string store_id_;  // the store of the last commit
  std::vector<PageVersion> committed_;
  std::vector<uint64_t> committed_version_;
};

struct Moved {
  int64_t fetches = 0, write_backs = 0, uploads = 0, downloads = 0, restarts = 0;
  void add(const Pager::Counters& c) {
    fetches += c.fetches;
    write_backs += c.write_backs;
    uploads += c.uploads;
    downloads += c.downloads;
  }
};

void run_trial(uint32_t seed, Storage* storage, const std::string& directory, Moved& moved) {
  const Watchdog watchdog(strf("pager trial of seed %u", seed), std::chrono::seconds(120));
  Dice dice(seed);
  Findings findings;
  Machine machine(dice, storage, directory);
  ASSERT_OK(machine.create());
  Program program(machine, dice, findings);
  program.run(120);
  program.look_at_everything();
  ASSERT_OK(machine.pager->status());
  machine.pager->residency().check_invariants();
  moved.add(machine.pager->counters());
  if (program.restart()) {
    ++moved.restarts;
    program.look_at_everything();
    program.run(40);
    program.look_at_everything();
    ASSERT_OK(machine.pager->status());
  }
  EXPECT_EQ(findings.first(), "");
}

void expect_moved(const Moved& moved, const char* storage) {
  std::printf("%s: %lld fetches, %lld write-backs, %lld uploads, %lld downloads, %lld restarts\n",
              storage, (long long)moved.fetches, (long long)moved.write_backs,
              (long long)moved.uploads, (long long)moved.downloads, (long long)moved.restarts);
  for (const int64_t count : {moved.fetches, moved.write_backs, moved.uploads, moved.downloads}) {
    EXPECT_GT(count, 200) << "the trials must really page";
  }
  EXPECT_GT(moved.restarts, 2);
}

TEST(Pager, RandomLeasesFindTheNewestVersionOnSimulatedDisks) {
  Moved moved;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    SimStorage storage(seed, seed % 4 == 0 ? 60 : 2);
    run_trial(seed, &storage, "/disk", moved);
    if (HasFailure()) return;
  }
  expect_moved(moved, "sim");
}

TEST(Pager, RandomLeasesFindTheNewestVersionOnRealFiles) {
  Moved moved;
  for (uint32_t seed = 1; seed <= kSeeds / 4; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const testing::StorageUnderTest files("threads");
    run_trial(100000 + seed, files.storage.get(), files.directory(), moved);
    if (HasFailure()) return;
  }
  expect_moved(moved, "threads");
}

// Counted by hand: two pages of one class at a time and then one of another, each of which is
// created on the device and then discarded. A discarded page has no slot.
TEST(Pager, CountsTheMostBytesThatSlotsHeld) {
  Dice dice(1);
  SimStorage storage(1);
  Machine m(dice, &storage, "/disk");
  m.options.classes = {{{3}, 4}, {{3}, 4}};
  m.options.page_bytes = {kIoAlign, 4 * kIoAlign};
  m.options.page_class = {0, 0, 1};
  m.specs.clear();
  for (uint32_t p = 0; p < 3; ++p) {
    m.specs.push_back({m.options.page_bytes[m.options.page_class[p]], p, true});
  }
  m.devices_owned.push_back(open_host_device({Pager::device_bytes(m.options, 0), 1}).take());
  m.options.devices = {m.devices_owned.back().get()};
  m.options.arena_offset = {0};
  ASSERT_OK(m.create());
  const auto create = [&](const std::vector<PageId>& pages) {
    std::vector<PageUse> uses;
    for (const PageId page : pages) {
      uses.push_back({page, Place::on_device(0), Access::kCreate});
    }
    m.pager->acquire(uses, *m.streams.back(), 1).release();
    for (const PageId page : pages) m.pager->discard(page);
  };
  const auto most = [&] { return m.pager->peak_bytes(Place::on_device(0)); };
  EXPECT_EQ(most(), 0);
  create({0});
  EXPECT_EQ(most(), kIoAlign);
  create({0, 1});
  EXPECT_EQ(most(), 2 * kIoAlign);
  create({2});
  EXPECT_EQ(most(), 4 * kIoAlign);
  create({0});
  EXPECT_EQ(most(), 4 * kIoAlign);
  EXPECT_EQ(m.pager->peak_bytes(Place::host()), 0);
}

// One transfer goes wrong: the program goes on to its end without hanging, and status() says so.
void run_failing_trial(uint32_t seed, const SimFault& fault, int64_t* struck) {
  const Watchdog watchdog(strf("failing pager trial of seed %u", seed), std::chrono::seconds(120));
  Dice dice(seed);
  Findings findings;
  SimStorage storage(seed);
  Machine machine(dice, &storage, "/disk");
  ASSERT_OK(machine.create());
  storage.inject(fault);
  Program program(machine, dice, findings);
  program.run(120);
  machine.pager->drain();
  if (storage.faults() == 0) return;
  ++*struck;
  const Status status = machine.pager->status();
  ASSERT_FALSE(status.ok()) << "a failed transfer went unnoticed";
  EXPECT_EQ(status.code(), Exit::kIoError) << status.message();
  EXPECT_EQ(program.flush().message(), status.message()) << "the first error stays";
  EXPECT_EQ(machine.file->sync().message(), status.message()) << "nothing is committed after it";
  EXPECT_EQ(findings.first(), "");
}

TEST(Pager, AFailedTransferEndsInStatusAndNothingHangs) {
  int64_t struck = 0;
  for (uint32_t seed = 1; seed <= kSeeds / 2; ++seed) {
    for (const uint32_t calls : {uint32_t{kSimRead}, uint32_t{kSimWrite}}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", calls " << calls);
      SimFault fault;
      fault.calls = calls;
      fault.nth = 1 + seed % 23;
      run_failing_trial(seed, fault, &struck);
      if (HasFailure()) return;
    }
  }
  std::printf("%lld faults struck\n", (long long)struck);
  EXPECT_GT(struck, kSeeds / 8);
}

TEST(Pager, DamagedReadsEndInStatus) {
  int64_t struck = 0;
  for (uint32_t seed = 1; seed <= kSeeds / 4; ++seed) {
    for (const auto kind :
         {SimFault::Kind::kBitFlip, SimFault::Kind::kMisdirected, SimFault::Kind::kStale}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", kind " << static_cast<int>(kind));
      SimFault fault;
      fault.kind = kind;
      fault.calls = kSimRead;
      fault.nth = 1 + seed % 17;
      const Watchdog watchdog(strf("damaged read of seed %u", seed), std::chrono::seconds(120));
      Dice dice(seed);
      Findings findings;
      SimStorage storage(seed);
      Machine machine(dice, &storage, "/disk");
      ASSERT_OK(machine.create());
      storage.inject(fault);
      Program(machine, dice, findings).run(120);
      machine.pager->drain();
      struck += !machine.pager->status().ok();
      // A stale read of a page that was flushed since is not stale. Otherwise it is noticed before
      // any work believes it, which the work itself checks.
      EXPECT_EQ(findings.first(), "");
      const bool may_pass = kind == SimFault::Kind::kStale || storage.faults() == 0;
      EXPECT_TRUE(may_pass || !machine.pager->status().ok());
      if (HasFailure()) return;
    }
  }
  std::printf("%lld faults struck\n", (long long)struck);
  EXPECT_GT(struck, kSeeds / 8);
}

// What could not be read is zeros, not whatever the slot held before: work that was issued already
// runs on it, and indices in it must stay inside their arrays.
TEST(Pager, APageThatCouldNotBeReadIsZeros) {
  for (const auto kind : {SimFault::Kind::kError, SimFault::Kind::kBitFlip}) {
    Dice dice(4);
    SimStorage storage(4);
    Machine m(dice, &storage, "/disk");
    ASSERT_OK(m.create());
    const SlotClass& slots = m.options.classes[m.options.page_class[0]];
    std::vector<PageId> pages;
    for (PageId page = 0; page < m.specs.size(); ++page) {
      if (m.options.page_class[page] == m.options.page_class[0]) pages.push_back(page);
    }
    ASSERT_GT(pages.size(), static_cast<size_t>(slots.host_slots)) << "page 0 must leave the host";
    Stream& stream = *m.streams.back();
    for (const PageId page : pages) {
      const PageUse use{page, Place::host(), Access::kCreate};
      const Lease lease = m.pager->acquire({&use, 1}, stream, 1);
      stream.enqueue([data = lease.data(0), bytes = m.specs[page].bytes] {
        std::memset(data, 0x77, static_cast<size_t>(bytes));
      });
    }
    m.pager->drain();
    SimFault fault;
    fault.kind = kind;
    fault.calls = kSimRead;
    fault.nth = 1;
    storage.inject(fault);
    const PageUse use{pages[0], Place::host(), Access::kRead};
    const Lease lease = m.pager->acquire({&use, 1}, stream, 1);
    stream.synchronize();
    EXPECT_FALSE(m.pager->status().ok());
    for (int64_t i = 0; i < m.specs[pages[0]].bytes; ++i) {
      ASSERT_EQ(lease.data(0)[i], std::byte{0}) << "byte " << i;
    }
  }
}

}  // namespace
}  // namespace pagoda
