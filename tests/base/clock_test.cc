// Processor time is told to the moment, not to the newest tick of the kernel's clock.
#include "base/clock.h"

#include <gtest/gtest.h>

#include <set>

namespace pagoda {
namespace {

// A thread at work meets a tick every 1 to 10 ms; at a read it has run for microseconds more.
TEST(Clock, TellsProcessorTimeBetweenTicks) {
  for (int64_t (*read)() : {thread_cpu_us, process_cpu_us}) {
    std::set<int64_t> seen;
    const int64_t end_us = read() + 1000;
    for (int64_t now_us = read(); now_us < end_us; now_us = read()) seen.insert(now_us);
    EXPECT_GT(seen.size(), 20u);
  }
}

}  // namespace
}  // namespace pagoda
