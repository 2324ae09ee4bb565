// Extents as a pool: they go from page to page, never from a checkpoint; pages move in and out; and
// stores of format 1, where every page had extents of its own, are gone on with.
#include <algorithm>
#include <cstring>
#include <set>

#include "base/random.h"
#include "offload/checksum.h"
#include "offload/page_layout.h"
#include "tests/testing/storage/page_store.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

using testing::fill_page;
using testing::host_memory;
using testing::kMaxPageBytes;
using testing::small_pages;
using testing::Store;

constexpr const char* kFiles[] = {"/s/a/pages.0", "/s/b/pages.1"};

// What a commit refers to, and what the pages then held.
struct Saved {
  std::string id;
  std::vector<PageVersion> versions;
  std::vector<uint64_t> stamps;  // by version
};

// Opens a copy of the machine's files as the next program would, which finds every page of `saved`.
Status check_saved(const SimStorage& sim, const Saved& saved, const std::vector<PageSpec>& pages) {
  SimStorage copy(1, 0);
  for (const char* path : kFiles) {
    const std::vector<std::byte> bytes = sim.contents(path);
    const std::string folder = path;
    RETURN_IF_ERROR(copy.make_directory(folder.substr(0, folder.rfind('/'))));
    RETURN_IF_ERROR(
        copy.write_file(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  }
  Store store(&copy);
  store.pages = pages;
  RETURN_IF_ERROR(store.open(saved.id, saved.versions));
  for (size_t i = 0; i < saved.versions.size(); ++i) {
    RETURN_IF_ERROR(store.expect(saved.versions[i].page, saved.stamps[i]));
  }
  return store.file->verify();
}

// Six durable pages of one size in two files, and a scratch page.
std::vector<PageSpec> equal_pages() {
  std::vector<PageSpec> pages;
  for (uint32_t i = 0; i < 6; ++i) pages.push_back({kIoAlign, i / 2, true});
  pages.push_back({kIoAlign, 3, false});
  return pages;
}

struct PoolTest : ::testing::Test {
  void make(std::vector<PageSpec> pages) {
    store.pages = std::move(pages);
    ASSERT_OK(store.create());
  }
  void write(PageId page) {
    stamps[page] = ++stamp;
    ASSERT_OK(store.write(page, generation, stamp));
  }
  // Both, because a caller's manifest becomes durable between them.
  void sync() {
    ASSERT_OK(store.file->sync());
    next = {store.file->store_id(), store.file->versions(), {}};
    for (const PageVersion& v : next.versions) next.stamps.push_back(stamps[v.page]);
  }
  void committed() {
    store.file->committed();
    saved = next;
    saved_pages = store.file->pages();
    ++generation;
  }
  void commit() {
    sync();
    committed();
  }
  void expect_saved() {
    if (!saved.versions.empty()) ASSERT_OK(check_saved(sim, saved, saved_pages));
  }
  std::set<uint32_t> extents() const {
    std::set<uint32_t> used;
    for (const PageVersion& v : saved.versions) used.insert(v.extent);
    return used;
  }

  SimStorage sim{5, 2};
  Store store{&sim};
  uint64_t stamp = 0, generation = 1;
  std::array<uint64_t, 8> stamps = {};
  Saved next, saved;
  std::vector<PageSpec> saved_pages;
};

// However often pages are written and committed, in whatever order: what is committed stays whole
// until the next commit, and extents go from page to page.
TEST_F(PoolTest, ACheckpointStaysWholeUntilTheNext) {
  make(equal_pages());
  std::array<std::set<uint32_t>, 6> used;
  for (PageId page = 0; page < 6; ++page) write(page);
  for (int round = 0; round < 60; ++round) {
    commit();
    EXPECT_EQ(extents().size(), 6u);
    for (const PageVersion& v : saved.versions) used[v.page].insert(v.extent);
    for (int writes = 0; writes < round % 11; ++writes) {
      const auto dice = philox(7, RandomPurpose::kTest, static_cast<uint64_t>(round),
                               static_cast<uint64_t>(writes));
      const PageId page = std::min(dice[0] % 12, 6u);
      // The scratch page goes through all extents that are free.
      if (page == 6) store.file->drop(6);
      write(page);
      expect_saved();
    }
    sync();  // also between the flush and the commit
    expect_saved();
    for (PageId page = 0; page < 6; ++page) ASSERT_OK(store.expect(page, stamps[page]));
  }
  for (const std::set<uint32_t>& of_page : used) EXPECT_GT(of_page.size(), 3u);
}

// There are 12 extents, of which the pages' first versions take 0 to 5.
TEST_F(PoolTest, TheExtentThatWasFreeForLongestIsTaken) {
  std::vector<PageSpec> pages = equal_pages();
  pages.pop_back();
  make(pages);
  const auto where = [&](PageId page) { return store.file->versions()[page].extent; };
  for (PageId page = 0; page < 6; ++page) write(page);
  for (PageId page = 0; page < 6; ++page) EXPECT_EQ(where(page), page);
  write(4);  // not committed: the same place
  EXPECT_EQ(where(4), 4u);
  commit();
  write(3);
  write(1);
  write(3);
  EXPECT_EQ(where(3), 6u);
  EXPECT_EQ(where(1), 7u);
  commit();  // 1 and 3 are free now, behind 8 to 11
  for (const PageId page : {5u, 4u, 3u, 2u, 1u, 0u}) write(page);
  const std::vector<uint32_t> expected = {3, 1, 11, 10, 9, 8};
  for (PageId page = 0; page < 6; ++page) EXPECT_EQ(where(page), expected[page]);
}

// Extents are dealt over the files, so that neighbours at the first write are on two drives.
TEST_F(PoolTest, ExtentsAreStripedOverTheFiles) {
  make(equal_pages());
  for (PageId page = 0; page < 7; ++page) write(page);
  const PageFile::Extent first = store.file->extent(0);
  for (PageId page = 0; page < 7; ++page) {
    const PageFile::Extent extent = store.file->extent(page);
    EXPECT_EQ(extent.file == first.file, page % 2 == 0) << page;
    EXPECT_EQ(extent.offset, 64 * 1024 + (page / 2) * 8192) << page;
    EXPECT_EQ(extent.bytes, 8192);
  }
  // 6 pages of two versions and a scratch page: 13, 7 of them in the first file.
  EXPECT_EQ(sim.contents(kFiles[0]).size(), 64u * 1024 + 7 * 8192);
  EXPECT_EQ(sim.contents(kFiles[1]).size(), 64u * 1024 + 6 * 8192);
}

// ---- pages that move ----

std::vector<PageSpec> pages_of_records(std::set<uint32_t> records) {
  std::vector<PageSpec> pages = equal_pages();
  for (PageSpec& page : pages) page.here = !page.durable || records.contains(page.record);
  return pages;
}

TEST_F(PoolTest, PagesMoveInAndOut) {
  make(pages_of_records({0, 1}));
  // 4 pages of two versions, and a scratch page: 9.
  EXPECT_EQ(sim.contents(kFiles[0]).size() + sim.contents(kFiles[1]).size(),
            2u * 64 * 1024 + 9 * 8192);
  for (PageId page = 0; page < 4; ++page) write(page);
  commit();
  EXPECT_EQ(saved.versions.size(), 4u);
  const std::set<uint32_t> of_records_0_1 = extents();

  // Record 0 goes, record 2 comes: at the same commit.
  for (const PageId page : {0u, 1u}) {
    store.file->release(page);
    EXPECT_FALSE(store.file->has(page));
  }
  for (const PageId page : {4u, 5u}) {
    EXPECT_FALSE(store.file->has(page));
    store.file->adopt(page);
    write(page);
    ASSERT_OK(store.expect(page, stamps[page]));
  }
  // All that the pages here may write until then.
  for (int twice = 0; twice < 2; ++twice) {
    for (PageId page = 2; page < 7; ++page) write(page);
  }
  expect_saved();
  sync();
  expect_saved();  // records 0 and 1 still, whatever was written
  EXPECT_EQ(next.versions.size(), 4u);
  EXPECT_EQ(next.versions[0].page, 2u);
  for (const PageVersion& v : next.versions) EXPECT_FALSE(of_records_0_1.contains(v.extent));
  committed();
  expect_saved();
}

// The next program is told which pages are here.
TEST_F(PoolTest, RecordsMoveBackAndForth) {
  make(pages_of_records({1, 2}));
  for (PageId page = 2; page < 6; ++page) write(page);
  commit();
  for (int round = 0; round < 20; ++round) {
    const PageId in = round % 2 == 0 ? 0 : 4, out = 4 - in;
    for (PageId page = out; page < out + 2; ++page) store.file->release(page);
    for (PageId page = in; page < in + 2; ++page) store.file->adopt(page);
    for (PageId page = 0; page < 7; ++page) {
      if (store.file->pages()[page].here) write(page);
    }
    expect_saved();
    commit();
    expect_saved();
  }

  store.file.reset();
  store.pages = pages_of_records({1, 2});
  ASSERT_OK(store.open(saved.id, saved.versions));
  ASSERT_OK(store.file->verify());
  store.file.reset();
  for (const std::set<uint32_t>& wrong : {std::set<uint32_t>{1}, {0, 1}, {0, 1, 2}}) {
    store.pages = pages_of_records(wrong);
    EXPECT_EQ(store.open(saved.id, saved.versions).code(), Exit::kMismatch);
  }
  // More pages than the store has room for: five of two versions, and there are nine extents.
  store.pages = pages_of_records({1, 2});
  store.pages[0].here = true;
  store.pages[6].here = false;
  std::vector<PageVersion> crowded = saved.versions;
  uint32_t extent = 0;
  while (std::any_of(crowded.begin(), crowded.end(),
                     [&](const PageVersion& v) { return v.extent == extent; })) {
    ++extent;
  }
  crowded.push_back({0, extent, 1, 0});
  const Status opened = store.open(saved.id, crowded);
  EXPECT_EQ(opened.code(), Exit::kMismatch);
  EXPECT_NE(opened.message().find("too few extents"), std::string::npos) << opened.message();
}

// Pages that change places with those of another store need no more room than there was, whether
// what leaves was written since the commit or not, and however often they come and go.
TEST_F(PoolTest, PagesChangePlacesWithoutMoreRoom) {
  make(pages_of_records({0, 1}));
  for (PageId page = 0; page < 4; ++page) write(page);
  commit();
  std::set<PageId> here = {0, 1, 2, 3};
  for (int round = 0; round < 200; ++round) {
    const auto dice = philox(11, RandomPurpose::kTest, static_cast<uint64_t>(round), 0);
    const auto other = [&](uint32_t n) {  // one that is not here
      std::vector<PageId> away;
      for (PageId page = 0; page < 6; ++page) {
        if (here.count(page) == 0) away.push_back(page);
      }
      return away[n % away.size()];
    };
    for (uint32_t swap = 0; swap < dice[0] % 4; ++swap) {
      const PageId out = *std::next(here.begin(), (dice[1] >> swap) % 4),
                   in = other(dice[2] >> swap);
      if ((dice[3] >> swap) % 2 == 0) write(out);
      store.file->release(out);
      store.file->adopt(in);
      here.erase(out);
      here.insert(in);
      if ((dice[3] >> (8 + swap)) % 2 == 0) write(in);
      expect_saved();
    }
    if (round % 3 != 0) continue;
    for (const PageId page : here) {
      write(page);
      write(page);
    }
    expect_saved();
    sync();
    expect_saved();
    committed();
    expect_saved();
    for (const PageId page : here) ASSERT_OK(store.expect(page, stamps[page]));
  }
}

// A store from before pages moved says of those elsewhere that they are not durable.
TEST_F(PoolTest, StoresFromBeforePagesMovedAreGoneOnWith) {
  std::vector<PageSpec> before = pages_of_records({0, 1});
  for (PageSpec& page : before) page.durable = page.durable && page.here;
  make(before);
  for (PageId page = 0; page < 4; ++page) write(page);
  commit();
  store.file.reset();
  store.pages = pages_of_records({0, 1});
  ASSERT_OK(store.open(saved.id, saved.versions));
  store.file->release(0);
  store.file->adopt(4);
  write(4);
  ASSERT_OK(store.expect(4, stamps[4]));
  store.file.reset();
  store.pages[4].bytes *= 2;
  EXPECT_EQ(store.open(saved.id, saved.versions).code(), Exit::kMismatch);
}

// A run without checkpoints has none to wait for: what leaves makes room at once.
TEST_F(PoolTest, WithoutCheckpointsPagesMoveAtOnce) {
  store.options.slots = 1;
  make(pages_of_records({0, 1}));  // 4 pages and a scratch page: 5
  EXPECT_EQ(sim.contents(kFiles[0]).size() + sim.contents(kFiles[1]).size(),
            2u * 64 * 1024 + 5 * 8192);
  for (PageId page = 0; page < 4; ++page) write(page);
  for (int round = 0; round < 20; ++round) {
    const PageId in = 2 * (static_cast<PageId>(round + 2) % 3), out = (in + 2) % 6;
    for (PageId page = out; page < out + 2; ++page) store.file->release(page);
    for (PageId page = in; page < in + 2; ++page) store.file->adopt(page);
    for (PageId page = in; page < in + 2; ++page) write(page);
    for (PageId page = 0; page < 7; ++page) {
      if (!store.file->pages()[page].here) continue;
      if (store.file->has(page)) ASSERT_OK(store.expect(page, stamps[page]));
      write(page);
    }
  }
}

// A page that leaves and comes back before the commit has new content, and the old one is safe.
TEST_F(PoolTest, APageMayComeBackBeforeTheCommit) {
  make(equal_pages());
  for (PageId page = 0; page < 6; ++page) write(page);
  commit();
  store.file->release(3);
  store.file->adopt(3);
  EXPECT_FALSE(store.file->has(3));
  for (PageId page = 0; page < 6; ++page) write(page);
  write(3);
  expect_saved();
  commit();
  expect_saved();
  EXPECT_EQ(saved.versions.size(), 6u);
}

// A scratch page's extent is free at once; its own transfers end before another page's begin.
TEST_F(PoolTest, AnExtentChangesPagesBehindItsTransfers) {
  const Watchdog watchdog("extents that change pages", std::chrono::seconds(120));
  std::vector<PageSpec> pages(2, PageSpec{kIoAlign, 0, false});
  make(pages);
  HostMemory buffers = host_memory(4 * 2 * kIoAlign);
  const auto buffer = [&](int i) { return buffers.data() + i * 2 * kIoAlign; };
  const auto fill = [&](int i, uint64_t of) {
    fill_page(buffer(i) + kPageHeaderBytes, kIoAlign, of);
  };
  for (int round = 0; round < 50; ++round) {
    fill(0, 1);
    store.file->write(0, buffer(0), 1, Event()).wait();  // in the extent that was free for longest
    Event start = Event::make();
    const Event read = store.file->read(0, buffer(1), start);
    store.file->drop(0);
    fill(2, 2);
    fill(3, 3);
    store.file->write(1, buffer(2), 2, Event()).wait();  // in the other one
    store.file->drop(1);
    const Event written = store.file->write(1, buffer(3), 3, Event());  // where page 0 is read
    EXPECT_FALSE(written.happened());
    start.signal();
    read.wait();
    written.wait();
    ASSERT_OK(store.file->status());
    EXPECT_TRUE(testing::holds_page(buffer(1) + kPageHeaderBytes, kIoAlign, 1));
    ASSERT_OK(store.expect(1, 3));
    store.file->drop(1);
  }
}

TEST(PoolDeathTest, APageThatIsNotHereIsNotWritten) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  SimStorage sim(1, 0);
  Store store(&sim);
  store.pages = pages_of_records({0});
  ASSERT_OK(store.create());
  EXPECT_DEATH(store.write(2, 1, 1).ok(), "no page 2 to write");
  EXPECT_DEATH(store.file->adopt(0), "page 0 is here");
  EXPECT_DEATH(store.file->release(2), "page 2 is not here");
  EXPECT_DEATH(store.file->adopt(2), "page 2 has no room here");
  store.file->release(0);
  store.file->adopt(2);
  EXPECT_DEATH(store.file->adopt(3), "page 3 has no room here");
  EXPECT_DEATH(store.file->versions(), "was never written");
}

// ---- superblocks that nobody wrote ----

void expect_refused(Store& store, const Saved& saved, const Superblock& block, Exit code) {
  for (const char* path : kFiles) {
    auto* sim = static_cast<SimStorage*>(store.storage);
    std::vector<std::byte> bytes = sim->contents(path);
    Superblock forged;
    ASSERT_TRUE(forged.decode(bytes.data()));
    forged.classes = block.classes;
    forged.slots = block.slots;
    forged.encode(bytes.data());
    forged.encode(bytes.data() + kSuperblockBytes);
    sim->set_contents(path, bytes);
  }
  const Status status = store.open(saved.id, saved.versions);
  EXPECT_EQ(status.code(), code) << status.message();
}

TEST_F(PoolTest, ForgedClassesAreRefused) {
  make(equal_pages());
  for (PageId page = 0; page < 6; ++page) write(page);
  commit();
  store.file.reset();
  Superblock good;
  ASSERT_TRUE(good.decode(sim.contents(kFiles[0]).data()));
  ASSERT_EQ(good.classes, (std::vector<ExtentClass>{{kIoAlign, 13}}));
  const std::vector<std::vector<ExtentClass>> forgeries = {
      {},
      {{kIoAlign, 12}},
      {{kIoAlign, ~0u}},
      {{kIoAlign, 13}, {kIoAlign, ~0u}},
      {{0, 13}},
      {{-kIoAlign, 13}},
      {{kIoAlign + 1, 13}},
      {{int64_t{1} << 62, 13}},
      {{2 * kIoAlign, 13}},
      {{kIoAlign, 11}, {2 * kIoAlign, 1}},
      std::vector<ExtentClass>(256, {kIoAlign, 1u << 31}),
  };
  for (size_t i = 0; i < forgeries.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "forgery " << i);
    Superblock forged = good;
    forged.classes = forgeries[i];
    expect_refused(store, saved, forged, Exit::kMismatch);
  }
  Superblock other = good;
  other.slots = 3;
  expect_refused(store, saved, other, Exit::kMismatch);
  expect_refused(store, saved, good, Exit::kOk);
}

// ---- format 1 ----

void put(std::vector<std::byte>& bytes, size_t at, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes[at + static_cast<size_t>(i)] = std::byte(value >> (8 * i));
}

void seal(std::vector<std::byte>& bytes, size_t block) {
  put(bytes, block + 4092, crc32c(bytes.data() + block, 4092), 4);
}

// A store of small_pages() as the version before wrote it, byte by byte: every page has two extents
// (the scratch page one) in order of id, those of record r in file r mod 2.
struct FormatOne {
  FormatOne() {
    // File a has record 0, of page 0 (4096 bytes) and page 1 (12288), a header each; then record 2.
    constexpr size_t kOffset[] = {65536, 81920, 65536, 81920, 114688, 131072};
    constexpr size_t kLength[] = {163840, 126976};
    const std::string table =
        "4096 0 1\n12288 0 1\n4096 1 1\n12288 1 1\n4096 2 1\n12288 2 1\n8192 1 0\n";
    for (size_t file = 0; file < 2; ++file) {
      std::vector<std::byte>& bytes = contents[file];
      bytes.resize(kLength[file]);
      for (const size_t copy : {0, 4096}) {
        std::memcpy(bytes.data() + copy, "PAGODAST", 8);
        put(bytes, copy + 8, 1, 4);
        put(bytes, copy + 12, 2, 4);  // directories
        put_id(bytes, copy + 16);
        put(bytes, copy + 32, file, 4);
        put(bytes, copy + 36, 7, 4);  // pages
        put(bytes, copy + 40, 2, 4);  // slots
        put(bytes, copy + 44, crc32c(table.data(), static_cast<int64_t>(table.size())), 4);
        put(bytes, copy + 48, kLength[file], 8);
        seal(bytes, copy);
      }
    }
    for (PageId page = 0; page < 6; ++page) {
      const uint32_t record = page / 2, slot = kSlots[page];
      const size_t length = page % 2 == 0 ? 4096 : 12288;
      std::vector<std::byte>& bytes = contents[record % 2];
      const size_t at = kOffset[page] + slot * (4096 + length);
      fill_page(bytes.data() + at + 4096, static_cast<int64_t>(length), 100 + page);
      const uint32_t checksum = crc32c(bytes.data() + at + 4096, static_cast<int64_t>(length));
      std::memcpy(bytes.data() + at, "PAGODAPG", 8);
      put(bytes, at + 8, 1, 4);
      put(bytes, at + 12, page, 4);
      put_id(bytes, at + 16);
      put(bytes, at + 32, record, 4);
      put(bytes, at + 36, slot, 4);
      put(bytes, at + 40, 7, 8);  // generation
      put(bytes, at + 48, length, 8);
      put(bytes, at + 56, checksum, 4);
      seal(bytes, at);
      offsets.push_back(at);
      // A manifest of format 4 says page and slot; this is what it is read as.
      saved.versions.push_back({page, 2 * page + slot, 7, checksum});
      saved.stamps.push_back(100 + page);
    }
    saved.id = "000102030405060708090a0b0c0d0e0f";
  }
  static void put_id(std::vector<std::byte>& bytes, size_t at) {
    for (size_t i = 0; i < 16; ++i) put(bytes, at + i, i, 1);
  }
  void write_to(SimStorage& sim) {
    for (const char* folder : {"/s/a", "/s/b"}) ASSERT_OK(sim.make_directory(folder));
    for (size_t file = 0; file < 2; ++file) {
      ASSERT_OK(sim.write_file(kFiles[file], ""));
      sim.set_contents(kFiles[file], contents[file]);
    }
  }

  static constexpr uint32_t kSlots[] = {1, 0, 0, 1, 1, 1};
  std::vector<std::byte> contents[2];
  std::vector<size_t> offsets;  // of each page's header
  Saved saved;
};

TEST_F(PoolTest, AStoreOfFormatOneGoesOn) {
  FormatOne old;
  old.write_to(sim);
  saved = old.saved;
  saved_pages = small_pages();
  store.options.read_only = true;
  ASSERT_OK(store.open(saved.id, saved.versions));
  ASSERT_OK(store.file->verify());
  for (PageId page = 0; page < 6; ++page) ASSERT_OK(store.expect(page, 100 + page));
  store.file.reset();

  store.options.read_only = false;
  ASSERT_OK(store.open(saved.id, saved.versions));
  for (PageId page = 0; page < 6; ++page) stamps[page] = 100 + page;
  generation = 8;
  // Written over and over, a checkpoint of both formats' pages among them.
  for (int round = 0; round < 20; ++round) {
    for (PageId page = 0; page < 7; ++page) {
      if (round == 0 ? page == 3 : (page + static_cast<PageId>(round)) % 3 != 0) write(page);
    }
    expect_saved();
    for (PageId page = 0; page < 6; ++page) ASSERT_OK(store.expect(page, stamps[page]));
    commit();
    expect_saved();
  }
  store.file.reset();
  ASSERT_OK(store.open(saved.id, saved.versions));
  ASSERT_OK(store.file->verify());
  for (const char* path : kFiles) {  // its superblocks are as they were
    EXPECT_EQ(std::memcmp(sim.contents(path).data(),
                          old.contents[path == kFiles[1]].data(), 8192), 0);
  }
}

TEST_F(PoolTest, DamageInAStoreOfFormatOneIsDetected) {
  FormatOne old;
  old.write_to(sim);
  ASSERT_OK(store.open(old.saved.id, old.saved.versions));
  const auto refused = [&](const char* what, size_t at, uint64_t value, int size) {
    std::vector<std::byte> bytes = old.contents[0];
    put(bytes, old.offsets[1] + at, value, size);
    seal(bytes, old.offsets[1]);
    sim.set_contents(kFiles[0], bytes);
    const Status status = store.file->verify();
    EXPECT_EQ(status.code(), Exit::kIoError) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  refused("slot 1 found, 0 expected", 36, 1, 4);
  refused("page 0 found, 1 expected", 12, 0, 4);
  refused("extent 0 found, 2 expected", 8, 2, 4);  // the format
  refused("header's checksum does not hold", 8, 3, 4);
  refused("generation 6 found", 40, 6, 8);
  sim.set_contents(kFiles[0], old.contents[0]);
  ASSERT_OK(store.file->verify());
  sim.flip_bit(kFiles[0], static_cast<int64_t>(old.offsets[1]) + 5000, 3);
  EXPECT_EQ(store.file->verify().code(), Exit::kIoError);
}

}  // namespace
}  // namespace pagoda
