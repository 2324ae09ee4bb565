// What ranks tell each other as they agree: texts of any length, and of a rank that sends anything
// else an error.
#include "parallel/rank_group.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/testing/ranks/rank_threads.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

constexpr size_t kShareOfFour = size_t{4} << 20;  // of a call of the communicator

// The manifest of many records is told to many ranks: one rank's text alone is longer than a call
// may bring of it, and others have less, or nothing.
TEST(RankGroup, TextsMayBeLongerThanACallBrings) {
  const Watchdog watchdog("long texts", std::chrono::seconds(120));
  for (const size_t bytes :
       {kShareOfFour - 100, kShareOfFour, kShareOfFour + 1, 3 * kShareOfFour}) {
    const auto text_of = [&](int rank) {
      std::string text(rank == 0 ? bytes : rank == 2 ? bytes / 3 : 0, ' ');
      for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
      return text;
    };
    RankThreads ranks(4, {0, 1, 2, 3});
    ranks.run([&](RankGroup& group) {
      const auto texts = group.agree(Status(), text_of(group.rank()));
      ASSERT_TRUE(texts.ok()) << texts.status().message();
      ASSERT_EQ(texts.value().size(), 4u);
      for (int rank = 0; rank < 4; ++rank) {
        EXPECT_TRUE(texts.value()[static_cast<size_t>(rank)] == text_of(rank)) << rank;
      }
    });
  }
}

TEST(RankGroup, ATextWithoutEndIsAnErrorOfAll) {
  const Watchdog watchdog("long texts", std::chrono::seconds(120));
  RankThreads ranks(2, {0, 1});
  const std::string endless(RankGroup::kMostText + 1, 'x');
  ranks.run([&](RankGroup& group) {
    const Status status = group.agree(Status(), group.rank() == 1 ? endless : "").status();
    EXPECT_EQ(status.code(), Exit::kInternal);
    EXPECT_TRUE(status.message().starts_with("rank 1: it tells the others 268435457 bytes"))
        << status.message();
  });
}

// Rank 0 of two, to which the other says the same at each call.
class ToldCommunicator final : public Communicator {
 public:
  explicit ToldCommunicator(std::string told) : told_(std::move(told)) {}
  int calls() const { return calls_; }
  int rank() const override { return 0; }
  int size() const override { return 2; }
  bool broken() const override { return false; }
  Status send(const OutgoingPiece&) override { return Status(); }
  Status receive(const IncomingPiece&) override { return Status(); }
  Status exchange(std::span<const OutgoingPiece>, std::span<const IncomingPiece>) override {
    return Status();
  }
  Status barrier() override { return Status(); }
  Result<std::vector<std::string>> gather(const std::string& text) override {
    ++calls_;
    return std::vector<std::string>{text, told_};
  }

 private:
  std::string told_;
  int calls_ = 0;
};

// Behind a piece the number of bytes that follow stands before it: none may be endless, nor may
// more be promised than there can be.
TEST(RankGroup, WhatNoRankSendsIsRefused) {
  struct Case {
    std::string told;
    int calls;
  };
  const Case cases[] = {
      {"", 1},
      {"x 0 1 0 ", 1},
      {"-1 0 1 0 ", 1},
      {"1 ", 1},                                                  // more to come, and nothing comes
      {"300000000 0 1 0 text", 1},                                // more than the most, 257 MiB
      {"1 " + std::string(size_t{8} << 20, 'x').substr(24), 33},  // 32 calls have almost 256 MiB
      {"0 0 1 9 short", 1},                                       // a message longer than what came
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.told.substr(0, 40));
    ToldCommunicator all(c.told);
    RankGroup group(&all, nullptr);
    const Status status = group.agree(Status());
    EXPECT_EQ(status.code(), Exit::kIoError);
    EXPECT_TRUE(status.message().starts_with("rank 1 sent what no rank of this run sends"))
        << status.message();
    EXPECT_EQ(all.calls(), c.calls);
  }
}

}  // namespace
}  // namespace pagoda
