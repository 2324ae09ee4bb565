// The page about runs, from metrics as runs write them and as nobody should.
#include "report/run_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

class RunPageTest : public testing::Test {
 protected:
  Result<RunHistory> history(const std::string& name, const std::string& lines) {
    std::filesystem::create_directory(dir_.file(name));
    put_file(dir_.file(name) + "/metrics.jsonl", lines);
    return read_history(dir_.file(name));
  }
  static int64_t count(const std::string& text, const std::string& part) {
    int64_t found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
  }
  TempDir dir_;
};

// A step with this loss, wait for the disk, norm, and these loads of layers 1 and 3.
std::string step_line(int step, const char* loss, const char* fetch_s, const char* norm,
                      const char* loads, const char* dead) {
  return strf("{\"type\":\"step\",\"step\":%d,\"loss\":%s,\"step_s\":2.0,"
              "\"stall_s\":{\"fetch\":%s},\"grad_norm\":%s,",
              step, loss, fetch_s, norm) +
         strf("\"experts\":{\"layer\":[1,3],\"max_over_mean\":[%s],\"entropy\":[0.9,0.8],"
              "\"dead\":[%s]}}\n",
              loads, dead);
}

const std::string kRun =
    R"({"type":"run","step":0,"steps":3,"version":"1","options":{"train.steps":3,"a.b":"<x>"}}
{"type":"eval","step":0,"loss":5.5}
)" + step_line(1, "5.0", "0.5", "null", "1.5,2.0", "0,1") +
    step_line(2, "4.0", "1.0", "1.5", "1.25,4.0", "0,3") +
    R"({"type":"warn","step":2,"text":"beware of <b>"}
{"type":"eval","step":2,"loss":4.25}
)";

TEST_F(RunPageTest, SeriesAreThoseOfTheFile) {
  const auto run = history("one", kRun);
  ASSERT_TRUE(run.ok()) << run.status().message();
  const RunHistory& h = run.value();
  EXPECT_EQ(h.name, "one");
  EXPECT_EQ(h.of_steps.at("loss").values, (std::vector<double>{5.0, 4.0}));
  EXPECT_TRUE(std::isnan(h.of_steps.at("grad_norm").values[0]));
  EXPECT_EQ(h.held_out.steps, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(h.stalls.at("fetch").values, (std::vector<double>{0.25, 0.5}));
  EXPECT_EQ(h.layers, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(h.max_over_mean[1].values, (std::vector<double>{2.0, 4.0}));
  EXPECT_EQ(h.dead[1].values, (std::vector<double>{1, 3}));
  EXPECT_EQ(h.warnings.at(0).text, "beware of <b>");
}

TEST_F(RunPageTest, AStepThatComesAgainReplacesWhatWasBehindIt) {
  const auto run = history("again", R"({"type":"step","step":1,"loss":5}
{"type":"step","step":2,"loss":4}
{"type":"step","step":3,"loss":3}
{"type":"step","step":2,"loss":1}
)");
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run.value().of_steps.at("loss").steps, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(run.value().of_steps.at("loss").values, (std::vector<double>{5, 1}));
}

TEST_F(RunPageTest, APageHasTheRunsAndNothingFromOutside) {
  auto one = history("one", kRun);
  auto two =
      history("t<w>o", R"({"type":"run","step":0,"steps":3,"options":{"train.steps":4,"a.b":"<x>"}}
{"type":"step","step":1,"loss":6.0,"step_s":1}
)");
  ASSERT_TRUE(one.ok() && two.ok());
  const std::string page = run_page({one.value(), two.value()});
  EXPECT_NE(page.find("<h2>Loss</h2>"), std::string::npos);
  EXPECT_NE(page.find("last held-out loss"), std::string::npos);
  EXPECT_NE(page.find("4.2500"), std::string::npos);
  EXPECT_NE(page.find("t&lt;w&gt;o"), std::string::npos);
  EXPECT_NE(page.find("beware of &lt;b&gt;"), std::string::npos);
  EXPECT_EQ(page.find("<b>"), std::string::npos);
  EXPECT_EQ(page.find("<x>"), std::string::npos);
  EXPECT_NE(page.find("<td>train.steps</td><td>3</td><td>4</td>"), std::string::npos);
  EXPECT_EQ(page.find("<td>a.b</td>"), std::string::npos) << "only what differs";
  for (const char* outside : {"<script", "http", "src=", "@import", "url("}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
  EXPECT_EQ(count(page, "<svg"), count(page, "</svg>"));
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_EQ(page.find("inf"), std::string::npos);
}

// A million steps make no page of a million points.
TEST_F(RunPageTest, LongRunsAreThinned) {
  std::string lines;
  for (int step = 1; step <= 20000; ++step) {
    lines += strf(
        "{\"type\":\"step\",\"step\":%d,\"loss\":%.3f,\"experts\":{\"layer\":[0],"
        "\"max_over_mean\":[2],\"entropy\":[1],\"dead\":[0]}}\n",
        step, 5.0 / step);
  }
  const auto run = history("long", lines);
  ASSERT_TRUE(run.ok());
  EXPECT_LT(run_page({run.value()}).size(), 100000u);
}

TEST_F(RunPageTest, HostileLinesArePassedOver) {
  std::string deep(100000, '[');
  const auto run = history("bad", deep + R"(
{"type":"step","step":1,"loss":2,"stall_s":[1],"step_s":-1,"experts":{"layer":[0],"dead":3}}
{"type":"step","step":"2","loss":9}
{"type":"step","step":3,"loss":1e308}
{"type":"step","step":4,"loss":-1e308}
no json
{"type":"run","step":0,"options":[1],"steps":-5}
)");
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_FALSE(run_page({run.value()}).empty());
  EXPECT_EQ(history("none", "{}\n").status().code(), Exit::kBadData);
  EXPECT_EQ(read_history(dir_.file("absent")).status().code(), Exit::kNoInput);
}

}  // namespace
}  // namespace pagoda
