// The protocol of two versions survives every crash and every failing call, and a program that
// breaks one of its rules is caught by the same test.
#include <algorithm>
#include <set>
#include <sstream>

#include "base/bytes.h"
#include "base/random.h"
#include "offload/page_file.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/page_store.h"
#include "tests/testing/storage/storage_sim.h"

namespace pagoda {
namespace {

using testing::Store;

// Sanitized builds are about ten times slower; they look for races and overflows, not for rare
// crash states.
constexpr int kCrashSeeds = kUnderSanitizer ? 150 : 2500;

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
      out << ' ' << v.page << ' ' << v.extent << ' ' << v.generation << ' ' << v.checksum << ' '
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
    while (in >> v.page >> v.extent >> v.generation >> v.checksum >> stamp) {
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
  int moved() const { return moved_; }

 private:
  static constexpr PageId kScratch = 6;

  uint64_t draw() {
    const auto block = philox(seed_, RandomPurpose::kTest, 1, ++draws_);
    return (uint64_t{block[0]} << 32) | block[1];
  }

  Status live() {
    Store store(&sim_);
    store.pages[kScratch].bytes = store.pages[0].bytes;  // they share extents
    RETURN_IF_ERROR(start(&store));
    for (int step = 0; step < 6; ++step) {
      const int writes = static_cast<int>(draw() % 9);
      for (int i = 0; i < writes; ++i) {
        const PageId page = std::min<uint64_t>(draw() % 12, kScratch);
        // The scratch page goes through all extents that are free.
        if (page == kScratch) store.file->drop(page);
        if (store.file->pages()[page].here) RETURN_IF_ERROR(change(&store, page));
      }
      if (draw() % 4 == 0) RETURN_IF_ERROR(move(&store, draw() % 2));
      if (draw() % 2 == 0) RETURN_IF_ERROR(save(&store));
    }
    return Status();
  }

  // One of the two records that are here changes places with the third.
  Status move(Store* store, uint64_t which) {
    PageId in = 0;
    while (store->file->pages()[2 * in].here) ++in;
    const PageId out = (in + 1 + static_cast<PageId>(which)) % 3;
    ++moved_;
    for (const PageId part : {0u, 1u}) {
      store->file->release(2 * out + part);
      store->file->adopt(2 * in + part);
      RETURN_IF_ERROR(change(store, 2 * in + part));
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
      set_here(store, {0, 1, 2, 3});
      RETURN_IF_ERROR(store->create());
      for (PageId page = 0; page < 4; ++page) RETURN_IF_ERROR(change(store, page));
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

  static void set_here(Store* store, const std::set<PageId>& here) {
    for (PageId page = 0; page < 6; ++page) store->pages[page].here = here.contains(page);
  }

  Status recover(Store* store, const Manifest& manifest) {
    std::set<PageId> here;
    for (const PageVersion& version : manifest.versions) here.insert(version.page);
    set_here(store, here);
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
      for (PageId page = 0; page < 6; ++page) {
        if (store->file->pages()[page].here) RETURN_IF_ERROR(change(store, page));
      }
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
  int moved_ = 0;   // records
  int next_ = 0;    // number of the next checkpoint
  int saved_ = -1;  // newest one reported as saved
  bool wrong_ = false;
};

TEST(PageFileCrash, TheCommittedCheckpointSurvivesEveryCrash) {
  int64_t checkpoints = 0, moved = 0;
  for (uint64_t seed = 1; seed <= kCrashSeeds; ++seed) {
    CrashRun run(seed, Mutant::kNone);
    const Status status = run.run(4);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message();
    checkpoints += run.checkpoints();
    moved += run.moved();
  }
  std::printf("%d seeds, 3 crashes each, %lld checkpoints; records moved %lld times\n", kCrashSeeds,
              (long long)checkpoints, (long long)moved);
  EXPECT_GT(checkpoints, 2 * kCrashSeeds);
  EXPECT_GT(moved, kCrashSeeds);
}

// The same program with each call failing in turn: it stops, and what it had saved is there.
TEST(PageFileCrash, EveryCallMayFailOrBeTheLast) {
  constexpr uint64_t kSeed = 9;  // of a run in which records move
  CrashRun clean(kSeed, Mutant::kNone);
  ASSERT_OK(clean.run(1));
  ASSERT_GT(clean.moved(), 1);
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
      CrashRun run(kSeed, Mutant::kNone);
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
