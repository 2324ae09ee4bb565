// Processes that mpirun starts together, on this machine: messages arrive whole, `pagoda bench
// machine` writes a cluster that `pagoda plan` takes, and whatever goes wrong ends all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/sheet_file.h"
#include "parallel/host_name.h"
#include "tests/testing/files.h"
#include "tests/testing/mpirun.h"
#include "tests/testing/process.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

using Words = std::vector<std::string>;

constexpr std::chrono::seconds kSoon{120};  // many times what any of these takes

class MpiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpirun()) GTEST_SKIP() << "SKIPPED: built without MPI, or there is no mpirun";
    set_mpirun_variables();
  }

  ProcessResult mpirun(Words words) {
    words.insert(words.begin(), PAGODA_MPIRUN);
    return Process(words, dir_.file("run")).wait();
  }
  ProcessResult ranks(int processes, const std::string& task) {
    return mpirun({"-n", std::to_string(processes), PAGODA_RANKS_BINARY, task});
  }
  // A process of mpirun's, as another is with other words.
  Words bench(const std::string& out, const char* rounds = "1", const char* folder = "") const {
    return {PAGODA_BINARY, "bench", "machine",  "--rounds", rounds,  "--bytes", "16MiB",
            "--dir",       dir_.path() + folder, "--device", "cpu", "--out",   out};
  }
  static Words beside(const Words& first, const Words& second) {
    Words words = {"-n", "1"};
    words.insert(words.end(), first.begin(), first.end());
    words.insert(words.end(), {":", "-n", "1"});
    words.insert(words.end(), second.begin(), second.end());
    return words;
  }
  static std::vector<std::string> lines(const std::string& text, const std::string& with) {
    std::vector<std::string> found;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      if (line.find(with) != std::string::npos) found.push_back(line);
      begin = end + 1;
    }
    return found;
  }
  // One line of the program's (launchers add their own), this code, and no file.
  void expect_refused(const ProcessResult& result, int code, const std::string& names) {
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    const auto told = lines(result.err, "pagoda: ");
    ASSERT_EQ(told.size(), 1u) << result.err;
    EXPECT_NE(told[0].find(names), std::string::npos) << told[0];
    EXPECT_FALSE(std::filesystem::exists(dir_.file("lab.toml")));
  }

  TempDir dir_;
  Watchdog watchdog_{"a test of MPI", kSoon};
};

// Less than three percent of a core, by the processor's own count.
TEST_F(MpiTest, WhoWaitsSleeps) {
  const ProcessResult result = ranks(2, "wait");
  EXPECT_EQ(result.code, 0) << result.out << result.err;
}

// Compared byte by byte with what both sides can work out.
TEST_F(MpiTest, MessagesArriveWhole) {
  for (const int processes : {2, 3}) {
    const ProcessResult result = ranks(processes, "messages");
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    for (int rank = 0; rank < processes; ++rank) {
      const std::string good = strf("rank %d of %d: good", rank, processes);
      EXPECT_EQ(lines(result.out, good).size(), 1u) << result.out;
    }
  }
}

TEST_F(MpiTest, AnErrorNamesRankAndCall) {
  for (const char* task : {"short", "long"}) {
    const ProcessResult result = ranks(2, task);
    EXPECT_EQ(result.code, 74) << result.err;
    const std::string names = task == std::string("short") ? "message from 1 to 0: 5 bytes came"
                                                           : "MPI_Irecv from rank 1: ";
    EXPECT_EQ(lines(result.out, "rank 0 of 2: " + names).size(), 1u) << result.out;
  }
}

// Random ones between all devices and hosts, each compared byte by byte; many in turn.
TEST_F(MpiTest, TransfersArriveWhole) {
  for (const auto& [processes, task] :
       {std::pair(2, "transfers"), {3, "transfers"}, {3, "turns"}, {2, "turns of two cards"}}) {
    SCOPED_TRACE(strf("%s of %d processes", task, processes));
    const ProcessResult result = ranks(processes, task);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_EQ(lines(result.out, ": good").size(), static_cast<size_t>(processes)) << result.out;
  }
}

TEST_F(MpiTest, WhoGivesUpEndsTransfersAndNothingElse) {
  const ProcessResult result = ranks(3, "give up");
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_EQ(lines(result.out, ": good").size(), 3u) << result.out;
}

TEST_F(MpiTest, OtherBytesInATransferEndAll) {
  const ProcessResult result = ranks(2, "other bytes");
  EXPECT_EQ(result.code, 74) << result.err;
  EXPECT_EQ(lines(result.out, "rank 1 of 2: transfer 1000 from 0 to 2 (rows): 99 bytes came, not "
                              "100").size(), 1u) << result.out;
}

// A rank that is stopped, which the launcher does not see, and one that is killed.
TEST_F(MpiTest, ASilentRankEndsTransfers) {
  const ProcessResult stopped = ranks(3, "stop in a transfer");
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  const auto told = lines(stopped.out, "rank 1 on ");
  ASSERT_FALSE(told.empty()) << stopped.out;
  EXPECT_NE(told[0].find(" has been silent for 1 s in transfer 7 from "), std::string::npos)
      << told[0];
  const ProcessResult died = ranks(3, "die in a transfer");
  EXPECT_NE(died.code, 0);
  EXPECT_EQ(lines(died.out, "good").size(), 0u) << died.out;
}

TEST_F(MpiTest, OneRanksErrorIsAllOnes) {
  const ProcessResult result = ranks(3, "disagree");
  EXPECT_EQ(result.code, 66) << result.err;
  EXPECT_EQ(lines(result.out, "rank 1: no drive here").size(), 3u) << result.out;
}

TEST_F(MpiTest, ADeadRankEndsAll) {
  const ProcessResult result = ranks(3, "die");
  EXPECT_NE(result.code, 0);
  EXPECT_EQ(lines(result.out, "good").size(), 0u) << result.out;
}

// Stopped, so that the launcher sees nothing: the others end by themselves.
TEST_F(MpiTest, ASilentRankEndsAll) {
  const ProcessResult silent = ranks(3, "stop");
  EXPECT_EQ(silent.code, 75) << silent.err;
  const auto told = lines(silent.out, "rank 1 on ");
  ASSERT_FALSE(told.empty()) << silent.out;
  EXPECT_NE(told[0].find(" has been silent for 1 s in gather"), std::string::npos) << told[0];

  const ProcessResult absent =
      mpirun(beside({PAGODA_RANKS_BINARY, "miss"}, {PAGODA_RANKS_BINARY, "be absent"}));
  EXPECT_EQ(absent.code, 75) << absent.err;
  EXPECT_EQ(lines(absent.out, "not all processes have joined within 1 s").size(), 1u) << absent.out;
}

TEST_F(MpiTest, AClustersSheetIsMeasuredAndPlannedWith) {
  const std::string out = dir_.file("lab.toml");
  Words words = {"-n", "3"};
  const Words program = bench(out);
  words.insert(words.end(), program.begin(), program.end());
  const ProcessResult result = mpirun(words);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(lines(result.out, "one way").size(), 9u) << result.out;
  EXPECT_EQ(lines(result.out, "both ways").size(), 9u) << result.out;
  EXPECT_EQ(lines(result.out, "4 flows").size(), 3u) << result.out;
  EXPECT_EQ(lines(result.out, "all to all ").size(), 4u) << result.out;
  EXPECT_EQ(lines(result.err, "share the machine").size(), 2u) << result.err;

  const Result<ClusterSheet> sheet = read_cluster_sheet(out);
  ASSERT_TRUE(sheet.ok()) << sheet.status().message();
  EXPECT_EQ(sheet.value().nodes.size(), 3u);
  EXPECT_TRUE(sheet.value().equal_nodes());
  EXPECT_EQ(sheet.value().cluster.source, SheetSource::kMeasured);
  EXPECT_EQ(sheet.value().cluster.hosts, std::vector<std::string>(3, host_name()));
  EXPECT_GT(sheet.value().network.latency_us, 0);
  EXPECT_TRUE(std::filesystem::exists(dir_.file("lab-node0.toml")));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("lab-node1.toml"))) << "they are alike";

  const std::string model = std::string(PAGODA_GOLDEN_DIR) + "/../../configs/book.json";
  const ProcessResult plan = Process({PAGODA_BINARY, "plan", "--model.path", model, "--cluster",
                                      out, "--train.tokens_per_step", "49152"},
                                     dir_.file("plan"))
                                 .wait();
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("3 nodes: "), std::string::npos) << plan.out;
  EXPECT_EQ(lines(plan.out, host_name() + " slots=1").size(), 3u) << plan.out;
}

TEST_F(MpiTest, ANetworkIsMeasured) {
  const Words words = {PAGODA_BINARY, "bench", "network", "--rounds", "1"};
  Words json = {"-n", "2"};
  json.insert(json.end(), words.begin(), words.end());
  json.push_back("--json");
  const ProcessResult result = mpirun(json);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out, nullptr, false);
  ASSERT_FALSE(report.is_discarded()) << result.out;
  EXPECT_EQ(report.at("bench"), "network");
  EXPECT_GT(std::stod(report.at("gb_s").get<std::string>()), 0);
  EXPECT_GT(std::stod(report.at("latency_us").get<std::string>()), 0);
  std::map<std::string, int> figures;
  for (const auto& figure : report.at("figures")) {
    ++figures[figure.at("name")];
    EXPECT_GT(figure.at("value").get<double>(), 0);
    EXPECT_GT(figure.at("roof").get<double>(), 0);
    EXPECT_EQ(figure.at("rounds"), 1);
  }
  EXPECT_EQ(figures, (std::map<std::string, int>{
                         {"one way", 3}, {"both ways", 3}, {"4 flows", 1}, {"all to all", 4}}));

  Words other = words;
  other.back() = "2";
  expect_refused(mpirun(beside(words, other)), 2, "rank 1 was started as");
  expect_refused(Process(words, dir_.file("run")).wait(), 2, "start several");
}

TEST_F(MpiTest, BadInputIsRefusedOnceForAll) {
  const std::string out = dir_.file("lab.toml"), nowhere = "/proc/lab.toml";
  const auto refuses = [&](const Words& first, const Words& second, int code, const char* names) {
    expect_refused(mpirun(beside(first, second)), code, names);
  };
  refuses(bench(""), bench(""), 2, "--out: name");
  refuses(bench(out), bench(out, "2"), 2, "rank 1 was started as");
  refuses(bench(out), bench(out, "1", "/none"), 66, "rank 1: --dir");
  refuses(bench(nowhere), bench(nowhere), 73, "rank 0: /proc/lab.toml");
}

TEST_F(MpiTest, DoctorReportsOnce) {
  const ProcessResult result = mpirun({"-n", "2", PAGODA_BINARY, "doctor", "--dir", dir_.path()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(lines(result.out, "usable cores").size(), 2u) << result.out;
  EXPECT_EQ(lines(result.out, "every rank reaches every other").size(), 2u) << result.out;
  EXPECT_EQ(lines(result.out, "2 ranks together").size(), 1u) << result.out;
  const Words here = {PAGODA_BINARY, "doctor", "--dir", dir_.path()};
  const Words nowhere = {PAGODA_BINARY, "doctor", "--dir", dir_.file("none")};
  expect_refused(mpirun(beside(here, nowhere)), 66, "rank 1: --dir " + dir_.file("none"));
}

TEST_F(MpiTest, OneProcessIsAnOrdinaryRun) {
  Words words = {"-n", "1"};
  const Words program = bench("/proc/lab.toml");
  words.insert(words.end(), program.begin(), program.end());
  const ProcessResult result = mpirun(words);
  expect_refused(result, 73, "pagoda: /proc/lab.toml");
  EXPECT_EQ(lines(result.err, "no network is measured").size(), 1u) << result.err;
}

// Started by the launcher of another MPI than the program's: each process is alone.
TEST_F(MpiTest, AnotherMpisLauncherIsNoticed) {
  ::setenv("PMI_SIZE", "2", 1);
  const ProcessResult result = Process(bench(dir_.file("lab.toml")), dir_.file("run")).wait();
  ::unsetenv("PMI_SIZE");
  expect_refused(result, 69, "PMI started 2 processes");
}

// Before it joins, and while the others measure with it.
TEST_F(MpiTest, AProgramThatDiesEndsTheOthers) {
  const std::string out = dir_.file("lab.toml");
  Words killed = {"/usr/bin/timeout", "-s", "KILL", "0.5"};
  for (const std::string& word : bench(out)) killed.push_back(word);
  for (const Words& other : {Words{"/bin/false"}, killed}) {
    const ProcessResult result = mpirun(beside(bench(out), other));
    EXPECT_NE(result.code, 0);
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

}  // namespace
}  // namespace pagoda
