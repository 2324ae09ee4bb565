// What a run says of itself before it starts, against what it then does.
#include "train/report.h"

#include <gtest/gtest.h>

#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

int threads_of_this_process() {
  int threads = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    threads += task.is_directory() ? 1 : 0;
  }
  return threads;
}

TEST(Report, CountsTheThreadsThatAreStarted) {
  for (const auto& [devices, threads] : {std::pair{1, 1}, {1, 3}, {2, 2}, {3, 4}}) {
    SCOPED_TRACE(testing::Message() << devices << " devices, " << threads << " threads");
    TinyRun run;
    run.config().train.host_devices = devices;
    run.config().train.threads = threads;
    const int at_first = threads_of_this_process();
    auto storage = open_storage(IoKind::kThreads, run.dir().path());
    ASSERT_TRUE(storage.ok()) << storage.status().message();
    const int before = threads_of_this_process();
    EXPECT_EQ(before - at_first, kMostStorageThreads);
    auto trainer = Trainer::start(run.config(), false, storage->get());
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    EXPECT_EQ(threads_of_this_process() - before, session_threads(session_options(run.config())));
  }
}

}  // namespace
}  // namespace pagoda
