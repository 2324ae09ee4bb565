// One suite over all three storages, then what is particular to the real ones, where a real short
// write is made with RLIMIT_FSIZE. Faults at every call are in storage_sim_test.cc: the storages
// share the rule for short and failed transfers (offload/chunk.h).
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <latch>
#include <thread>

#include "base/bytes.h"
#include "offload/storage_posix.h"
#include "tests/testing/storage/storages.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

using testing::difference;
using testing::fill;
using testing::host_memory;
using testing::StorageUnderTest;
using Op = IoRequest::Op;

class StorageTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!storage()) GTEST_SKIP() << "io_uring is refused on this machine";
  }
  Storage* storage() { return under_test_.storage.get(); }
  std::string path(const std::string& name) { return under_test_.directory() + "/" + name; }
  int create(const std::string& name, int64_t bytes) {
    auto file = storage()->open(path(name), bytes, FileUse::kCreate);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file.ok() ? *file : -1;
  }
  bool simulated() { return under_test_.kind == "sim"; }

  StorageUnderTest under_test_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(All, StorageTest, ::testing::Values("uring", "threads", "sim"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StorageTest, RoundTripsAndKeepsWhatItHasAfterReopening) {
  constexpr int64_t kBytes = 5 * kMiB + 3 * kIoAlign;  // several chunks, the last one odd
  HostMemory source = host_memory(kBytes), target = host_memory(kBytes);
  fill(source.data(), kBytes, 1);
  int file = create("a", kBytes);
  ASSERT_OK(transfer_now(storage(), Op::kWrite, file, 0, source.data(), kBytes));
  ASSERT_OK(transfer_now(storage(), Op::kRead, file, 0, target.data(), kBytes));
  EXPECT_EQ(difference(target.data(), source.data(), kBytes), "");
  ASSERT_OK(storage()->sync(file));
  storage()->close(file);

  auto again = storage()->open(path("a"), kBytes, FileUse::kUpdate);
  ASSERT_TRUE(again.ok()) << again.status().message();
  std::memset(target.data(), 0, kBytes);
  ASSERT_OK(transfer_now(storage(), Op::kRead, *again, kIoAlign, target.data(), kBytes - kIoAlign));
  EXPECT_EQ(difference(target.data(), source.data() + kIoAlign, kBytes - kIoAlign), "");
  storage()->close(*again);
}

TEST_P(StorageTest, RegisteredMemoryGivesTheSameBytes) {
  constexpr int64_t kBytes = 2 * kMiB;
  HostMemory registered = host_memory(kBytes), plain = host_memory(kBytes);
  storage()->register_memory(registered.data(), kBytes);
  fill(registered.data(), kBytes, 2);
  const int file = create("a", kBytes);
  ASSERT_OK(transfer_now(storage(), Op::kWrite, file, 0, registered.data(), kBytes));
  ASSERT_OK(transfer_now(storage(), Op::kRead, file, 0, plain.data(), kBytes));
  EXPECT_EQ(difference(plain.data(), registered.data(), kBytes), "");
  std::memset(registered.data(), 0, kBytes);
  ASSERT_OK(transfer_now(storage(), Op::kRead, file, 0, registered.data(), kBytes));
  EXPECT_EQ(difference(registered.data(), plain.data(), kBytes), "");
  storage()->close(file);
}

// Three threads each write their share of 240 blocks of mixed size; every completion reads the
// block back from inside `done`.
TEST_P(StorageTest, ManyInFlightFromSeveralThreads) {
  constexpr int kBlocks = 240, kThreads = 3;
  constexpr int64_t kStride = 96 * kKiB;
  const auto size_of = [](int i) { return kIoAlign * (1 + i % 23); };
  const int file = create("a", kBlocks * kStride);
  HostMemory source = host_memory(kBlocks * kStride), target = host_memory(kBlocks * kStride);
  fill(source.data(), source.bytes(), 3);
  std::vector<IoRequest> requests(kBlocks);
  std::latch finished(kBlocks);
  for (int i = 0; i < kBlocks; ++i) {
    IoRequest& request = requests[static_cast<size_t>(i)];
    request = {Op::kWrite, file, i * kStride, source.data() + i * kStride, size_of(i), {}, {}};
    request.done = [&, i](IoRequest& written) {
      EXPECT_TRUE(written.status.ok()) << written.status.message();
      written.op = Op::kRead;
      written.data = target.data() + i * kStride;
      written.done = [&](IoRequest& read) {
        EXPECT_TRUE(read.status.ok()) << read.status.message();
        finished.count_down();
      };
      storage()->submit(&written);
    };
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < kBlocks; i += kThreads)
        storage()->submit(&requests[static_cast<size_t>(i)]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  finished.wait();
  for (int i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(difference(target.data() + i * kStride, source.data() + i * kStride, size_of(i)), "")
        << "block " << i;
  }
  storage()->close(file);
}

// A storage is destroyed with transfers in flight: it must finish them, and what they submit.
TEST_P(StorageTest, DestructionFinishesTransfers) {
  constexpr int kRequests = 40;
  const int file = create("a", kRequests * kMiB);
  HostMemory memory = host_memory(kRequests * kMiB);
  std::vector<IoRequest> requests(kRequests);
  std::atomic<int> finished{0};
  for (int i = 0; i < kRequests; ++i) {
    IoRequest& request = requests[static_cast<size_t>(i)];
    request = {Op::kWrite, file, i * kMiB, memory.data() + i * kMiB, kMiB, {}, {}};
    request.done = [&](IoRequest& written) {
      EXPECT_TRUE(written.status.ok()) << written.status.message();
      written.op = Op::kRead;
      written.done = [&](IoRequest& read) {
        EXPECT_TRUE(read.status.ok()) << read.status.message();
        ++finished;
      };
      storage()->submit(&written);
    };
    storage()->submit(&request);
  }
  // reset() would null the pointer before the completions that use it have run.
  delete storage();
  (void)under_test_.storage.release();
  EXPECT_EQ(finished, kRequests);
}

TEST_P(StorageTest, TheEndOfTheFileIsAnError) {
  const int file = create("a", 16 * kIoAlign);
  HostMemory memory = host_memory(4 * kIoAlign);
  // Half of it exists: a short read first, then 0 bytes.
  const Status status =
      transfer_now(storage(), Op::kRead, file, 14 * kIoAlign, memory.data(), 4 * kIoAlign);
  EXPECT_EQ(status.code(), Exit::kIoError);
  EXPECT_NE(status.message().find(path("a")), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("ends here"), std::string::npos) << status.message();
  EXPECT_EQ(transfer_now(storage(), Op::kRead, file, 20 * kIoAlign, memory.data(), kIoAlign).code(),
            Exit::kIoError);
  storage()->close(file);
}

TEST_P(StorageTest, FilesMustFitTheirDescription) {
  const int file = create("a", 16 * kIoAlign);
  const auto opened = [&](const char* name, int64_t bytes, FileUse use) {
    return storage()->open(path(name), bytes, use).status().code();
  };
  EXPECT_EQ(opened("a", 16 * kIoAlign, FileUse::kCreate), Exit::kCannotCreate);
  storage()->close(file);
  for (const FileUse use : {FileUse::kUpdate, FileUse::kRead}) {
    EXPECT_EQ(opened("a", 17 * kIoAlign, use), Exit::kMismatch);
    EXPECT_EQ(opened("none", kIoAlign, use), Exit::kNoInput);
  }
  EXPECT_EQ(opened("no/dir", kIoAlign, FileUse::kCreate), Exit::kCannotCreate);
  EXPECT_EQ(opened("none", Storage::kAnyLength, FileUse::kUpdate), Exit::kNoInput);
  Result<int> any = storage()->open(path("a"), Storage::kAnyLength, FileUse::kUpdate);
  ASSERT_OK(any.status());
  EXPECT_EQ(storage()->length(*any), 16 * kIoAlign);
  storage()->close(*any);
}

TEST_P(StorageTest, ASecondOpenerIsRefusedUntilTheFirstCloses) {
  const int file = create("a", 16 * kIoAlign);
  std::unique_ptr<Storage> other = simulated() ? nullptr : under_test_.another();
  Storage* second = simulated() ? storage() : other.get();
  const Status status = second->open(path("a"), 16 * kIoAlign, FileUse::kUpdate).status();
  EXPECT_EQ(status.code(), Exit::kCannotCreate);
  EXPECT_NE(status.message().find("in use"), std::string::npos) << status.message();
  storage()->close(file);
  const auto now = second->open(path("a"), 16 * kIoAlign, FileUse::kUpdate);
  EXPECT_TRUE(now.ok()) << now.status().message();
}

// Those who only read share a file with each other, and with nobody who writes.
TEST_P(StorageTest, ReadersShareAFile) {
  storage()->close(create("a", 16 * kIoAlign));
  std::unique_ptr<Storage> other = simulated() ? nullptr : under_test_.another();
  Storage* second = simulated() ? storage() : other.get();
  const auto one = storage()->open(path("a"), 16 * kIoAlign, FileUse::kRead);
  const auto two = second->open(path("a"), 16 * kIoAlign, FileUse::kRead);
  ASSERT_OK(one.status());
  ASSERT_OK(two.status());
  HostMemory memory = host_memory(kIoAlign);
  ASSERT_OK(transfer_now(second, Op::kRead, two.value(), 0, memory.data(), kIoAlign));
  storage()->close(one.value());
  EXPECT_EQ(second->open(path("a"), 16 * kIoAlign, FileUse::kUpdate).status().code(),
            Exit::kCannotCreate);
  second->close(two.value());
  ASSERT_OK(storage()->open(path("a"), 16 * kIoAlign, FileUse::kUpdate).status());
  EXPECT_EQ(second->open(path("a"), 16 * kIoAlign, FileUse::kRead).status().code(),
            Exit::kCannotCreate);
}

// What is written to a file without a name ends with the process, so nothing may be built on it.
TEST_P(StorageTest, ASyncWantsTheFileAtItsPath) {
  ASSERT_OK(storage()->make_directory(path("d")));
  const int file = create("d/a", 16 * kIoAlign);
  ASSERT_OK(storage()->sync(file));
  ASSERT_OK(storage()->rename(path("d/a"), path("d/b")));
  const Status moved = storage()->sync(file);
  EXPECT_EQ(moved.code(), Exit::kIoError);
  EXPECT_NE(moved.message().find(path("d/a")), std::string::npos) << moved.message();
  ASSERT_OK(storage()->write_file(path("d/a"), "another"));
  EXPECT_EQ(storage()->sync(file).code(), Exit::kIoError) << "replaced";
  ASSERT_OK(storage()->rename(path("d/b"), path("d/a")));
  ASSERT_OK(storage()->sync(file));
  ASSERT_OK(storage()->rename(path("d"), path("e")));
  EXPECT_EQ(storage()->sync(file).code(), Exit::kIoError) << "its folder was moved";
  ASSERT_OK(storage()->rename(path("e"), path("d")));
  ASSERT_OK(storage()->remove_file(path("d/a")));
  EXPECT_EQ(storage()->sync(file).code(), Exit::kIoError) << "removed";
  storage()->close(file);
}

TEST_P(StorageTest, SmallFilesAndDirectories) {
  ASSERT_OK(storage()->make_directory(path("x/y/z")));
  ASSERT_OK(storage()->make_directory(path("x/y/z")));
  ASSERT_OK(storage()->write_file(path("x/y/b"), "hello"));
  ASSERT_OK(storage()->write_file(path("x/y/b"), "bye"));  // shorter: no rest of the first
  ASSERT_OK(storage()->write_file(path("x/y/a"), std::string(3 * kIoAlign + 1, 'q')));
  EXPECT_EQ(*storage()->read_file(path("x/y/b"), 3), "bye");
  EXPECT_EQ(storage()->read_file(path("x/y/b"), 2).status().code(), Exit::kBadData);
  EXPECT_EQ(storage()->read_file(path("x/y/none"), 99).status().code(), Exit::kNoInput);
  EXPECT_EQ(*storage()->list_directory(path("x/y")), (std::vector<std::string>{"a", "b", "z"}));
  EXPECT_EQ(storage()->list_directory(path("x/none")).status().code(), Exit::kNoInput);
  ASSERT_OK(storage()->rename(path("x/y/b"), path("x/y/a")));
  EXPECT_EQ(*storage()->read_file(path("x/y/a"), 99), "bye");
  EXPECT_FALSE(storage()->exists(path("x/y/b")));
  EXPECT_FALSE(storage()->rename(path("x/y/b"), path("x/y/c")).ok());
  ASSERT_OK(storage()->sync_directory(path("x/y")));
  EXPECT_FALSE(storage()->sync_directory(path("x/none")).ok());
  EXPECT_EQ(storage()->make_directory(path("x/y/a/q")).code(), Exit::kCannotCreate);
  ASSERT_OK(storage()->remove_file(path("x/y/b")));           // absent
  EXPECT_FALSE(storage()->remove_directory(path("x")).ok());  // holds a directory
  ASSERT_OK(storage()->remove_directory(path("x/y/z")));
  ASSERT_OK(storage()->remove_directory(path("x/y")));  // with its file
  ASSERT_OK(storage()->remove_directory(path("x/y")));  // absent
  EXPECT_FALSE(storage()->exists(path("x/y")));
  // A directory takes another name, as a finished checkpoint does.
  ASSERT_OK(storage()->make_directory(path("c.tmp")));
  ASSERT_OK(storage()->write_file(path("c.tmp/m"), "1"));
  ASSERT_OK(storage()->rename(path("c.tmp"), path("c")));
  EXPECT_EQ(*storage()->read_file(path("c/m"), 9), "1");
}

using StorageDeathTest = StorageTest;
INSTANTIATE_TEST_SUITE_P(All, StorageDeathTest, ::testing::Values("uring", "threads", "sim"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StorageDeathTest, UnalignedRequestsAreBugs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int file = create("a", 16 * kIoAlign);
  HostMemory memory = host_memory(4 * kIoAlign);
  const auto go = [&](int64_t offset, int64_t shift, int64_t bytes, Op op = Op::kRead) {
    (void)transfer_now(storage(), op, file, offset, memory.data() + shift, bytes);
  };
  EXPECT_DEATH(go(512, 0, kIoAlign), "offset 512");
  EXPECT_DEATH(go(0, 512, kIoAlign), "unaligned buffer");
  EXPECT_DEATH(go(0, 0, 100), "100 bytes");
  EXPECT_DEATH(go(0, 0, 0), "0 bytes");
  EXPECT_DEATH(go(15 * kIoAlign, 0, 2 * kIoAlign, Op::kWrite), "past the end");
}

// ---- the real storages ----

class PosixStorageTest : public StorageTest {};
INSTANTIATE_TEST_SUITE_P(Real, PosixStorageTest, ::testing::Values("uring", "threads"),
                         [](const auto& info) { return std::string(info.param); });

// Limits file sizes for this process; writes beyond become short, then fail with EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(int64_t bytes) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {static_cast<rlim_t>(bytes), before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    ::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit before_ = {};
  void (*old_handler_)(int) = nullptr;
};

TEST_P(PosixStorageTest, ARealShortWriteIsContinuedAndItsErrorReported) {
  const int file = create("a", 4 * kMiB);
  HostMemory source = host_memory(2 * kMiB), target = host_memory(2 * kMiB);
  fill(source.data(), source.bytes(), 5);
  {
    const FileSizeLimit limit(kMiB + 3 * kIoAlign);
    const Status status =
        transfer_now(storage(), Op::kWrite, file, 0, source.data(), source.bytes());
    EXPECT_EQ(status.code(), Exit::kIoError);
    EXPECT_NE(status.message().find("File too large"), std::string::npos) << status.message();
    ASSERT_OK(transfer_now(storage(), Op::kRead, file, 0, target.data(), target.bytes()));
    EXPECT_EQ(difference(target.data(), source.data(), kMiB + 3 * kIoAlign), "");
  }
  ASSERT_OK(transfer_now(storage(), Op::kWrite, file, 0, source.data(), source.bytes()));
  storage()->close(file);
}

TEST_P(PosixStorageTest, AFileThatDoesNotFitIsRefusedAndRemoved) {
  {
    const FileSizeLimit limit(kMiB);
    const Status status = storage()->open(path("a"), 2 * kMiB, FileUse::kCreate).status();
    EXPECT_EQ(status.code(), Exit::kCannotCreate);
    EXPECT_NE(status.message().find("need 2.00 MiB"), std::string::npos) << status.message();
  }
  EXPECT_FALSE(storage()->exists(path("a")));
  // More than any disk has: refused before anything is filled up.
  EXPECT_EQ(storage()->open(path("a"), int64_t{1} << 60, FileUse::kCreate).status().code(),
            Exit::kCannotCreate);
  EXPECT_FALSE(storage()->exists(path("a")));
}

// A file cut inside a block must end in an error, not in a loop (rocksdb#10368).
TEST_P(PosixStorageTest, AFileThatEndsInsideABlockIsAnError) {
  const int file = create("a", 16 * kIoAlign);
  ASSERT_EQ(::truncate(path("a").c_str(), 2 * kIoAlign + 100), 0);
  HostMemory memory = host_memory(4 * kIoAlign);
  EXPECT_EQ(transfer_now(storage(), Op::kRead, file, 0, memory.data(), 4 * kIoAlign).code(),
            Exit::kIoError);
  storage()->close(file);
}

// Memory that cannot be registered costs speed, not correctness: one warning, and transfers go on.
TEST_P(PosixStorageTest, RefusedRegistrationIsOnlyAWarning) {
  HostMemory memory = host_memory(2 * kIoAlign);
  void* nothing = ::mmap(nullptr, kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  ::testing::internal::CaptureStderr();
  storage()->register_memory(static_cast<std::byte*>(nothing), kMiB);
  const std::string log = ::testing::internal::GetCapturedStderr();
  if (under_test_.kind == "uring") {
    EXPECT_NE(log.find("not registered"), std::string::npos) << log;
  }
  const int file = create("a", 2 * kIoAlign);
  EXPECT_TRUE(transfer_now(storage(), Op::kWrite, file, 0, memory.data(), 2 * kIoAlign).ok());
  storage()->close(file);
  ::munmap(nothing, kMiB);
}

TEST_P(PosixStorageTest, FilesArePrivateAndClosedOnExec) {
  const int file = create("a", 16 * kIoAlign);
  ASSERT_OK(storage()->write_file(path("b"), "x"));
  ASSERT_OK(storage()->make_directory(path("d/e")));
  struct stat info;
  for (const auto& [name, mode] : {std::pair("a", 0600), {"b", 0600}, {"d", 0700}, {"d/e", 0700}}) {
    ASSERT_EQ(::stat(path(name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, static_cast<mode_t>(mode)) << name;
  }
  ASSERT_EQ(::stat(path("a").c_str(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, 16 * kIoAlign) << "not allocated";
  for (int fd = 3; fd < 64; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    const std::string link = strf("/proc/self/fd/%d", fd);
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(link, error).string();
    if (flags >= 0 && target == path("a")) {
      EXPECT_NE(flags & FD_CLOEXEC, 0);
    }
  }
  storage()->close(file);
}

TEST_P(PosixStorageTest, LinksAreNotFollowedAndOnlyFilesAreTaken) {
  ASSERT_OK(storage()->write_file(path("real"), "x"));
  std::filesystem::create_symlink(path("real"), path("link"));
  EXPECT_EQ(storage()->write_file(path("link"), "y").code(), Exit::kCannotCreate);
  EXPECT_EQ(storage()->read_file(path("link"), 10).status().code(), Exit::kBadData);
  EXPECT_EQ(storage()->open(path("link"), kIoAlign, FileUse::kCreate).status().code(),
            Exit::kCannotCreate);
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(storage()->read_file(path("fifo"), 10).status().code(), Exit::kBadData);
  EXPECT_EQ(storage()->write_file(path("fifo"), "y").code(), Exit::kCannotCreate);
  EXPECT_EQ(storage()->open(path("fifo"), kIoAlign, FileUse::kUpdate).status().code(),
            Exit::kMismatch);
}

// Somebody else may keep the file under its second name: it is read, but never written.
TEST_P(PosixStorageTest, FilesOfTwoNamesAreNotWritten) {
  ASSERT_OK(storage()->write_file(path("real"), "thesis"));
  std::filesystem::create_hard_link(path("real"), path("name"));
  EXPECT_EQ(storage()->write_file(path("name"), "y").code(), Exit::kCannotCreate);
  EXPECT_EQ(storage()->reserve_file(path("name"), kIoAlign).code(), Exit::kCannotCreate);
  EXPECT_EQ(*storage()->read_file(path("name"), 10), "thesis");
  Result<int> file = storage()->open(path("bulk"), kIoAlign, FileUse::kCreate);
  ASSERT_OK(file.status());
  storage()->close(*file);
  std::filesystem::create_hard_link(path("bulk"), path("other"));
  EXPECT_EQ(storage()->open(path("other"), kIoAlign, FileUse::kUpdate).status().code(),
            Exit::kCannotCreate);
  Result<int> read = storage()->open(path("other"), kIoAlign, FileUse::kRead);
  ASSERT_OK(read.status());
  storage()->close(*read);
}

TEST_P(PosixStorageTest, ALinkToADirectoryIsNone) {
  ASSERT_OK(storage()->make_directory(path("real")));
  ASSERT_OK(storage()->write_file(path("real/thesis"), "years of work"));
  std::filesystem::create_directory_symlink(path("real"), path("link"));
  EXPECT_EQ(storage()->list_directory(path("link")).status().code(), Exit::kBadData);
  EXPECT_EQ(storage()->remove_directory(path("link")).code(), Exit::kBadData);
  EXPECT_FALSE(storage()->is_directory(path("link")));
  EXPECT_TRUE(storage()->is_directory(path("real")));
  EXPECT_TRUE(storage()->exists(path("link")));
  EXPECT_EQ(*storage()->read_file(path("real/thesis"), 99), "years of work");
}

// Written over, neither emptied nor made anew, so that its room stays its own.
TEST_P(PosixStorageTest, AReservedFileKeepsItsRoom) {
  constexpr int64_t kBytes = 64 * kKiB;
  const auto allocated = [&] {
    struct stat info = {};
    EXPECT_EQ(::stat(path("a").c_str(), &info), 0);
    return info.st_blocks * 512;
  };
  ASSERT_OK(storage()->reserve_file(path("a"), kBytes));
  if (allocated() == 0) GTEST_SKIP() << "SKIPPED: this file system does not allocate";
  EXPECT_EQ(*storage()->read_file(path("a"), 99), "");
  for (const char* text : {"five.", "five+"}) {
    ASSERT_OK(storage()->write_file(path("a"), text));
    EXPECT_EQ(*storage()->read_file(path("a"), 99), text);
    EXPECT_GE(allocated(), kBytes);
  }
  ASSERT_OK(storage()->write_file(path("a"), "three"));
  ASSERT_OK(storage()->reserve_file(path("a"), kBytes));
  EXPECT_EQ(*storage()->read_file(path("a"), 99), "three");
  EXPECT_GE(allocated(), kBytes);
}

}  // namespace
}  // namespace pagoda
