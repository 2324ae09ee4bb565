// Page files: every damaged byte is detected, the two-slot protocol survives every crash, and a
// program that breaks its rules is caught by the same test.
#include "offload/page_file.h"

#include <cstring>
#include <set>
#include <sstream>

#include "base/bytes.h"
#include "base/random.h"
#include "offload/page_layout.h"
#include "tests/testing/storages.h"

namespace pagoda {
namespace {

using testing::host_memory;
using testing::StorageUnderTest;

// Sanitized builds are about ten times slower; they look for races and overflows, not for rare
// crash states.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kCrashSeeds = 150;
#else
constexpr int kCrashSeeds = 2500;
#endif

constexpr int64_t kMaxPageBytes = 3 * kIoAlign;

// Three records of two durable pages, and one scratch page.
std::vector<PageSpec> small_pages() {
  std::vector<PageSpec> pages;
  for (uint32_t record = 0; record < 3; ++record) {
    pages.push_back({kIoAlign, record, true});
    pages.push_back({kMaxPageBytes, record, true});
  }
  pages.push_back({2 * kIoAlign, 1, false});
  return pages;
}

// A payload that is different for every stamp.
void fill(std::byte* payload, int64_t bytes, uint64_t stamp) {
  const auto block = philox(99, RandomPurpose::kTest, stamp, 0);
  for (int64_t i = 0; i < bytes; i += 16) {
    std::memcpy(payload + i, block.data(), 16);
    std::memcpy(payload + i, &stamp, sizeof stamp);
    std::memcpy(payload + i + 8, &i, 4);
  }
}

bool holds(const std::byte* payload, int64_t bytes, uint64_t stamp) {
  std::vector<std::byte> expected(static_cast<size_t>(bytes));
  fill(expected.data(), bytes, stamp);
  return std::memcmp(payload, expected.data(), expected.size()) == 0;
}

// A page file and a buffer for one page at a time.
struct Store {
  explicit Store(Storage* storage, PageFile::Options options = {{"/s/a", "/s/b"}, "pages", 2})
      : storage(storage), options(std::move(options)) {}

  Status create() { return take(PageFile::create(storage, options, small_pages())); }
  Status open(const std::string& id, const std::vector<PageVersion>& committed) {
    return take(PageFile::open(storage, options, small_pages(), id, committed));
  }
  Status take(Result<std::unique_ptr<PageFile>> result) {
    if (result.ok()) file = result.take();
    return result.status();
  }
  Status write(PageId page, uint64_t generation, uint64_t stamp) {
    fill(buffer.data() + kPageHeaderBytes, file->pages()[page].bytes, stamp);
    file->write(page, buffer.data(), generation, Event()).wait();
    return file->status();
  }
  // Ok if the page reads back with this content.
  Status expect(PageId page, uint64_t stamp) {
    std::memset(buffer.data(), 0xee, static_cast<size_t>(buffer.bytes()));
    file->read(page, buffer.data(), Event()).wait();
    RETURN_IF_ERROR(file->status());
    const int64_t bytes = file->pages()[page].bytes;
    if (holds(buffer.data() + kPageHeaderBytes, bytes, stamp)) return Status();
    return Status(Exit::kInternal, strf("page %u holds other bytes and was accepted", page));
  }

  Storage* storage;
  PageFile::Options options;
  HostMemory buffer = host_memory(kPageHeaderBytes + kMaxPageBytes);
  std::unique_ptr<PageFile> file;
};

class PageFileTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!under_test_.storage) GTEST_SKIP() << "io_uring is refused on this machine";
  }
  Store make_store() {
    const std::string root = under_test_.directory();
    return Store(under_test_.storage.get(), {{root + "/x/a", root + "/x/b/"}, "pages", 2});
  }
  StorageUnderTest under_test_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(All, PageFileTest, ::testing::Values("uring", "threads", "sim"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(PageFileTest, RoundTripCommitAndReopen) {
  Store store = make_store();
  ASSERT_OK(store.create());
  EXPECT_EQ(store.file->store_id().size(), 32u);
  const auto pages = static_cast<PageId>(small_pages().size());
  for (PageId page = 0; page < pages; ++page) {
    EXPECT_FALSE(store.file->has(page));
    ASSERT_OK(store.write(page, 1, 100 + page));
    EXPECT_TRUE(store.file->has(page));
  }
  for (PageId page = 0; page < pages; ++page) ASSERT_OK(store.expect(page, 100 + page));
  ASSERT_OK(store.file->sync());
  const std::vector<PageVersion> versions = store.file->versions();
  EXPECT_EQ(versions.size(), 6u);  // the scratch page is not part of a checkpoint
  store.file->committed();
  // Newer content, never committed: gone after reopening.
  ASSERT_OK(store.write(0, 2, 200));
  ASSERT_OK(store.write(0, 3, 201));
  ASSERT_OK(store.expect(0, 201));
  const PageFile::Counters counters = store.file->counters();
  EXPECT_EQ(counters.writes, 9);
  EXPECT_EQ(counters.reads, 8);
  EXPECT_EQ(counters.read_bytes, 4 * 2 * kIoAlign + 3 * 4 * kIoAlign + 3 * kIoAlign);
  const std::string id = store.file->store_id();
  store.file.reset();

  ASSERT_OK(store.open(id, versions));
  ASSERT_OK(store.file->verify());
  for (PageId page = 0; page < 6; ++page) ASSERT_OK(store.expect(page, 100 + page));
  EXPECT_FALSE(store.file->has(6));
}

TEST_P(PageFileTest, RefusesWhatDoesNotFit) {
  Store store = make_store();
  ASSERT_OK(store.create());
  for (PageId page = 0; page < 6; ++page) ASSERT_OK(store.write(page, 1, page));
  ASSERT_OK(store.file->sync());
  std::vector<PageVersion> versions = store.file->versions();
  const std::string id = store.file->store_id();
  EXPECT_EQ(store.create().code(), Exit::kCannotCreate);            // exists
  EXPECT_EQ(store.open(id, versions).code(), Exit::kCannotCreate);  // in use
  store.file.reset();
  EXPECT_EQ(store.create().code(), Exit::kCannotCreate);  // still exists, was left alone

  EXPECT_EQ(store.open(std::string(32, '0'), versions).code(), Exit::kMismatch);
  std::vector<PageVersion> bad = versions;
  bad.pop_back();
  EXPECT_EQ(store.open(id, bad).code(), Exit::kMismatch);  // one missing
  bad.push_back(bad[0]);
  EXPECT_EQ(store.open(id, bad).code(), Exit::kMismatch);  // one twice
  bad = versions;
  bad[2].slot = 2;
  EXPECT_EQ(store.open(id, bad).code(), Exit::kMismatch);
  bad = versions;
  bad[2].page = 77;
  EXPECT_EQ(store.open(id, bad).code(), Exit::kMismatch);
  const PageFile::Options options = store.options;
  store.options.slots = 3;
  EXPECT_EQ(store.open(id, versions).code(), Exit::kMismatch);
  store.options = options;
  std::swap(store.options.directories[0], store.options.directories[1]);
  EXPECT_EQ(store.open(id, versions).code(), Exit::kNoInput);  // NAME.0 is not in b
  store.options = options;
  ASSERT_OK(store.open(id, versions));
  ASSERT_OK(store.file->verify());
}

// Writes and reads ordered by events alone, many in flight, as a pager uses it.
TEST_P(PageFileTest, EventsOrderTransfers) {
  Store store = make_store();
  ASSERT_OK(store.create());
  constexpr int64_t kSlot = kPageHeaderBytes + kMaxPageBytes;
  HostMemory source = host_memory(7 * kSlot), target = host_memory(7 * kSlot);
  for (int round = 0; round < 20; ++round) {
    Event start = Event::make();
    std::vector<Event> read;
    for (PageId page = 0; page < 7; ++page) {
      std::byte* from = source.data() + page * kSlot;
      fill(from + kPageHeaderBytes, small_pages()[page].bytes, round * 10u + page);
      const Event written =
          store.file->write(page, from, static_cast<uint64_t>(round), page == 0 ? start : Event());
      read.push_back(store.file->read(page, target.data() + page * kSlot, written));
    }
    start.signal();
    for (PageId page = 0; page < 7; ++page) {
      read[page].wait();
      ASSERT_OK(store.file->status());
      EXPECT_TRUE(holds(target.data() + page * kSlot + kPageHeaderBytes, small_pages()[page].bytes,
                        round * 10u + page));
    }
  }
}

// A read whose `after` has happened must not stand behind a write that waits: the write may wait
// for what the read brings.
TEST_P(PageFileTest, AReadDoesNotQueueBehindAWaitingWrite) {
  Store store = make_store();
  ASSERT_OK(store.create());
  ASSERT_OK(store.write(1, 1, 5));
  HostMemory other = host_memory(kPageHeaderBytes + kMaxPageBytes);
  Event computed = Event::make();
  const Event written = store.file->write(0, other.data(), 1, computed);
  ASSERT_OK(store.expect(1, 5));
  EXPECT_FALSE(written.happened());
  computed.signal();
  written.wait();
  ASSERT_OK(store.file->status());
}

TEST(PageFile, DiskBytesIsWhatCreateAllocates) {
  SimStorage storage(1, 0);
  Store store(&storage);
  ASSERT_OK(store.create());
  const auto size =
      storage.contents("/s/a/pages.0").size() + storage.contents("/s/b/pages.1").size();
  EXPECT_EQ(PageFile::disk_bytes(small_pages(), 2, 2), static_cast<int64_t>(size));
}

// A failed creation removes what it made, so that it can be tried again.
TEST(PageFile, CreationCanFailAtEveryCall) {
  SimStorage clean(1, 0);
  ASSERT_OK(Store(&clean).create());
  for (int64_t nth = 1; nth <= clean.calls(); ++nth) {
    SimStorage storage(1, 0);
    SimFault fault;
    fault.nth = nth;
    storage.inject(fault);
    Store store(&storage);
    EXPECT_FALSE(store.create().ok()) << "call " << nth;
    EXPECT_EQ(storage.faults(), 1);
    ASSERT_OK(store.create());
  }
}

// ---- damage ----

struct Machine {
  SimStorage sim{3, 0};
};

// A committed store of which the bytes can be changed. The machine outlives the store.
struct Damaged : Machine, Store {
  Damaged() : Store(&sim) {
    EXPECT_TRUE(create().ok());
    for (PageId page = 0; page < 6; ++page) EXPECT_TRUE(write(page, 7, page).ok());
    EXPECT_TRUE(file->sync().ok());
    versions = file->versions();
    id = file->store_id();
    file->committed();
  }
  static PageLayout layout() { return PageLayout(small_pages(), 2, 2); }
  int64_t offset(PageId page) const { return layout().extents[page].offset; }  // slot 0

  std::vector<PageVersion> versions;
  std::string id;
};

TEST(PageFileDamage, EveryBitOfAPageIsWatched) {
  Damaged store;
  constexpr PageId kPage = 1;  // record 0: in file a
  const std::string path = "/s/a/pages.0";
  const int64_t begin = store.offset(kPage);
  std::set<int64_t> bytes;
  for (int64_t i = 0; i < 64; ++i) bytes.insert(i);                         // fields
  for (int64_t i = 4088; i < 4100; ++i) bytes.insert(i);                    // checksum, first data
  for (int64_t i = 64; i < 4096 + kMaxPageBytes; i += 97) bytes.insert(i);  // zeros and data
  bytes.insert(4096 + kMaxPageBytes - 1);
  for (const int64_t byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      store.sim.flip_bit(path, begin + byte, bit);
      const Status status = store.file->verify();
      ASSERT_EQ(status.code(), Exit::kIoError) << "byte " << byte << " bit " << bit;
      store.sim.flip_bit(path, begin + byte, bit);
    }
  }
  ASSERT_OK(store.file->verify());
  // The message says what and where.
  store.sim.flip_bit(path, begin + 5000, 0);
  const std::string message = store.file->verify().message();
  for (const std::string& part : {std::string("page 1 of record 0"), path,
                                  strf("offset %lld", (long long)begin), std::string("payload")}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

// Headers that are whole but belong elsewhere, as misdirected and lost writes leave them.
TEST(PageFileDamage, AWholeHeaderOfAnotherPageIsRefused) {
  Damaged store;
  constexpr PageId kPage = 1;
  const std::string path = "/s/a/pages.0";
  const std::vector<std::byte> good = store.sim.contents(path);
  const auto block = static_cast<size_t>(store.offset(kPage));
  PageHeader header;
  ASSERT_TRUE(header.decode(good.data() + block));
  const auto refused = [&](const char* field, auto change) {
    PageHeader wrong = header;
    change(wrong);
    std::vector<std::byte> bytes = good;
    wrong.encode(bytes.data() + block);
    store.sim.set_contents(path, bytes);
    const Status status = store.file->verify();
    EXPECT_EQ(status.code(), Exit::kIoError) << field;
    EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
  };
  refused("store", [](PageHeader& h) { h.store_id[3] ^= 1; });
  refused("page 3 found", [](PageHeader& h) { h.page = 3; });
  refused("record 2 found", [](PageHeader& h) { h.record = 2; });
  refused("slot 1 found", [](PageHeader& h) { h.slot = 1; });
  refused("generation 6 found, 7 expected", [](PageHeader& h) { h.generation = 6; });
  refused("size", [](PageHeader& h) { h.bytes = kIoAlign; });
  refused("checksum in its header", [](PageHeader& h) { h.checksum ^= 1; });
  // Another page's slot, header and payload together.
  std::vector<std::byte> bytes = good;
  std::memcpy(bytes.data() + block, good.data() + store.offset(0), 2 * kIoAlign);
  store.sim.set_contents(path, bytes);
  EXPECT_NE(store.file->verify().message().find("page 0 found, 1 expected"), std::string::npos);
  store.sim.set_contents(path, good);
  ASSERT_OK(store.file->verify());
}

TEST(PageFileDamage, LostMisdirectedAndFlippedWritesAreDetected) {
  for (const auto kind :
       {SimFault::Kind::kStale, SimFault::Kind::kMisdirected, SimFault::Kind::kBitFlip}) {
    for (const uint32_t call : {kSimWrite, kSimRead}) {
      if (kind == SimFault::Kind::kStale && call == kSimRead) continue;  // below
      for (PageId page = 0; page < 6; ++page) {
        Damaged store;
        SimFault fault;
        fault.kind = kind;
        fault.calls = call;
        fault.nth = 1;
        store.sim.inject(fault);
        ASSERT_OK(store.write(page, 8, 100 + page));
        EXPECT_EQ(store.expect(page, 100 + page).code(), Exit::kIoError)
            << "page " << page << ", kind " << static_cast<int>(kind);
        EXPECT_EQ(store.sim.faults(), 1);
      }
    }
  }
}

TEST(PageFileDamage, AStaleReadIsDetected) {
  Damaged store;
  ASSERT_OK(store.write(2, 8, 50));
  ASSERT_OK(store.file->sync());
  ASSERT_OK(store.write(2, 9, 51));  // the same working slot
  SimFault fault;
  fault.kind = SimFault::Kind::kStale;
  fault.calls = kSimRead;
  fault.nth = 1;
  store.sim.inject(fault);
  const Status status = store.expect(2, 51);
  EXPECT_EQ(status.code(), Exit::kIoError);
  EXPECT_NE(status.message().find("generation 8 found, 9 expected"), std::string::npos)
      << status.message();
}

TEST(PageFileDamage, OneSuperblockMayBreakNotBoth) {
  Damaged store;
  store.file.reset();
  const std::string path = "/s/b/pages.1";
  const std::vector<std::byte> good = store.sim.contents(path);
  for (const int64_t copy : {int64_t{0}, kSuperblockBytes}) {
    for (const int64_t byte : {0, 9, 13, 20, 33, 37, 41, 45, 50, 1000, 4095}) {
      store.sim.flip_bit(path, copy + byte, 2);
      ASSERT_OK(store.open(store.id, store.versions));
      store.file.reset();
      store.sim.flip_bit(path, (copy ^ kSuperblockBytes) + byte, 1);
      EXPECT_EQ(store.open(store.id, store.versions).code(), Exit::kIoError);
      store.sim.set_contents(path, good);
    }
  }
  // Both whole, but different: somebody else's block.
  Superblock other;
  ASSERT_TRUE(other.decode(good.data()));
  other.store_id[0] ^= 1;
  std::vector<std::byte> bytes = good;
  other.encode(bytes.data());
  store.sim.set_contents(path, bytes);
  EXPECT_EQ(store.open(store.id, store.versions).code(), Exit::kIoError);
}

TEST(PageFile, ReopeningWithAnOlderCheckpointIsDetected) {
  Damaged store;
  for (uint64_t generation = 8; generation <= 9; ++generation) {
    for (PageId page = 0; page < 6; ++page) ASSERT_OK(store.write(page, generation, generation));
    ASSERT_OK(store.file->sync());
    store.file->committed();
  }
  const std::vector<PageVersion> newest = store.file->versions();
  store.file.reset();
  ASSERT_OK(store.open(store.id, store.versions));  // its slots have been used again
  const Status status = store.file->verify();
  EXPECT_EQ(status.code(), Exit::kIoError);
  EXPECT_NE(status.message().find("generation 9 found, 7 expected"), std::string::npos)
      << status.message();
  store.file.reset();
  ASSERT_OK(store.open(store.id, newest));
  ASSERT_OK(store.file->verify());
}

TEST(PageFile, NothingIsCommittedAfterAnError) {
  Damaged store;
  SimFault fault;
  fault.calls = kSimWrite;
  fault.nth = 1;
  store.sim.inject(fault);
  EXPECT_EQ(store.write(0, 8, 60).code(), Exit::kIoError);
  EXPECT_EQ(store.file->sync().code(), Exit::kIoError);
  store.file.reset();
  ASSERT_OK(store.open(store.id, store.versions));
  ASSERT_OK(store.expect(0, 0));
}

// ---- crashes ----

// What a checkpoint says: its number, the store, and for every page its version and its stamp
// (which PageFile does not know: it is the test's independent memory of the content).
struct Manifest {
  int number = -1;
  std::string store_id;
  std::vector<PageVersion> versions;
  std::vector<uint64_t> stamps;

  std::string text() const {
    std::ostringstream out;
    out << number << ' ' << store_id;
    for (size_t i = 0; i < versions.size(); ++i) {
      const PageVersion& v = versions[i];
      out << ' ' << v.page << ' ' << v.slot << ' ' << v.generation << ' ' << v.checksum << ' '
          << stamps[i];
    }
    return out.str();
  }
  static Manifest parse(const std::string& text) {
    std::istringstream in(text);
    Manifest manifest;
    in >> manifest.number >> manifest.store_id;
    PageVersion v;
    uint64_t stamp;
    while (in >> v.page >> v.slot >> v.generation >> v.checksum >> stamp) {
      manifest.versions.push_back(v);
      manifest.stamps.push_back(stamp);
    }
    return manifest;
  }
};

enum class Mutant { kNone, kNoSync, kCommitBeforeManifest, kNoDirectorySync };

// A program that changes pages and saves checkpoints, and dies whenever the storage does.
class CrashRun {
 public:
  CrashRun(uint64_t seed, Mutant mutant) : sim_(seed, 0), seed_(seed), mutant_(mutant) {}

  // One life after another until the last one ends by itself. Returns what went wrong, or ok.
  Status run(int lives) {
    for (int life = 0; life < lives; ++life) {
      SimFault crash;
      crash.kind = SimFault::Kind::kCrash;
      crash.nth = 1 + static_cast<int64_t>(draw() % 110);
      crash.crash_seed = draw();
      sim_.clear_faults();
      if (life + 1 < lives) sim_.inject(crash);
      const Status died = live();
      if (wrong_) return died;
      if (life + 1 == lives) return died;  // without a fault every error is wrong
      if (!sim_.crashed()) sim_.crash(draw());
      sim_.restart();
    }
    return Status();
  }
  // One life in which call `nth` fails (or the power, then), then one that only recovers.
  Status run_with(const SimFault& fault) {
    sim_.inject(fault);
    const Status died = live();
    if (wrong_) return died;
    if (!sim_.crashed()) sim_.crash(draw());
    sim_.restart();
    sim_.clear_faults();
    return live();
  }
  int64_t calls() const { return sim_.calls(); }
  int checkpoints() const { return saved_ + 1; }

 private:
  uint64_t draw() {
    const auto block = philox(seed_, RandomPurpose::kTest, 1, ++draws_);
    return (uint64_t{block[0]} << 32) | block[1];
  }

  Status live() {
    Store store(&sim_);
    RETURN_IF_ERROR(start(&store));
    for (int step = 0; step < 6; ++step) {
      const int writes = static_cast<int>(draw() % 9);
      for (int i = 0; i < writes; ++i) RETURN_IF_ERROR(change(&store, draw() % 7));
      if (draw() % 2 == 0) RETURN_IF_ERROR(save(&store));
    }
    return Status();
  }

  Status change(Store* store, PageId page) {
    stamps_[page] = ++last_stamp_;
    return store->write(page, static_cast<uint64_t>(generation_), stamps_[page]);
  }

  // Recovers the newest checkpoint, or begins anew when none was ever reported as saved.
  Status start(Store* store) {
    if (!sim_.exists("/c/manifest")) {
      if (saved_ >= 0 && !sim_.crashed()) return wrong("the saved checkpoint is gone");
      for (const char* path : {"/s/a/pages.0", "/s/b/pages.1"}) {
        RETURN_IF_ERROR(sim_.remove_file(path));
      }
      RETURN_IF_ERROR(sim_.make_directory("/c"));
      RETURN_IF_ERROR(sim_.sync_directory("/"));
      RETURN_IF_ERROR(store->create());
      for (PageId page = 0; page < 6; ++page) RETURN_IF_ERROR(change(store, page));
      return save(store);
    }
    auto text = sim_.read_file("/c/manifest", kMiB);
    RETURN_IF_ERROR(text.status());
    const Manifest manifest = Manifest::parse(*text);
    if (manifest.number < saved_) return wrong("an older checkpoint came back");
    const Status opened = recover(store, manifest);
    if (!opened.ok() && !sim_.crashed()) return wrong(opened.message());
    return opened;
  }

  Status recover(Store* store, const Manifest& manifest) {
    RETURN_IF_ERROR(store->open(manifest.store_id, manifest.versions));
    for (size_t i = 0; i < manifest.versions.size(); ++i) {
      RETURN_IF_ERROR(store->expect(manifest.versions[i].page, manifest.stamps[i]));
      stamps_[manifest.versions[i].page] = manifest.stamps[i];
    }
    saved_ = std::max(saved_, manifest.number);
    next_ = manifest.number + 1;
    generation_ = next_;  // redone steps use their generations again
    return store->file->verify();
  }

  Status save(Store* store) {
    Manifest manifest;
    manifest.number = next_;
    manifest.store_id = store->file->store_id();
    if (mutant_ != Mutant::kNoSync) RETURN_IF_ERROR(store->file->sync());
    manifest.versions = store->file->versions();
    for (const PageVersion& version : manifest.versions) {
      manifest.stamps.push_back(stamps_[version.page]);
    }
    if (mutant_ == Mutant::kCommitBeforeManifest) {
      store->file->committed();
      for (PageId page = 0; page < 3; ++page) RETURN_IF_ERROR(change(store, page));
    }
    RETURN_IF_ERROR(sim_.write_file("/c/manifest.tmp", manifest.text()));
    RETURN_IF_ERROR(sim_.rename("/c/manifest.tmp", "/c/manifest"));
    if (mutant_ != Mutant::kNoDirectorySync) RETURN_IF_ERROR(sim_.sync_directory("/c"));
    saved_ = manifest.number;
    ++next_;
    ++generation_;
    store->file->committed();
    return Status();
  }

  Status wrong(const std::string& what) {
    wrong_ = true;
    return Status(Exit::kInternal, what);
  }

  SimStorage sim_;
  const uint64_t seed_;
  const Mutant mutant_;
  uint64_t draws_ = 0;
  uint64_t last_stamp_ = 0;
  uint64_t stamps_[7] = {};
  int generation_ = 0;
  int next_ = 0;    // number of the next checkpoint
  int saved_ = -1;  // newest one reported as saved
  bool wrong_ = false;
};

TEST(PageFileCrash, TheCommittedCheckpointSurvivesEveryCrash) {
  int64_t checkpoints = 0;
  for (uint64_t seed = 1; seed <= kCrashSeeds; ++seed) {
    CrashRun run(seed, Mutant::kNone);
    const Status status = run.run(4);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message();
    checkpoints += run.checkpoints();
  }
  std::printf("%d seeds, 3 crashes each, %lld checkpoints\n", kCrashSeeds, (long long)checkpoints);
  EXPECT_GT(checkpoints, 2 * kCrashSeeds);
}

// The same program with each call failing in turn: it stops, and what it had saved is there.
TEST(PageFileCrash, EveryCallMayFailOrBeTheLast) {
  CrashRun clean(5, Mutant::kNone);
  ASSERT_OK(clean.run(1));
  const int64_t calls = clean.calls();
  std::printf("%lld calls\n", (long long)calls);
  for (int64_t nth = 1; nth <= calls; ++nth) {
    for (const auto kind : {SimFault::Kind::kError, SimFault::Kind::kCrash,
                            SimFault::Kind::kTransient, SimFault::Kind::kShort}) {
      SimFault fault;
      fault.kind = kind;
      fault.nth = nth;
      fault.error = kind == SimFault::Kind::kTransient ? EAGAIN : EIO;
      fault.crash_seed = static_cast<uint64_t>(nth);
      CrashRun run(5, Mutant::kNone);
      const Status status = run.run_with(fault);
      ASSERT_TRUE(status.ok()) << "call " << nth << ", kind " << static_cast<int>(kind) << ": "
                               << status.message();
    }
  }
}

// The test of the test: programs that break one rule are caught.
TEST(PageFileCrash, BrokenProgramsAreCaught) {
  for (const Mutant mutant :
       {Mutant::kNoSync, Mutant::kCommitBeforeManifest, Mutant::kNoDirectorySync}) {
    int caught = 0, seeds = 0;
    std::string example;
    while (caught < 3 && seeds < kCrashSeeds) {
      const Status status = CrashRun(static_cast<uint64_t>(++seeds), mutant).run(4);
      if (status.ok()) continue;
      ++caught;
      example = status.message();
    }
    EXPECT_GT(caught, 0) << "mutant " << static_cast<int>(mutant) << " was not caught";
    std::printf("mutant %d: %d of %d seeds, e.g. %s\n", static_cast<int>(mutant), caught, seeds,
                example.c_str());
  }
}

}  // namespace
}  // namespace pagoda
