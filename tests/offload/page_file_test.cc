// Page files: round trips on every storage, and the detection of every kind of damage. Crashes are
// in page_file_crash_test.cc.
#include <cstring>
#include <set>

#include "base/bytes.h"
#include "offload/page_file.h"
#include "offload/page_layout.h"
#include "tests/testing/storage/page_store.h"
#include "tests/testing/storage/storage_sim.h"

namespace pagoda {
namespace {

using testing::fill_page;
using testing::holds_page;
using testing::host_memory;
using testing::kMaxPageBytes;
using testing::small_pages;
using testing::StorageUnderTest;
using testing::Store;

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

// Without checkpoints a page has one extent, which what comes after the store is opened replaces.
TEST_P(PageFileTest, GoesOnWithOneExtentOfEachPage) {
  Store store = make_store();
  store.options.slots = 1;
  ASSERT_OK(store.create());
  for (PageId page = 0; page < 6; ++page) ASSERT_OK(store.write(page, 1, 100 + page));
  ASSERT_OK(store.file->sync());
  const std::vector<PageVersion> before = store.file->versions();
  const std::string id = store.file->store_id();
  store.file.reset();
  ASSERT_OK(store.open(id, before));
  for (PageId page = 0; page < 6; ++page) {
    ASSERT_OK(store.expect(page, 100 + page));
    ASSERT_OK(store.write(page, 2, 200 + page));
  }
  for (PageId page = 0; page < 6; ++page) ASSERT_OK(store.expect(page, 200 + page));
  ASSERT_OK(store.file->sync());
  const std::vector<PageVersion> after = store.file->versions();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].extent, before[i].extent);
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
  for (const uint32_t extent : {13u, ~0u, 7u, 6u, bad[1].extent}) {
    // There are 13; 6 is for the scratch page's size and 7 and up for page 3's.
    bad = versions;
    bad[2].extent = extent;
    EXPECT_EQ(store.open(id, bad).code(), Exit::kMismatch) << extent;
  }
  bad = versions;
  bad[2].extent = bad[4].extent;  // two pages in one
  EXPECT_EQ(store.open(id, bad).code(), Exit::kMismatch);
  bad = versions;
  bad[2].page = 77;
  EXPECT_EQ(store.open(id, bad).code(), Exit::kMismatch);
  const PageFile::Options options = store.options;
  store.options.slots = 1;
  EXPECT_EQ(store.open(id, versions).code(), Exit::kMismatch);
  store.options = options;
  store.pages[4].record = 7;
  EXPECT_EQ(store.open(id, versions).code(), Exit::kMismatch);
  store.pages = small_pages();
  std::swap(store.options.directories[0], store.options.directories[1]);
  EXPECT_EQ(store.open(id, versions).code(), Exit::kNoInput);  // NAME.0 is not in b
  store.options = options;
  ASSERT_OK(store.open(id, versions));
  ASSERT_OK(store.file->verify());
}

// A store is opened with and without pages that only some openings have, if there is room.
TEST_P(PageFileTest, LocalPagesAreNotWhatAStoreIsMadeFor) {
  Store store = make_store();
  // The scratch page's size, and that of durable pages.
  for (const int64_t bytes : {2 * kIoAlign, 3 * kIoAlign}) {
    store.pages.push_back({bytes, 3, false, true, true});
  }
  ASSERT_OK(store.create());
  for (PageId page = 0; page < 9; ++page) ASSERT_OK(store.write(page, 1, page));
  for (PageId page = 0; page < 9; ++page) ASSERT_OK(store.expect(page, page));
  ASSERT_OK(store.file->sync());
  const std::vector<PageVersion> versions = store.file->versions();
  EXPECT_EQ(versions.size(), 6u);
  const std::string id = store.file->store_id();
  store.file->committed();
  const std::vector<PageSpec> all = store.pages;
  for (const size_t count : {size_t{7}, size_t{8}, size_t{9}}) {
    store.file.reset();
    store.pages.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(count));
    ASSERT_OK(store.open(id, versions));
    ASSERT_OK(store.file->verify());
    for (PageId page = 0; page < 6; ++page) ASSERT_OK(store.expect(page, page));
    ASSERT_OK(store.write(static_cast<PageId>(count - 1), 2, 50));
    ASSERT_OK(store.expect(static_cast<PageId>(count - 1), 50));
  }
  store.file.reset();
  store.pages = all;
  store.pages.push_back({kIoAlign * 2, 3, false, true, true});
  const Status full = store.open(id, versions);
  EXPECT_EQ(full.code(), Exit::kMismatch);
  EXPECT_NE(full.message().find("too few extents"), std::string::npos) << full.message();
  store.pages = all;
  store.pages[7].local = false;
  EXPECT_EQ(store.open(id, versions).code(), Exit::kMismatch) << "another count";
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
      fill_page(from + kPageHeaderBytes, small_pages()[page].bytes, round * 10u + page);
      const Event written =
          store.file->write(page, from, static_cast<uint64_t>(round), page == 0 ? start : Event());
      read.push_back(store.file->read(page, target.data() + page * kSlot, written));
    }
    start.signal();
    for (PageId page = 0; page < 7; ++page) {
      read[page].wait();
      ASSERT_OK(store.file->status());
      EXPECT_TRUE(holds_page(target.data() + page * kSlot + kPageHeaderBytes,
                             small_pages()[page].bytes, round * 10u + page));
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
  // Two versions of three pages of 1 block and three of 3, once the scratch page of 2; a header
  // block each, and 16 blocks before the first.
  constexpr int64_t kBlocks = 2 * 16 + 6 * (1 + 1) + 6 * (1 + 3) + (1 + 2);
  EXPECT_EQ(static_cast<int64_t>(size), kBlocks * kIoAlign);
  EXPECT_EQ(PageFile::disk_bytes(small_pages(), 2, 2), kBlocks * kIoAlign);
  EXPECT_EQ(PageFile::disk_bytes(small_pages(), 1, 2), (kBlocks - 3 * 2 - 3 * 4) * kIoAlign);
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

// A store's room is taken when it is made, or not at all: no file of it stays.
TEST(PageFile, ADiskWithoutRoomIsLeftAsItWas) {
  for (int64_t nth = 1; nth <= 2; ++nth) {
    SimStorage storage(1, 0);
    SimFault full;
    full.calls = kSimOpen;
    full.nth = nth;
    full.error = ENOSPC;
    storage.inject(full);
    Store store(&storage);
    EXPECT_FALSE(store.create().ok());
    EXPECT_FALSE(storage.exists("/s/a/pages.0"));
    EXPECT_FALSE(storage.exists("/s/b/pages.1"));
  }
}

// ---- damage ----

struct Machine {
  SimStorage sim{3, 0};
};

// A committed store whose bytes can be changed. The machine outlives the store.
struct Damaged : Machine, Store {
  Damaged() : Store(&sim) {
    EXPECT_TRUE(create().ok());
    for (PageId page = 0; page < 6; ++page) EXPECT_TRUE(write(page, 7, page).ok());
    EXPECT_TRUE(file->sync().ok());
    versions = file->versions();
    id = file->store_id();
    file->committed();
  }
  // Where pages lie, by hand. Extents 0 to 5 are for pages of 1 block, 6 of 2, 7 to 12 of 3, a
  // header block each; even ones lie in file a, odd ones in b, after 64 KiB. The pages took 0, 7,
  // 1, 8, 2 and 9.
  static constexpr int64_t kOffset0 = 65536, kOffset3 = 65536 + 3 * 8192 + 12288;

  std::vector<PageVersion> versions;
  std::string id;
};

TEST(PageFileDamage, EveryBitOfAPageIsWatched) {
  Damaged store;
  const std::string path = "/s/a/pages.0";
  const int64_t begin = Damaged::kOffset3;
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
  for (const std::string& part : {std::string("page 3 of record 1"), path,
                                  strf("offset %lld", (long long)begin), std::string("payload")}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

// Headers that are whole but belong elsewhere, as misdirected and lost writes leave them.
TEST(PageFileDamage, AWholeHeaderOfAnotherPageIsRefused) {
  Damaged store;
  const std::string path = "/s/a/pages.0";
  const std::vector<std::byte> good = store.sim.contents(path);
  const auto block = static_cast<size_t>(Damaged::kOffset3);
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
  refused("page 1 found", [](PageHeader& h) { h.page = 1; });
  refused("record 2 found", [](PageHeader& h) { h.record = 2; });
  refused("extent 9 found, 8 expected", [](PageHeader& h) { h.extent = 9; });
  refused("format 1 found", [](PageHeader& h) { h.format = 1; });
  refused("generation 6 found, 7 expected", [](PageHeader& h) { h.generation = 6; });
  refused("size", [](PageHeader& h) { h.bytes = kIoAlign; });
  refused("checksum in its header", [](PageHeader& h) { h.checksum ^= 1; });
  // Another page's extent, header and payload together.
  std::vector<std::byte> bytes = good;
  std::memcpy(bytes.data() + block, good.data() + Damaged::kOffset0, 2 * kIoAlign);
  store.sim.set_contents(path, bytes);
  EXPECT_NE(store.file->verify().message().find("page 0 found, 3 expected"), std::string::npos);
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
  ASSERT_OK(store.write(2, 9, 51));  // over it
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
    for (const int64_t byte :
         {0, 9, 13, 20, 33, 37, 41, 45, 50, 57, 62, 70, 1000, 4095}) {
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

TEST(PageFileDamage, AFileOfAnotherLengthIsRefused) {
  Damaged store;
  store.file.reset();
  const std::string path = "/s/b/pages.1";
  const std::vector<std::byte> good = store.sim.contents(path);
  for (const size_t length : {good.size() - 4096, good.size() + 4096, size_t{8192}}) {
    std::vector<std::byte> other = good;
    other.resize(length);
    store.sim.set_contents(path, other);
    EXPECT_EQ(store.open(store.id, store.versions).code(), Exit::kMismatch) << length;
  }
  store.sim.set_contents(path, std::vector<std::byte>(good.begin(), good.begin() + 4096));
  EXPECT_EQ(store.open(store.id, store.versions).code(), Exit::kIoError);
  store.sim.set_contents(path, good);
  ASSERT_OK(store.open(store.id, store.versions));
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
  ASSERT_OK(store.open(store.id, store.versions));  // its extents have been used again
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

}  // namespace
}  // namespace pagoda
