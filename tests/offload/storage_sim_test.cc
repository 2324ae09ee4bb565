// The simulated storage: faults at every call, completion order, and what a power loss may take.
// Its transfers follow the same rule for short and failed attempts as the real ones
// (offload/chunk.h).

#include <algorithm>
#include <cstring>
#include <latch>
#include <set>

#include "base/bytes.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/storage/storages.h"

namespace pagoda {
namespace {

using testing::difference;
using testing::fill;
using testing::host_memory;
using Op = IoRequest::Op;

struct SimRun {
  std::vector<Status> statuses;  // of every transfer, writes first
  std::string difference;
  int64_t calls = 0, faults = 0;
};

// Writes eight blocks, then reads them back.
SimRun sim_run(const std::optional<SimFault>& fault, uint64_t seed) {
  constexpr int kBlocks = 8;
  constexpr int64_t kBytes = 3 * kIoAlign;
  SimStorage storage(seed, 0);
  SimRun run;
  EXPECT_TRUE(storage.make_directory("/d").ok());
  auto file = storage.open("/d/a", kBlocks * kBytes, FileUse::kCreate);
  EXPECT_TRUE(file.ok());
  HostMemory source = host_memory(kBlocks * kBytes), target = host_memory(kBlocks * kBytes);
  fill(source.data(), source.bytes(), seed);
  if (fault) storage.inject(*fault);
  for (const Op op : {Op::kWrite, Op::kRead}) {
    for (int i = 0; i < kBlocks; ++i) {
      std::byte* data = (op == Op::kWrite ? source : target).data() + i * kBytes;
      run.statuses.push_back(transfer_now(&storage, op, *file, i * kBytes, data, kBytes));
    }
  }
  run.difference = difference(target.data(), source.data(), source.bytes());
  run.calls = storage.calls();
  run.faults = storage.faults();
  return run;
}

int64_t failures(const SimRun& run) {
  return std::count_if(run.statuses.begin(), run.statuses.end(),
                       [](const Status& status) { return !status.ok(); });
}

TEST(SimStorage, ShortAndInterruptedTransfersAreFinishedWhicheverCallTheyHit) {
  const int64_t transfers = static_cast<int64_t>(sim_run(std::nullopt, 1).statuses.size());
  for (int64_t nth = 1; nth <= transfers; ++nth) {
    for (const int error : {EAGAIN, EINTR, ECANCELED, 0}) {
      SimFault fault;
      fault.calls = kSimTransfers;
      fault.nth = nth;
      fault.kind = error == 0 ? SimFault::Kind::kShort : SimFault::Kind::kTransient;
      fault.error = error;
      const SimRun run = sim_run(fault, 7);
      EXPECT_EQ(run.faults, 1);
      EXPECT_EQ(failures(run), 0) << "transfer " << nth << ", " << error;
      EXPECT_EQ(run.difference, "") << "transfer " << nth << ", " << error;
    }
  }
}

TEST(SimStorage, FaultsThatCannotBeRepairedAreReportedOrVisible) {
  using Kind = SimFault::Kind;
  for (int64_t nth = 1; nth <= 16; ++nth) {
    for (const Kind kind :
         {Kind::kError, Kind::kZero, Kind::kBitFlip, Kind::kStale, Kind::kMisdirected}) {
      SimFault fault;
      fault.kind = kind;
      fault.calls = kSimTransfers;
      fault.nth = nth;
      const SimRun run = sim_run(fault, 7);
      EXPECT_EQ(run.faults, 1);
      const bool reported = kind == Kind::kError || kind == Kind::kZero;
      EXPECT_EQ(failures(run), reported ? 1 : 0) << "transfer " << nth;
      EXPECT_NE(run.difference, "") << "transfer " << nth << ", kind " << static_cast<int>(kind);
    }
  }
}

TEST(SimStorage, EveryNumberedCallCanFail) {
  const auto run = [](SimStorage* storage) {
    RETURN_IF_ERROR(storage->make_directory("/d"));
    ASSIGN_OR_RETURN(const int file, storage->open("/d/a", kIoAlign, FileUse::kCreate));
    HostMemory memory = host_memory(kIoAlign);
    RETURN_IF_ERROR(transfer_now(storage, Op::kWrite, file, 0, memory.data(), kIoAlign));
    RETURN_IF_ERROR(transfer_now(storage, Op::kRead, file, 0, memory.data(), kIoAlign));
    RETURN_IF_ERROR(storage->sync(file));
    RETURN_IF_ERROR(storage->write_file("/d/b", "x"));
    ASSIGN_OR_RETURN(const std::string text, storage->read_file("/d/b", 10));
    RETURN_IF_ERROR(storage->rename("/d/b", "/d/c"));
    RETURN_IF_ERROR(storage->sync_directory("/d"));
    ASSIGN_OR_RETURN(const std::vector<std::string> names, storage->list_directory("/d"));
    RETURN_IF_ERROR(storage->remove_file("/d/c"));
    return Status();
  };
  SimStorage clean(1, 0);
  ASSERT_OK(run(&clean));
  ASSERT_EQ(clean.calls(), 11);
  for (int64_t nth = 1; nth <= clean.calls(); ++nth) {
    SimStorage storage(1, 0);
    SimFault fault;
    fault.nth = nth;
    storage.inject(fault);
    EXPECT_EQ(run(&storage).code(), Exit::kIoError) << "call " << nth;
    EXPECT_EQ(storage.faults(), 1);
  }
}

TEST(SimStorage, AFailedFlushIsFinal) {
  SimStorage storage(1);
  auto file = storage.open("/a", kIoAlign, FileUse::kCreate);
  ASSERT_TRUE(file.ok());
  SimFault fault;
  fault.calls = kSimSync;
  fault.nth = 2;
  storage.inject(fault);
  EXPECT_TRUE(storage.sync(*file).ok());
  EXPECT_FALSE(storage.sync(*file).ok());
  EXPECT_FALSE(storage.sync(*file).ok());  // the fault is over, the file is not trusted any more
}

TEST(SimStorage, SeedsGiveDifferentCompletionOrders) {
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    constexpr int kRequests = 12;
    SimStorage storage(seed, 200);
    auto file = storage.open("/a", kRequests * kIoAlign, FileUse::kCreate);
    ASSERT_TRUE(file.ok());
    HostMemory memory = host_memory(kRequests * kIoAlign);
    std::vector<IoRequest> requests(kRequests);
    std::vector<int> order;  // only the storage's thread writes it
    std::latch finished(kRequests);
    for (int i = 0; i < kRequests; ++i) {
      IoRequest& request = requests[static_cast<size_t>(i)];
      request = {Op::kWrite, *file, i * kIoAlign, memory.data() + i * kIoAlign, kIoAlign, {}, {}};
      request.done = [&, i](IoRequest&) {
        order.push_back(i);
        finished.count_down();
      };
      storage.submit(&request);
    }
    finished.wait();
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 3u);
}

TEST(SimStorageDeathTest, OverlappingTransfersAreBugs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto overlap = [] {
    SimStorage storage(1, 0);
    SimFault slow;
    slow.kind = SimFault::Kind::kDelay;
    slow.nth = 2;
    slow.delay_us = 2000000;
    storage.inject(slow);
    auto file = storage.open("/a", 4 * kIoAlign, FileUse::kCreate);
    HostMemory memory = host_memory(4 * kIoAlign);
    IoRequest read = {Op::kRead, *file, 0, memory.data(), 2 * kIoAlign, {}, [](IoRequest&) {}};
    IoRequest write = {Op::kWrite, *file, kIoAlign,         memory.data() + 2 * kIoAlign,
                       kIoAlign,   {},    [](IoRequest&) {}};
    storage.submit(&read);
    storage.submit(&write);
  };
  EXPECT_DEATH(overlap(), "overlaps another transfer");
}

// Flushed content survives every crash; unflushed sectors are old or new, and over many seeds every
// combination is seen: the crash tests of other parts rely on that.
TEST(SimStorage, CrashKeepsWhatWasFlushedAndNothingElseForSure) {
  std::set<std::string> seen;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SimStorage storage(seed, 0);
    auto file = storage.open("/a", 4 * kIoAlign, FileUse::kCreate);
    ASSERT_TRUE(file.ok());
    HostMemory memory = host_memory(4 * kIoAlign);
    std::memset(memory.data(), 'o', 4 * kIoAlign);
    ASSERT_OK(transfer_now(&storage, Op::kWrite, *file, 0, memory.data(), 4 * kIoAlign));
    ASSERT_OK(storage.sync(*file));
    ASSERT_OK(storage.sync_directory("/"));
    std::memset(memory.data(), 'n', 4 * kIoAlign);
    ASSERT_OK(transfer_now(&storage, Op::kWrite, *file, kIoAlign, memory.data(), 2 * kIoAlign));
    storage.crash(seed);
    EXPECT_EQ(transfer_now(&storage, Op::kRead, *file, 0, memory.data(), kIoAlign).code(),
              Exit::kIoError);
    EXPECT_FALSE(storage.write_file("/b", "x").ok());
    storage.restart();
    EXPECT_FALSE(storage.sync(*file).ok()) << "an old handle";
    EXPECT_FALSE(transfer_now(&storage, Op::kRead, *file, 0, memory.data(), kIoAlign).ok());
    storage.close(*file);  // a destructor of the program that died
    auto again = storage.open("/a", 4 * kIoAlign, FileUse::kUpdate);
    ASSERT_TRUE(again.ok()) << again.status().message();
    ASSERT_OK(transfer_now(&storage, Op::kRead, *again, 0, memory.data(), 4 * kIoAlign));
    std::string sectors;
    for (int i = 0; i < 4; ++i) sectors += static_cast<char>(memory.data()[i * kIoAlign]);
    for (int64_t i = 0; i < 4 * kIoAlign; ++i) {
      ASSERT_EQ(static_cast<char>(memory.data()[i]), sectors[static_cast<size_t>(i / kIoAlign)]);
    }
    seen.insert(sectors);
  }
  EXPECT_EQ(seen, (std::set<std::string>{"oooo", "onoo", "oono", "onno"}));
}

TEST(SimStorage, CrashLosesNamesThatWereNotFlushed) {
  std::set<std::string> seen;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SimStorage storage(seed, 0);
    ASSERT_OK(storage.make_directory("/d"));
    ASSERT_OK(storage.sync_directory("/"));
    ASSERT_OK(storage.write_file("/d/kept", "1"));
    ASSERT_OK(storage.write_file("/d/old", "1"));
    ASSERT_OK(storage.sync_directory("/d"));
    ASSERT_OK(storage.write_file("/d/new", "2"));
    ASSERT_OK(storage.rename("/d/new", "/d/old"));
    storage.crash(seed);
    storage.restart();
    const auto names = storage.list_directory("/d");
    ASSERT_TRUE(names.ok());
    std::string state;
    for (const std::string& name : names.value()) {
      state += name + "=" + *storage.read_file("/d/" + name, 10) + " ";
    }
    seen.insert(state);
  }
  // Neither, the creation alone, or the rename (with or without the creation's own record).
  EXPECT_EQ(seen, (std::set<std::string>{"kept=1 old=1 ", "kept=1 new=2 old=1 ", "kept=1 old=2 "}));
}

TEST(SimStorage, ARestartWithoutACrashLosesNothing) {
  SimStorage storage(1);
  auto file = storage.open("/a", kIoAlign, FileUse::kCreate);
  ASSERT_TRUE(file.ok());
  HostMemory memory = host_memory(kIoAlign);
  std::memset(memory.data(), 'x', kIoAlign);
  ASSERT_OK(transfer_now(&storage, Op::kWrite, *file, 0, memory.data(), kIoAlign));
  storage.restart();
  auto again = storage.open("/a", kIoAlign, FileUse::kUpdate);
  ASSERT_TRUE(again.ok());
  ASSERT_OK(transfer_now(&storage, Op::kRead, *again, 0, memory.data(), kIoAlign));
  EXPECT_EQ(static_cast<char>(memory.data()[kIoAlign - 1]), 'x');
}

}  // namespace
}  // namespace pagoda
