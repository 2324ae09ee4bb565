// Opening a storage: which one a folder gets, what is said of it, and that looking leaves nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>

#include "base/descriptor.h"
#include "offload/storage_posix.h"
#include "tests/testing/storage/storages.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

// A process that is killed while it probes leaves nothing behind, for there is no name to leave.
TEST(ProbeTest, NamesNoFile) {
  TempDir folder;
  Descriptor nameless(::open(folder.path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!nameless.ok()) GTEST_SKIP() << "SKIPPED: this file system has no files without a name";
  Descriptor events(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_TRUE(events.ok());
  ASSERT_GE(::inotify_add_watch(events.get(), folder.path().c_str(), IN_CREATE), 0);
  EXPECT_FALSE(probe_direct_io(folder.path()).starts_with("not probed"));
  char event[4096];
  EXPECT_EQ(::read(events.get(), event, sizeof(event)), -1) << "a file was created";
}

TEST(OpenStorage, SaysWhatItUses) {
  const TempDir temporary;
  auto threads = open_storage(IoKind::kThreads, temporary.path() + "/not/yet/there");
  ASSERT_TRUE(threads.ok());
  EXPECT_NE((*threads)->describe().find("threads, "), std::string::npos);
  EXPECT_FALSE((*threads)->exists(temporary.path() + "/not"));
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path())) << "the probe left something behind";
  auto chosen = open_storage(IoKind::kAuto, temporary.path());
  ASSERT_TRUE(chosen.ok());
  std::printf("auto: %s\n", (*chosen)->describe().c_str());
}

// Where O_DIRECT is refused, threads are chosen and the reason is said; who insists gets the ring.
TEST(OpenStorage, TakesThreadsWithoutDirectAccess) {
  const auto described = [](IoKind kind, const char* access) {
    auto storage = choose_storage(kind, access);
    return storage.ok() ? (*storage)->describe() : storage.status().message();
  };
  const std::string direct = described(IoKind::kAuto, kDirectAccess);
  const std::string buffered = described(IoKind::kAuto, "buffered (no direct I/O here)");
  EXPECT_TRUE(buffered.starts_with("4 threads, buffered (no direct I/O here)")) << buffered;
  EXPECT_TRUE(described(IoKind::kUring, "buffered (none)").starts_with("io_uring"));
  if (direct.find("io_uring refused") != std::string::npos) GTEST_SKIP() << "SKIPPED: " << direct;
  EXPECT_TRUE(direct.starts_with("io_uring, O_DIRECT")) << direct;
}

// Makes io_uring_setup fail with EPERM for this process and its children.
bool forbid_io_uring() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(filter), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(OpenStorageDeathTest, FallsBackToThreadsAndSaysWhy) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto child = [] {
    const TempDir temporary;
    if (!forbid_io_uring()) ::_exit(1);
    auto chosen = open_storage(IoKind::kAuto, temporary.path());
    if (!chosen.ok()) ::_exit(2);
    std::fprintf(stderr, "auto: %s\n", (*chosen)->describe().c_str());
    const Status forced = open_storage(IoKind::kUring, temporary.path()).status();
    std::filesystem::remove_all(temporary.path());
    ::_exit(forced.code() == Exit::kUnavailable ? 69 : 3);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(69),
              "threads, .*io_uring refused .Operation not permitted");
}

}  // namespace
}  // namespace pagoda
