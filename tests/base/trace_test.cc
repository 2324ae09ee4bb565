#include "base/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/trace_file.h"

namespace pagoda {
namespace {

TraceFile written(const Trace& trace, const TempDir& dir) {
  const Status status = trace.write(dir.file("trace.json"));
  CHECK(status.ok(), "%s", status.message().c_str());
  return TraceFile::read(dir.file("trace.json"));
}

// No two spans of a row at the same time.
void expect_rows_in_order(TraceFile file) {
  std::stable_sort(file.spans.begin(), file.spans.end(),
                   [](const auto& a, const auto& b) { return a.begin_us < b.begin_us; });
  std::map<std::string, int64_t> end_us;
  for (const TraceFile::Span& span : file.spans) {
    const auto [it, first] = end_us.emplace(span.group + "/" + span.row, INT64_MIN);
    EXPECT_GE(span.begin_us, it->second) << it->first << ": " << span.name;
    it->second = span.end_us;
  }
}

TEST(Trace, HoldsSpansWithTheirLanesAndArguments) {
  TempDir dir;
  Trace trace;
  const Trace::Lane lane = trace.lane("streams", "compute 0");
  EXPECT_EQ(trace.lane("streams", "compute 0"), lane);
  const Trace::Lane other = trace.lane("disk", "compute 0");
  EXPECT_NE(other, lane);
  trace.start();
  const int64_t now = monotonic_us();
  trace.span(lane, now, now + 7, TraceLabel{"a \"b\"\n\xc3\xa4", {}, 0}.add("layer", 3));
  trace.span(other, now + 2, now + 3, {"c", {}, 0});
  const TraceFile file = written(trace, dir);
  ASSERT_EQ(file.spans.size(), 2u);
  EXPECT_EQ(file.spans[0].group, "streams");
  EXPECT_EQ(file.spans[0].row, "compute 0");
  EXPECT_EQ(file.spans[0].name, "a \"b\"\n\xc3\xa4");
  EXPECT_EQ(file.spans[0].end_us - file.spans[0].begin_us, 7);
  EXPECT_EQ(file.spans[0].args, (std::map<std::string, int64_t>{{"layer", 3}}));
  EXPECT_EQ(file.spans[1].group, "disk");
  EXPECT_EQ(file.spans[1].begin_us - file.spans[0].begin_us, 2);
  EXPECT_EQ(file.cut_events, 0);
}

// Two traces in one file, the second by a clock that is 5 us behind and half as fast.
TEST(Trace, StandsBesideOthersInAFile) {
  TempDir dir;
  Trace first, second;
  for (Trace* trace : {&first, &second}) trace->start();
  first.span(first.lane("disk", "reads"), 1000, 1010, {"a", {}, 0});
  second.span(second.lane("disk", "reads"), 2020, 2030, TraceLabel{"b", {}, 0}.add("bytes", 7));
  const std::vector<Trace::Span> held = second.spans(second.lane("disk", "reads"));
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].end_us, 2030);
  EXPECT_EQ(held[0].label.name, "b");
  std::string text = Trace::begin_text();
  const Trace::Sink sink = [&](const std::string& more) {
    text += more;
    return Status();
  };
  ASSERT_TRUE(first.write_part({"rank 0 ", 0, 900, {}}, sink).ok());
  const auto clock = [](int64_t us) { return 5 + us / 2; };
  ASSERT_TRUE(second.write_part({"rank 1 ", 100, 900, clock}, sink).ok());
  put_file(dir.file("trace.json"), text + Trace::end_text(3));
  const TraceFile file = TraceFile::read(dir.file("trace.json"));
  ASSERT_EQ(file.spans.size(), 2u);
  EXPECT_EQ(file.spans[0].group, "rank 0 disk");
  EXPECT_EQ(file.spans[0].begin_us, 100);
  EXPECT_EQ(file.spans[0].end_us, 110);
  EXPECT_EQ(file.spans[1].group, "rank 1 disk");
  EXPECT_EQ(file.spans[1].row, "reads");
  EXPECT_EQ(file.spans[1].begin_us, 115);  // 5 + 1010 - 900
  EXPECT_EQ(file.spans[1].end_us, 120);
  const auto sums = file.of_track("rank 1 disk", "reads so far");
  ASSERT_EQ(sums.size(), 1u);
  EXPECT_EQ(sums[0].at_us, 120);
  EXPECT_EQ(file.cut_events, 3);
}

TEST(Trace, HoldsNothingWhileItIsOff) {
  TempDir dir;
  Trace trace;
  const Trace::Lane lane = trace.lane("g", "l");
  { const TraceScope scope(&trace, lane, "before"); }
  trace.span(lane, 1, 2, {"before", {}, 0});
  trace.start();
  { const TraceScope scope(&trace, lane, "within"); }
  { const TraceScope nowhere(nullptr, lane, "nowhere"); }
  trace.stop();
  trace.span(lane, 1, 2, {"after", {}, 0});
  trace.counter(lane, 5);
  const TraceFile file = written(trace, dir);
  ASSERT_EQ(file.spans.size(), 1u);
  EXPECT_EQ(file.spans[0].name, "within");
  EXPECT_TRUE(file.numbers.empty());
}

TEST(Trace, OverlappingSpansGetAsFewRowsAsNeeded) {
  TempDir dir;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Trace trace;
    const Trace::Lane lane = trace.lane("disk", "reads");
    trace.start();
    const int64_t now = monotonic_us();
    std::vector<int> in_flight(400, 0);  // the reference: spans at each microsecond
    for (int i = 0; i < 60; ++i) {
      const int64_t begin = random() % 300, length = 1 + random() % 90;
      for (int64_t t = begin; t < begin + length; ++t) ++in_flight[static_cast<size_t>(t)];
      trace.span(lane, now + begin, now + begin + length, {"read", {}, 0});
    }
    const TraceFile file = written(trace, dir);
    EXPECT_EQ(file.spans.size(), 60u);
    expect_rows_in_order(file);
    std::map<std::string, int> rows;
    for (const TraceFile::Span& span : file.spans) ++rows[span.row];
    EXPECT_EQ(static_cast<int>(rows.size()), *std::max_element(in_flight.begin(), in_flight.end()));
    EXPECT_EQ(file.of_lane("reads").size(), 60u);
  }
}

TEST(Trace, SumsUpBytesAtTheEndOfEachMove) {
  TempDir dir;
  Trace trace;
  const Trace::Lane lane = trace.lane("streams", "upload 0");
  trace.start();
  const int64_t now = monotonic_us();
  trace.span(lane, now, now + 30, TraceLabel{"slow", {}, 0}.add(kTraceBytes, 100));
  trace.span(lane, now + 1, now + 10, TraceLabel{"quick", {}, 0}.add(kTraceBytes, 11));
  trace.span(lane, now + 40, now + 50, {"no move", {}, 0});
  const auto sums = written(trace, dir).of_track("streams", "upload 0 so far");
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[0].value, 11);
  EXPECT_EQ(sums[1].value, 111);
  EXPECT_EQ(sums[1].at_us - sums[0].at_us, 20);
}

TEST(Trace, IsBoundedAndSaysWhatItLeftOut) {
  TempDir dir;
  Trace trace(/*most_events=*/10);
  const Trace::Lane lane = trace.lane("g", "l");
  trace.start();
  for (int i = 0; i < 25; ++i) {
    trace.span(lane, trace.events(), trace.events() + 1, {strf("span %d", i), {}, 0});
  }
  trace.counter(lane, 1);
  EXPECT_EQ(trace.events(), 10);
  EXPECT_EQ(trace.cut_events(), 16);
  const TraceFile file = written(trace, dir);
  EXPECT_EQ(file.spans.size(), 10u);
  EXPECT_EQ(file.spans.back().name, "span 9");
  EXPECT_EQ(file.cut_events, 16);
}

// Under ThreadSanitizer: recorded on several threads while it is switched and written.
TEST(Trace, ManyThreadsRecordWhileItIsWritten) {
  constexpr int kThreads = 4, kSpans = 500;
  TempDir dir;
  Trace trace;
  std::vector<std::thread> threads;
  trace.start();
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&trace, t] {
      const Trace::Lane lane = trace.lane("threads", strf("thread %d", t));
      for (int i = 0; i < kSpans; ++i) {
        const TraceScope scope(&trace, lane, "work");
        trace.counter(lane, i);
      }
    });
  }
  EXPECT_TRUE(trace.write(dir.file("early.json")).ok());
  for (std::thread& thread : threads) thread.join();
  const TraceFile file = written(trace, dir);
  EXPECT_EQ(file.spans.size(), static_cast<size_t>(kThreads * kSpans));
  EXPECT_EQ(file.of_track("threads", "thread 2").size(), static_cast<size_t>(kSpans));
  expect_rows_in_order(file);
}

TEST(Trace, AFileThatCannotBeWrittenIsAStatus) {
  TempDir dir;
  const Status status = Trace().write(dir.file("none/trace.json"));
  EXPECT_EQ(status.code(), Exit::kCannotCreate) << status.message();
}

}  // namespace
}  // namespace pagoda
