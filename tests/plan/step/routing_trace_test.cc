// Routing as text: what is written is read back, what is cut or spoilt is left out or refused; and
// the traffic between devices that it makes, against sending every token by itself.
#include "plan/step/routing_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "plan/exchange/routed_traffic.h"
#include "plan/rounds/traffic.h"
#include "report/routing_recorder.h"
#include "tests/testing/files.h"
#include "tests/testing/storage/allocations.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

int64_t pick(std::mt19937& random, int64_t n) {
  return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
}

// `tokens` tokens that choose k different experts each, some experts more often.
std::vector<int64_t> random_choices(std::mt19937& random, int64_t tokens,
                                    const RoutedShape& shape) {
  std::vector<int64_t> counts(static_cast<size_t>(shape.num_experts), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<uint8_t> chosen(counts.size(), 0);
    for (int64_t c = 0; c < shape.experts_per_token;) {
      const auto e = static_cast<size_t>(pick(random, 1 + pick(random, shape.num_experts)));
      if (chosen[e]++ > 0) continue;
      ++counts[e];
      ++c;
    }
  }
  return counts;
}

RoutingTrace random_trace(std::mt19937& random) {
  RoutingTrace trace;
  trace.shape.num_experts = 1 + pick(random, 9);
  trace.shape.experts_per_token = 1 + pick(random, trace.shape.num_experts);
  trace.shape.microbatches = 1 + pick(random, 4);
  for (int64_t l = 1 + pick(random, 5); l > 0; --l) trace.shape.is_moe.push_back(random() % 2);
  trace.shape.is_moe.push_back(1);
  int64_t step = 0;
  for (int64_t s = pick(random, 5); s > 0; --s) {
    RoutedStep& routed = trace.steps.emplace_back();
    routed.step = step += 1 + pick(random, 3);
    for (int64_t b = 0; b < trace.shape.microbatches; ++b) {
      auto& layers = routed.routing.emplace_back();
      for (const uint8_t moe : trace.shape.is_moe) {
        layers.emplace_back();
        if (moe) layers.back() = random_choices(random, pick(random, 30), trace.shape);
      }
    }
  }
  return trace;
}

std::string text_of(const RoutingTrace& trace) {
  std::string text = routing_header(trace.shape);
  for (const RoutedStep& step : trace.steps) text += routing_lines(step.step, step.routing);
  return text;
}

void expect_equal(const RoutingTrace& a, const RoutingTrace& b) {
  EXPECT_EQ(a.shape, b.shape);
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t s = 0; s < a.steps.size(); ++s) {
    EXPECT_EQ(a.steps[s].step, b.steps[s].step);
    EXPECT_EQ(a.steps[s].routing, b.steps[s].routing);
  }
}

TEST(RoutingTrace, ReadsWhatItWrites) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const RoutingTrace trace = random_trace(random);
    auto read = parse_routing_trace(text_of(trace));
    ASSERT_TRUE(read.ok()) << read.status().message();
    expect_equal(*read, trace);
  }
}

TEST(RoutingTrace, IsTheTextItsHeaderDescribes) {
  const RoutingTrace trace{{3, 2, 2, {0, 1}}, {{7, {{{}, {2, 2, 0}}, {{}, {1, 0, 1}}}}}};
  EXPECT_EQ(text_of(trace),
            "pagoda-routing 1 experts 3 experts_per_token 2 microbatches 2 layers 2 "
            "with_experts 1\n"
            "7 0 1 2 2 0\n"
            "7 1 1 1 0 1\n");
}

// Cut anywhere: the steps before the cut are there, the one it goes through is not.
TEST(RoutingTrace, KeepsWholeStepsOfWhatIsCut) {
  std::mt19937 random(5);
  RoutingTrace trace = random_trace(random);
  while (trace.steps.size() < 3) trace = random_trace(random);
  const std::string text = text_of(trace);
  const std::string header = routing_header(trace.shape);
  for (size_t bytes = 0; bytes <= text.size(); ++bytes) {
    auto read = parse_routing_trace(std::string_view(text).substr(0, bytes));
    ASSERT_EQ(read.ok(), bytes >= header.size()) << bytes;
    if (!read.ok()) continue;
    size_t whole = 0;
    for (size_t end = header.size(); whole < trace.steps.size(); ++whole) {
      end += routing_lines(trace.steps[whole].step, trace.steps[whole].routing).size();
      if (end > bytes) break;
    }
    ASSERT_EQ(read->steps.size(), whole) << bytes;
  }
}

// Without any one of its lines a step is left out, and all others are there.
TEST(RoutingTrace, LeavesOutAStepThatMissesALine) {
  std::mt19937 random(6);
  RoutingTrace trace = random_trace(random);
  while (trace.steps.size() < 3 || trace.shape.microbatches < 2) trace = random_trace(random);
  std::vector<std::string> lines;
  std::vector<size_t> step_of_line;
  for (size_t s = 0; s < trace.steps.size(); ++s) {
    const std::string text = routing_lines(trace.steps[s].step, trace.steps[s].routing);
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at) + 1;
      lines.push_back(text.substr(at, end - at));
      step_of_line.push_back(s);
      at = end;
    }
  }
  for (size_t left_out = 0; left_out < lines.size(); ++left_out) {
    std::string text = routing_header(trace.shape);
    for (size_t i = 0; i < lines.size(); ++i) {
      if (i != left_out) text += lines[i];
    }
    RoutingTrace rest = trace;
    rest.steps.erase(rest.steps.begin() + static_cast<int64_t>(step_of_line[left_out]));
    auto read = parse_routing_trace(text);
    ASSERT_TRUE(read.ok()) << read.status().message();
    expect_equal(*read, rest);
  }
}

TEST(RoutingTrace, RefusesNonsense) {
  const std::string header =
      "pagoda-routing 1 experts 3 experts_per_token 2 microbatches 2 layers 3 with_experts 0 2\n";
  const auto refused = [](const std::string& text, const char* words) {
    const Status status = parse_routing_trace(text).status();
    EXPECT_EQ(status.code(), Exit::kBadData) << text;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  };
  refused("", "line 1");
  refused(header.substr(0, header.size() - 1), "not whole");
  refused("step,layer\n", "does not begin with");
  refused("pagoda-routing 2 experts 3\n", "version 1");
  refused("pagoda-routing 1 experts 0 experts_per_token 2\n", "does not tell experts");
  refused("pagoda-routing 1 experts 3 experts_per_token 4 microbatches 1 layers 1 with_experts 0\n",
          "more experts than there are");
  refused("pagoda-routing 1 experts 3 experts_per_token 1 microbatches 1 layers 1 with_experts 1\n",
          "ascending");
  refused("pagoda-routing 1 experts 3 experts_per_token 1 microbatches 1048576 layers 1048576 "
          "with_experts 0\n", "so many");
  refused(header + "1 0 0 1 1\n", "line 2: it does not tell the tokens of 3 experts");
  refused(header + "1 0 0 1 1 0 0\n", "behind the last expert");
  refused(header + "1 0 0 1 1 1\n", "3 choices");
  refused(header + "1 0 0 1 -1 2\n", "tokens of 3 experts");
  refused(header + "1 0 0 1  1\n", "tokens of 3 experts");
  refused(header + "1 0 0 nan 1 1\n", "tokens of 3 experts");
  refused(header + "1 0 0 9223372036854775807 1 1\n", "tokens of 3 experts");
  refused(header + "0 0 0 1 1 0\n", "a step, a microbatch and a layer");
  refused(header + "1 2 0 1 1 0\n", "a step, a microbatch and a layer");
  refused(header + "1 0 3 1 1 0\n", "a step, a microbatch and a layer");
  refused(header + "1 0 1 1 1 0\n", "does not come here");  // without experts
  refused(header + "1 0 0 1 1 0\n1 0 0 1 1 0\n", "line 3");
  refused(header + "2 0 0 1 1 0\n1 0 0 1 1 0\n", "step 1, microbatch 0, layer 0 does not come");
}

TEST(RoutingTrace, NeverTakesMoreBytesThanItSays) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(seed);
    const RoutingTrace trace = random_trace(random);
    RunShape shape;
    shape.is_moe = trace.shape.is_moe;
    shape.num_layers = static_cast<int64_t>(shape.is_moe.size());
    shape.num_experts = trace.shape.num_experts;
    shape.experts_per_token = trace.shape.experts_per_token;
    shape.microbatches = trace.shape.microbatches;
    shape.microbatch_tokens = 30;
    EXPECT_EQ(routed_shape(shape), trace.shape);
    for (const RoutedStep& step : trace.steps) {
      EXPECT_LE(static_cast<int64_t>(routing_lines(int64_t{1} << 40, step.routing).size()),
                most_routing_bytes(shape));
    }
  }
}

// A short line must not stand for a step of a million lists.
TEST(RoutingTrace, LayersWithoutExpertsTakeNoMoreThanTheText) {
  std::string forged = "pagoda-routing 1 experts 1 experts_per_token 1 microbatches 1 "
                       "layers 1048576 with_experts 0\n";
  std::string real = "pagoda-routing 1 experts 8 experts_per_token 1 microbatches 1 layers 48 "
                     "with_experts 1 3 5 7 9 11 13 15 17 19 21 23\n";
  for (int64_t step = 1; step <= 20000; ++step) forged += std::to_string(step) + " 0 0 1\n";
  for (int64_t step = 1; step <= 2000; ++step) {
    for (int layer = 1; layer < 24; layer += 2) {
      real += std::to_string(step) + " 0 " + std::to_string(layer) + " 1 0 0 0 0 0 0 0\n";
    }
  }
  const Status refused = parse_routing_trace(forged).status();
  EXPECT_EQ(refused.code(), Exit::kBadData);
  EXPECT_NE(refused.message().find("layers without experts"), std::string::npos);
  EXPECT_EQ(parse_routing_trace(real).value().steps.size(), 2000u);
}

// A step that has one of its lines must not stand for one of a million lists either: those of the
// step before are filled anew, and none is made.
TEST(RoutingTrace, StepsThatMissLinesTakeNoMoreThanTheText) {
  const auto allocations_of = [](int steps) {
    std::string text =
        "pagoda-routing 1 experts 1 experts_per_token 1 microbatches 1048576 "
        "layers 1 with_experts 0\n";
    for (int step = 1; step <= steps; ++step) text += std::to_string(step) + " 0 0 0\n";
    const int64_t before = allocations;
    EXPECT_TRUE(parse_routing_trace(text).value().steps.empty());
    return allocations - before;
  };
  const int64_t few = allocations_of(2);
  EXPECT_GE(few, 1048576) << "a list for each microbatch";
  EXPECT_EQ(allocations_of(20), few);
  // What such a step has is not in the next one.
  const std::string header =
      "pagoda-routing 1 experts 2 experts_per_token 1 microbatches 2 layers 2 with_experts 0 1\n";
  const auto steps_of = [&](const char* lines) {
    return parse_routing_trace(header + lines).take().steps;
  };
  EXPECT_TRUE(steps_of("1 0 0 3 4\n1 0 1 5 6\n1 1 0 7 8\n2 1 1 9 9\n").empty());
  const auto whole = steps_of("1 0 0 3 4\n1 0 1 5 6\n2 0 0 1 0\n2 0 1 2 0\n2 1 0 3 0\n2 1 1 4 0\n");
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].step, 2);
  EXPECT_EQ(whole[0].routing, (Routing{{{1, 0}, {2, 0}}, {{3, 0}, {4, 0}}}));
}

TEST(RoutingRecorder, GoesOnBehindTheStepThatIsKept) {
  const TempDir dir;
  const std::string path = dir.file("routing");
  const RoutedShape shape{3, 1, 1, {1}};
  const auto routing = [](int64_t tokens) { return Routing{{{tokens, 1, 0}}}; };
  const std::string header = routing_header(shape);
  {
    auto recorder = RoutingRecorder::open(path, shape, -1).take();
    for (const int64_t step : {1, 2, 3}) recorder->record(step, routing(step));
  }
  EXPECT_EQ(get_file(path), header + "1 0 0 1 1 0\n2 0 0 2 1 0\n3 0 0 3 1 0\n");
  EXPECT_EQ(RoutingRecorder::check_new(path).code(), Exit::kCannotCreate);
  EXPECT_EQ(RoutingRecorder::open(path, shape, -1).status().code(), Exit::kCannotCreate);
  RoutingRecorder::open(path, shape, 2).take()->record(3, routing(7));
  EXPECT_EQ(get_file(path), header + "1 0 0 1 1 0\n2 0 0 2 1 0\n3 0 0 7 1 0\n");
  const RoutedShape other{3, 1, 2, {1}};
  EXPECT_EQ(RoutingRecorder::open(path, other, 2).status().code(), Exit::kCannotCreate);
  EXPECT_EQ(get_file(path), header + "1 0 0 1 1 0\n2 0 0 2 1 0\n3 0 0 7 1 0\n");
  // A file that is not there, or empty, is begun.
  RoutingRecorder::open(dir.file("late"), shape, 2).take()->record(3, routing(7));
  EXPECT_EQ(get_file(dir.file("late")), header + "3 0 0 7 1 0\n");
  put_file(dir.file("other"), "no newline");
  EXPECT_EQ(RoutingRecorder::open(dir.file("other"), shape, 2).status().code(),
            Exit::kCannotCreate);
  EXPECT_EQ(get_file(dir.file("other")), "no newline");
}

// Token by token: part i of n of the tokens is device i's. Microbatches whose tokens the devices'
// parts do not cut, so that nothing is shared out and all is exact.
TEST(RoutedTraffic, IsWhatSendingEveryTokenGives) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const RoutedShape shape{2 + pick(random, 8), 1 + pick(random, 2), 1, {1}};
    const auto devices = static_cast<int32_t>(1 + pick(random, 5));
    const int64_t each = 1 + pick(random, 3), tokens = 1 + pick(random, 20);
    ExpertDevices device_of_expert;
    for (int64_t e = 0; e < shape.num_experts; ++e) {
      device_of_expert.push_back(static_cast<int32_t>(pick(random, devices)));
    }
    SquareMatrix<double> expected(devices);
    LayerRouting routing;
    for (int32_t d = 0; d < devices; ++d) {
      for (int64_t b = 0; b < each; ++b) {
        routing.push_back(random_choices(random, tokens, shape));
        for (size_t e = 0; e < routing.back().size(); ++e) {
          expected.at(d, device_of_expert[e]) += static_cast<double>(routing.back()[e]);
        }
      }
    }
    EXPECT_EQ(routed_traffic(routing, device_of_expert, devices).take(), expected);
  }
}

// A device's part of the tokens is a part of every microbatch it cuts; nothing is lost.
TEST(RoutedTraffic, SharesOutWhatPartsCut) {
  const LayerRouting routing = {{6, 0}, {0, 6}};
  const SquareMatrix<double> three = routed_traffic(routing, {0, 2}, 3).take();
  SquareMatrix<double> expected(3);
  expected.at(0, 0) = 4;
  expected.at(1, 0) = expected.at(1, 2) = 2;
  expected.at(2, 2) = 4;
  EXPECT_EQ(three, expected);
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const RoutedShape shape{8, 2, 1, {1}};
    LayerRouting drawn;
    for (int64_t b = 1 + pick(random, 6); b > 0; --b) {
      drawn.push_back(random_choices(random, pick(random, 40), shape));
    }
    const auto devices = static_cast<int32_t>(1 + pick(random, 8));
    ExpertDevices device_of_expert;
    for (int32_t e = 0; e < 8; ++e) device_of_expert.push_back(e % devices);
    const SquareMatrix<double> traffic = routed_traffic(drawn, device_of_expert, devices).take();
    const std::vector<int64_t> loads =
        device_loads(tokens_per_expert(drawn), device_of_expert, devices);
    const auto rows = static_cast<double>(std::accumulate(loads.begin(), loads.end(), int64_t{0}));
    // Sums of at most 6 x 8 terms, each share rounded once.
    const double tolerance = 50 * 1.2e-16 * rows;
    for (int32_t d = 0; d < devices; ++d) {
      double received = 0, sent = 0;
      for (int32_t other = 0; other < devices; ++other) {
        received += traffic.at(other, d);
        sent += traffic.at(d, other);
      }
      EXPECT_NEAR(received, static_cast<double>(loads[static_cast<size_t>(d)]), tolerance);
      EXPECT_NEAR(sent, rows / devices, tolerance);
    }
  }
}

TEST(RoutedTraffic, RefusesNonsense) {
  const LayerRouting good = {{1, 1}, {2, 0}};
  const auto code = [](const LayerRouting& routing, const ExpertDevices& at, int32_t devices) {
    return routed_traffic(routing, at, devices).status().code();
  };
  EXPECT_EQ(code(good, {0, 1}, 2), Exit::kOk);
  EXPECT_EQ(code({{0, 0}}, {0, 1}, 2), Exit::kOk);  // nothing is sent
  EXPECT_EQ(code({}, {0, 1}, 2), Exit::kUsage);
  EXPECT_EQ(code(good, {0, 2}, 2), Exit::kUsage);
  EXPECT_EQ(code(good, {0, 1, 1}, 2), Exit::kUsage);
  EXPECT_EQ(code(good, {}, 2), Exit::kUsage);
  EXPECT_EQ(code(good, {0, 0}, 0), Exit::kUsage);
  EXPECT_EQ(code({{1, -1}}, {0, 1}, 2), Exit::kUsage);
  EXPECT_EQ(code({{int64_t{1} << 62, 0}}, {0, 1}, 2), Exit::kUsage);
}

}  // namespace
}  // namespace pagoda
