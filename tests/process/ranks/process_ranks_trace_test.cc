// The trace of a run of several processes that mpirun starts on this machine.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "tests/testing/ranks/mpi_run_test.h"
#include "tests/testing/trace_file.h"

namespace pagoda {
namespace {

using RanksTest = MpiRunTest;

// One trace of all ranks, at the times of rank 0's clock.
TEST_F(RanksTest, ATraceOfAllRanks) {
  Flags flags = flags_of("run", 20);
  const ProcessResult result = mpirun(3, train(flags, {"--trace-steps", "2:19"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("; the clocks of its 3 ranks were compared to within "),
            std::string::npos)
      << result.err;
  const TraceFile trace = TraceFile::read(dir_.file("run/trace.json"));
  EXPECT_EQ(trace.cut_events, 0);
  std::map<std::string, int> steps;  // by the group that they are in
  // [rank, peer, from, to, number]
  std::map<std::array<int64_t, 5>, TraceFile::Span> sent, received;
  for (const TraceFile::Span& span : trace.spans) {
    if (span.lane() == "steps") ++steps[span.group];
    int rank = 0, peer = 0;
    if (!span.group.ends_with(" network")) continue;
    ASSERT_EQ(std::sscanf(span.group.c_str(), "rank %d ", &rank), 1);
    const auto key = [&](int one, int other) {
      return std::array<int64_t, 5>{one, other, span.args.at("from"), span.args.at("to"),
                                    span.args.at("number")};
    };
    if (std::sscanf(span.lane().c_str(), "to rank %d", &peer) == 1) sent[key(rank, peer)] = span;
    if (std::sscanf(span.lane().c_str(), "from rank %d", &peer) == 1) {
      received[key(peer, rank)] = span;
    }
  }
  const std::map<std::string, int> all = {
      {"rank 0 run", 18}, {"rank 1 run", 18}, {"rank 2 run", 18}};
  EXPECT_EQ(steps, all);
  int pairs = 0;
  for (const auto& [key, span] : received) {
    const auto other = sent.find(key);
    if (other == sent.end()) continue;
    ++pairs;
    EXPECT_GE(span.end_us, other->second.begin_us) << span.name;
    EXPECT_EQ(span.args.at("bytes"), other->second.args.at("bytes"));
  }
  EXPECT_GE(pairs, 1000) << sent.size() << " " << received.size();
  flags["train.output_dir"] = dir_.file("untraced");
  ASSERT_EQ(run(train(flags)).code, 0);
  EXPECT_TRUE(exported("run") == exported("untraced"));
}

// Each rank has rows of two others in its experts' groups. In rounds these come by two streams
// alternately, and are put in their places on the stream by which they came.
TEST_F(RanksTest, RowsArePlacedOnBothStreams) {
  Flags flags = flags_of("alone", 3);
  ASSERT_EQ(run(train(flags)).code, 0);
  for (const char* exchange : {"flat", "rounds"}) {
    SCOPED_TRACE(exchange);
    flags["train.output_dir"] = dir_.file(exchange);
    flags["parallel.exchange"] = exchange;
    const ProcessResult result = mpirun(3, train(flags, {"--trace-steps", "2:3"}));
    ASSERT_EQ(result.code, 0) << result.err;
    int64_t by_lane = 0, by_second = 0;
    for (const TraceFile::Span& span : TraceFile::read(dir_.file(exchange) + "/trace.json").spans) {
      if (!span.name.starts_with("place rows")) continue;
      by_lane += span.lane() == "in 0";
      by_second += span.lane() == "second in 0";
    }
    EXPECT_GT(by_lane, 0);
    EXPECT_EQ(by_second > 0, exchange == std::string("rounds"));
    EXPECT_TRUE(exported(exchange) == exported("alone"));
  }
}

}  // namespace
}  // namespace pagoda
