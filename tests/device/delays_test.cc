// Who a wait was for: chains of delays against a walk in single microseconds, and through streams.
#include "device/delays.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "device/device.h"

namespace pagoda {
namespace {

void sleep_us(int64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

int64_t waited_us(const StreamTime& time, WorkKind kind) {
  return time.waited_us[static_cast<size_t>(kind)];
}

std::unique_ptr<Stream> stream_of(WorkKind kind, Trace* trace = nullptr) {
  return make_host_stream({work_kind_name(kind), kind, trace}, std::make_shared<ThreadPool>(1));
}

TEST(Delays, WorkThatNothingHeldUpIsTheWholeWait) {
  const auto parts = Delays(WorkKind::kUpload).split(10, 30);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].by, WorkKind::kUpload);
  EXPECT_EQ(parts[0].begin_us, 10);
  EXPECT_EQ(parts[0].end_us, 30);
  EXPECT_TRUE(Delays().split(10, 10).empty());
  const auto unknown = Delays(WorkKind::kUpload, 25, Delays()).split(10, 30);
  ASSERT_EQ(unknown.size(), 2u);
  EXPECT_EQ(unknown[0].by, WorkKind::kUpload);
  EXPECT_EQ(unknown[0].begin_us, 25);
  EXPECT_EQ(unknown[1].by, WorkKind::kOther);
  EXPECT_EQ(Delays().split(1, 5)[0].by, WorkKind::kOther);
}

TEST(Delays, PartsAreThoseOfAWalkThroughTime) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    // The reference: who was at work in each microsecond, built from the oldest link on.
    const auto kind = [&random] { return static_cast<WorkKind>(random() % kWorkKinds); };
    WorkKind by = kind();
    Delays delays(by);
    std::vector<WorkKind> at_work;
    const auto work = [&] { at_work.resize(at_work.size() + 1 + random() % 20, by); };
    work();
    for (int links = static_cast<int>(random() % 32); links > 0; --links) {
      by = kind();
      delays = Delays(by, static_cast<int64_t>(at_work.size()), delays);
      work();
    }
    const auto end_us = static_cast<int64_t>(at_work.size());
    const auto begin_us = static_cast<int64_t>(random() % at_work.size());
    int64_t covered_to = end_us;
    for (const Delays::Part& part : delays.split(begin_us, end_us)) {
      EXPECT_EQ(part.end_us, covered_to);
      EXPECT_LT(part.begin_us, part.end_us);
      for (int64_t t = part.begin_us; t < part.end_us; ++t) {
        EXPECT_EQ(at_work[static_cast<size_t>(t)], part.by) << "microsecond " << t;
      }
      covered_to = part.begin_us;
    }
    EXPECT_EQ(covered_to, begin_us);
  }
}

TEST(Delays, LongChainsCountAsTheirOldestLinkThatIsKept) {
  Delays delays(WorkKind::kOther);
  for (int i = 1; i <= 90; ++i) {
    delays = Delays(i % 2 == 0 ? WorkKind::kUpload : WorkKind::kFetch, 10 * i, delays);
  }
  int64_t sum = 0;
  for (const Delays::Part& part : delays.split(0, 910)) {
    EXPECT_NE(part.by, WorkKind::kOther);
    sum += part.end_us - part.begin_us;
  }
  EXPECT_EQ(sum, 910);
}

// compute waits for upload, which waited for the disk, which worked first.
TEST(StreamTime, TellsWhomAWaitWasFor) {
  constexpr int64_t kPause = 100000;  // a thread may start late, but not so late
  auto compute = stream_of(WorkKind::kCompute), upload = stream_of(WorkKind::kUpload);
  Event fetched = Event::make(), began = Event::make();
  const int64_t start_us = monotonic_us();
  const StreamTime before = compute->time();
  upload->wait(fetched);
  upload->enqueue([] { sleep_us(kPause); });
  const Event uploaded = upload->record();
  compute->enqueue([began]() mutable { began.signal(); });
  compute->wait(uploaded);
  compute->enqueue([] { sleep_us(kPause); });
  const Event done = compute->record();
  began.wait();
  sleep_us(kPause);
  fetched.signal(Delays(WorkKind::kFetch));
  done.wait();
  const StreamTime time = compute->time() - before;
  const int64_t elapsed_us = monotonic_us() - start_us;
  EXPECT_GT(waited_us(time, WorkKind::kFetch), 0);
  EXPECT_GE(waited_us(time, WorkKind::kUpload), kPause - 1);
  EXPECT_LE(waited_us(time, WorkKind::kUpload) + waited_us(time, WorkKind::kFetch), elapsed_us);
  EXPECT_EQ(time.all_waits_us(),
            waited_us(time, WorkKind::kFetch) + waited_us(time, WorkKind::kUpload) +
                waited_us(time, WorkKind::kWake));
  EXPECT_GE(time.busy_us, kPause - 1);
  EXPECT_GE(time.idle_us, 0);
  EXPECT_LE(time.busy_us + time.idle_us + time.all_waits_us(), elapsed_us);
  sleep_us(kPause);
  // The stream's thread may have become idle a little after the first reading.
  EXPECT_GT((compute->time() - before).idle_us, time.idle_us) << "idle until now";
}

TEST(StreamTime, OfSeveralEventsTheLastIsToBlame) {
  Event first = Event::make(), last = Event::make();
  const Event both = when_all({last, first});
  first.signal(Delays(WorkKind::kDownload));
  last.signal(Delays(WorkKind::kOptimizer));
  const auto parts = both.followed_by(WorkKind::kFetch).split(0, 5);  // before it happened
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].by, WorkKind::kOptimizer);
}

TEST(StreamTime, WorkBegunWhenAnEventHappenedIsHeldUpByIt) {
  Event event = Event::make();
  const int64_t before_us = monotonic_us();
  sleep_us(2000);
  event.signal(Delays(WorkKind::kOptimizer));
  const int64_t after_us = monotonic_us();
  const auto parts = event.followed_by(WorkKind::kFetch).split(before_us, after_us + 1000);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].by, WorkKind::kFetch);
  EXPECT_EQ(parts[1].by, WorkKind::kOptimizer);
  EXPECT_GE(parts[0].begin_us, before_us + 2000);
  EXPECT_LE(parts[0].begin_us, after_us);
  EXPECT_EQ(Event().followed_by(WorkKind::kFetch).split(0, 9)[0].by, WorkKind::kFetch);
}

}  // namespace
}  // namespace pagoda
