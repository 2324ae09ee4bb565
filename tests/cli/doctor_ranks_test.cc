// `pagoda doctor` for several processes: one report of all ranks, which are threads here.
#include "cli/doctor/doctor_ranks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/testing/memory_network.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

TEST(DoctorRanks, OneReportNamesEachRanksMachineAndWhatDiffers) {
  const Watchdog watchdog("ranks", std::chrono::seconds(120));
  MemoryNetwork network(3);
  std::array<RanksReport, 3> reports;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto all =
          MpiCommunicator::join([&, rank] { return network.carrier(rank); }, 0).take();
      DoctorReport mine;
      mine.cpu = strf("processor %d", rank);
      mine.kernel_set = rank == 1 ? "amx/onednn 1" : "avx2/onednn 1";
      auto report = examine_ranks(*all, mine);
      ASSERT_TRUE(report.ok()) << report.status().message();
      reports[static_cast<size_t>(rank)] = report.take();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const RanksReport& report : reports) EXPECT_EQ(report.text(), reports[0].text());
  const RanksReport& report = reports[0];
  EXPECT_EQ(report.warnings,
            std::vector<std::string>{"rank 1 computes with amx/onednn 1, rank 0 with avx2/onednn "
                                     "1: which rank computes what changes bits"});
  EXPECT_EQ(report.messages + report.heartbeat, "");
  const std::string text = report.text();
  size_t at = 0;
  for (const char* line : {"rank 0 on ", "processor 0", "rank 1 on ", "processor 1", "rank 2 on ",
                           "processor 2", "3 ranks together\n", "MPI ",
                           "messages       every rank reaches every other\n",
                           "heartbeat      every rank reaches every other\n", "warning "}) {
    at = text.find(line, at);
    ASSERT_NE(at, std::string::npos) << line << " is not in its place in\n" << text;
  }
  const auto object = nlohmann::json::parse(report.json());
  ASSERT_EQ(object["ranks"].size(), 3u);
  EXPECT_EQ(object["ranks"][1]["machine"]["cpu"], "processor 1");
  EXPECT_EQ(object["ranks"][1]["machine"]["kernel_set"], "amx/onednn 1");
  EXPECT_EQ(object["heartbeat"]["usable"], true);
  EXPECT_EQ(object["warnings"].size(), 1u);
}

}  // namespace
}  // namespace pagoda
