// The heartbeat of a rank whose peers the test plays by sockets of its own: what is lost is named,
// a goodbye is no loss, and strangers do no harm.
#include "parallel/heartbeat.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <random>

#include "base/descriptor.h"
#include "device/device.h"
#include "parallel/heartbeat_frame.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

constexpr double kLong = 60;  // nothing of a test may wait for it

// What a frame is, byte by byte, without the code that makes it.
struct RawFrame {
  std::string key;  // 16 bytes
  int from = 1, to = 0;
  int64_t number = 0;
  int kind = 0, of = 0, waited_ms = 0, word_bytes = -1;  // -1: the word's
  std::string word;
  std::string magic = "pagodahb";

  std::string bytes() const {
    std::string all = magic + key;
    const auto add = [&all](int64_t value, int bytes) {
      for (int i = 0; i < bytes; ++i) all += static_cast<char>(value >> 8 * i);
    };
    add(from, 4), add(to, 4), add(number, 8), add(kind, 4), add(of, 4);
    add(waited_ms, 4);
    add(word_bytes < 0 ? std::ssize(word) : word_bytes, 4);
    all += word;
    all.resize(128, '\0');
    return all;
  }
};

TEST(HeartbeatFrameTest, BytesStandWhereTheyShould) {
  HeartbeatFrame frame;
  for (size_t i = 0; i < 16; ++i) frame.key[i] = static_cast<std::byte>('a' + i);
  frame.from = 258, frame.to = 7, frame.number = int64_t{1} << 40, frame.of = 3;
  frame.waited_ms = 77777;
  frame.kind = HeartbeatKind::kLoss;
  frame.word = "step 3";
  RawFrame raw;
  raw.key = "abcdefghijklmnop";
  raw.from = 258, raw.to = 7, raw.number = int64_t{1} << 40, raw.of = 3, raw.kind = 2;
  raw.waited_ms = 77777;
  raw.word = "step 3";
  const HeartbeatBytes bytes = frame.encode();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), raw.bytes());
  const auto back = HeartbeatFrame::decode(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->from, 258u);
  EXPECT_EQ(back->to, 7u);
  EXPECT_EQ(back->number, uint64_t{1} << 40);
  EXPECT_EQ(back->of, 3u);
  EXPECT_EQ(back->waited_ms, 77777u);
  EXPECT_EQ(back->kind, HeartbeatKind::kLoss);
  EXPECT_EQ(back->word, "step 3");
  EXPECT_EQ(back->key, frame.key);
  frame.word = std::string(500, 'x');
  EXPECT_EQ(HeartbeatFrame::decode(frame.encode())->word, std::string(72, 'x'));
}

// All others give what the test says.
class ScriptedCommunicator final : public Communicator {
 public:
  ScriptedCommunicator(int rank, std::vector<std::string> invitations)
      : rank_(rank), invitations_(std::move(invitations)) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(invitations_.size()); }
  bool broken() const override { return false; }
  Status send(const OutgoingPiece&) override { return Status(); }
  Status receive(const IncomingPiece&) override { return Status(); }
  Status exchange(std::span<const OutgoingPiece>, std::span<const IncomingPiece>) override {
    return Status();
  }
  Status barrier() override { return Status(); }
  // A status is agreed on before and after the invitations: "0 " is ok.
  Result<std::vector<std::string>> gather(const std::string& text) override {
    std::vector<std::string> texts(invitations_.size(), "0 ");
    if (++gathered_ == 2) {
      texts = invitations_;
      mine = text;
      invited.signal();
    }
    texts[static_cast<size_t>(rank_)] = text;
    return texts;
  }

  Event invited = Event::make();
  std::string mine;  // this rank's invitation

 private:
  const int rank_;
  const std::vector<std::string> invitations_;
  int gathered_ = 0;
};

// A connection of the test's to the heartbeat.
class Guest {
 public:
  explicit Guest(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  explicit Guest(Descriptor socket) : socket_(std::move(socket)) {}
  void say(const std::string& bytes) {
    ASSERT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  // The next frame; empty: the connection is over.
  std::string hear() {
    std::string bytes(128, '\0');
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL);
    bytes.resize(got == 128 ? 128 : 0);
    return bytes;
  }
  void hang_up() { socket_.reset(); }

 private:
  Descriptor socket_;
};

// Rank 0 has a heartbeat; the test is all others.
class PlayedHeartbeatTest : public testing::Test {
 protected:
  void start(int ranks, double deadline_s) {
    std::vector<std::string> invitations;
    for (int rank = 0; rank < ranks; ++rank) {
      invitations.push_back(std::string(32, '0') + strf(" host%d 9 127.0.0.1", rank));
    }
    all_ = std::make_unique<ScriptedCommunicator>(0, invitations);
    starting_ = std::thread([this, deadline_s] {
      auto started =
          Heartbeat::start(*all_, {.period_s = 0.05, .deadline_s = deadline_s, .waits = &waits_},
                           [this](int rank, const Status& status) {
                             ++losses_;
                             lost_rank_ = rank;
                             loss_ = status;
                             lost_.signal();
                           });
      ASSERT_TRUE(started.ok()) << started.status().message();
      heartbeat_ = started.take();
    });
    all_->invited.wait();
    port_ = std::atoi(all_->mine.substr(all_->mine.find(' ', 33)).c_str());
    for (size_t i = 0; i < 16; ++i) {
      key_ += static_cast<char>(std::stoi(all_->mine.substr(2 * i, 2), nullptr, 16));
    }
  }
  RawFrame frame(int from, int64_t number, const std::string& word = "") const {
    RawFrame raw;
    raw.key = key_;
    raw.from = from;
    raw.number = number;
    raw.word = word;
    return raw;
  }
  // Says who it is, and hears the answer.
  std::unique_ptr<Guest> join(int rank) {
    auto guest = std::make_unique<Guest>(port_);
    guest->say(frame(rank, 0).bytes());
    const std::string answer = guest->hear();
    EXPECT_EQ(answer.substr(0, 24), "pagodahb" + key_);
    EXPECT_EQ(answer.substr(24, 16), std::string("\0\0\0\0", 4) + static_cast<char>(rank) +
                                         std::string(11, '\0'));
    guest->say(frame(rank, 1, "step 3").bytes());
    return guest;
  }
  void settle() { starting_.join(); }
  // The heartbeat has dealt with all that was said to it before.
  void expect_turned_away(Guest& guest) { EXPECT_EQ(guest.hear(), ""); }

  const Watchdog watchdog_{"a heartbeat", std::chrono::seconds(60)};
  std::unique_ptr<ScriptedCommunicator> all_;
  std::thread starting_;
  int port_ = 0;
  std::string key_;
  int losses_ = 0, lost_rank_ = -1;
  Status loss_;
  Event lost_ = Event::make();
  RankWaits waits_;                       // rank 0's
  std::unique_ptr<Heartbeat> heartbeat_;  // ends first
};

TEST_F(PlayedHeartbeatTest, WhoseConnectionEndsIsLost) {
  start(3, kLong);
  auto one = join(1), two = join(2);
  settle();
  EXPECT_TRUE(heartbeat_->status().ok());
  one->say(frame(1, 2, "step\n4").bytes());
  one->hang_up();
  lost_.wait();
  EXPECT_EQ(loss_.code(), Exit::kStopped);
  EXPECT_EQ(loss_.message(), "rank 1 on host1 is gone; it was last at \"step\\x0a4\"");
  EXPECT_EQ(lost_rank_, 1);
  EXPECT_EQ(heartbeat_->status().message(), loss_.message());
  std::string told = two->hear();
  while (told[40] == 0) told = two->hear();
  EXPECT_EQ(told[40], 2);  // a loss
  EXPECT_EQ(told[44], 1);  // rank 1's
  two->hang_up();
  heartbeat_->stop();
  EXPECT_EQ(losses_, 1);
}

TEST_F(PlayedHeartbeatTest, WhoIsSilentIsLost) {
  start(3, 0.3);
  auto one = join(1), two = join(2);
  settle();
  const auto stop = std::make_shared<std::atomic<bool>>(false);
  std::thread beats([&one, this, stop] {
    for (int64_t number = 2; !*stop; ++number) {
      one->say(frame(1, number).bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  lost_.wait();
  *stop = true;
  beats.join();
  EXPECT_EQ(loss_.message(),
            "rank 2 on host2 has been silent for 0.3 s; it was last at \"step 3\"");
}

// A period and a half without a word is told at once, long before the deadline.
TEST_F(PlayedHeartbeatTest, ASilenceIsToldBeforeItIsALoss) {
  start(3, kLong);
  auto one = join(1), two = join(2);
  settle();
  testing::internal::CaptureStderr();
  const auto a_while = [] { std::this_thread::sleep_for(std::chrono::milliseconds(700)); };
  a_while();
  one->say(frame(1, 2).bytes());
  a_while();
  heartbeat_->stop();
  const std::string told = testing::internal::GetCapturedStderr();
  const auto at = [&](const std::string& text) { return told.find(text); };
  const size_t silent = at("warning: rank 1 on host1 has been silent for 0.075 s; the run ends if");
  const size_t heard = at("rank 1 on host1 is heard again");
  EXPECT_LT(silent, heard) << told;
  EXPECT_NE(heard, std::string::npos) << told;
  EXPECT_NE(at("rank 2 on host2 has been silent"), std::string::npos) << told;
  EXPECT_EQ(at("rank 2 on host2 is heard"), std::string::npos) << told;
  EXPECT_EQ(losses_, 0);
}

TEST_F(PlayedHeartbeatTest, AGoodbyeIsNoLoss) {
  start(2, kLong);
  auto one = join(1);
  settle();
  RawFrame goodbye = frame(1, 2);
  goodbye.kind = 1;
  one->say(goodbye.bytes());
  one->hang_up();
  Guest stranger(port_);
  stranger.say("no");
  stranger.hang_up();
  heartbeat_->stop();
  EXPECT_TRUE(heartbeat_->status().ok());
  EXPECT_EQ(losses_, 0);
}

TEST_F(PlayedHeartbeatTest, OthersTellOfALoss) {
  start(3, kLong);
  auto one = join(1), two = join(2);
  settle();
  RawFrame loss = frame(1, 2);
  loss.kind = 2;
  loss.of = 2;
  one->say(loss.bytes());
  lost_.wait();
  EXPECT_EQ(loss_.message(),
            "rank 2 on host2 is lost, says rank 1 on host1; it was last at \"step 3\"");
}

// Who is held for lost does not hold the others for it.
TEST_F(PlayedHeartbeatTest, ItsOwnLossIsTold) {
  start(3, kLong);
  auto one = join(1), two = join(2);
  settle();
  RawFrame loss = frame(1, 2);
  loss.kind = 2;
  one->say(loss.bytes());
  lost_.wait();
  EXPECT_TRUE(loss_.message().starts_with("rank 0 on ")) << loss_.message();
  EXPECT_TRUE(loss_.message().ends_with(" is lost, says rank 1 on host1")) << loss_.message();
  heartbeat_->stop();
  for (std::string told = two->hear(); !told.empty(); told = two->hear()) EXPECT_NE(told[40], 2);
}

TEST_F(PlayedHeartbeatTest, ARankStaysWhoItIs) {
  start(3, kLong);
  auto one = join(1), two = join(2);
  settle();
  one->say(frame(2, 2).bytes());
  while (!one->hear().empty()) continue;
  EXPECT_EQ(heartbeat_->refused(), 1);
  EXPECT_TRUE(heartbeat_->status().ok());
  testing::internal::CaptureStderr();
  heartbeat_->stop();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            strf("warning: connections to port %d that were closed, since they came from no "
                 "process of this run: 1\n",
                 port_));
}

TEST_F(PlayedHeartbeatTest, ItsWordTravels) {
  start(2, kLong);
  auto one = join(1);
  settle();
  heartbeat_->progress("transfer 7");
  std::string frame = one->hear();
  while (frame[52] == 0) frame = one->hear();
  EXPECT_EQ(frame.substr(52, 14), std::string("\x0a\0\0\0transfer 7", 14));
}

TEST_F(PlayedHeartbeatTest, WaitsTravel) {
  start(3, kLong);
  auto one = join(1), two = join(2);
  settle();
  waits_.note(0, {2, 1'500'999, 1});
  std::string told = one->hear();
  while (told[44] == 0) told = one->hear();
  EXPECT_EQ(told.substr(40, 12), std::string("\0\0\0\0\2\0\0\0\xdc\5\0\0", 12));
  RawFrame beat = frame(1, 2);
  beat.of = 2, beat.waited_ms = 70000;
  one->say(beat.bytes());
  while (waits_.of(1).peer == 0) std::this_thread::yield();
  EXPECT_EQ(waits_.of(1).peer, 2);
  EXPECT_EQ(waits_.of(1).waited_us, 70'000'000);
}

// It lives, and the carrier's deadline has passed: all hear of it before the goodbye.
TEST_F(PlayedHeartbeatTest, WhoIsAccusedIsLost) {
  start(3, kLong);
  auto one = join(1), two = join(2);
  settle();
  waits_.accuse(2);
  heartbeat_->stop();
  EXPECT_EQ(loss_.message(), "rank 2 on host2 goes no further; it was last at \"step 3\"");
  EXPECT_EQ(losses_, 1);
  for (Guest* guest : {one.get(), two.get()}) {
    std::string kinds;
    for (std::string told = guest->hear(); !told.empty(); told = guest->hear()) {
      if (told[40] != 0) kinds += static_cast<char>('0' + told[40]);
      EXPECT_EQ(told[44], told[40] == 2 ? 2 : 0);
    }
    EXPECT_EQ(kinds, "21");
  }
}

// Everything that a frame may not be, from guests that come before and after a rank.
TEST_F(PlayedHeartbeatTest, StrangersAreTurnedAway) {
  start(2, kLong);
  std::vector<RawFrame> wrong(9, frame(1, 0));
  wrong[0].key[15] ^= 1;
  wrong[1].magic = "pagodahB";
  wrong[2].to = 1;
  wrong[3].from = 0;
  wrong[4].from = 2;
  wrong[5].number = 1;
  wrong[6].kind = 3;
  wrong[7].word_bytes = 73;
  wrong[8].of = 2;
  int64_t expected = 0;
  const auto turn_away_all = [&] {
    for (const RawFrame& raw : wrong) {
      Guest guest(port_);
      guest.say(raw.bytes());
      expect_turned_away(guest);
      ++expected;
    }
    std::mt19937 random(7);
    for (int i = 0; i < 20; ++i) {
      Guest guest(port_);
      std::string garbage(128 + random() % 2000, '\0');
      for (char& byte : garbage) byte = static_cast<char>(random());
      guest.say(garbage);
      expect_turned_away(guest);
      ++expected;
    }
  };
  turn_away_all();
  auto one = join(1);
  settle();
  turn_away_all();
  EXPECT_EQ(heartbeat_->refused(), expected);
  EXPECT_TRUE(heartbeat_->status().ok());
  EXPECT_NE(one->hear(), "");
}

TEST_F(PlayedHeartbeatTest, AFrameMayComeInPieces) {
  start(2, kLong);
  Guest one(port_);
  for (const char byte : frame(1, 0).bytes()) one.say(std::string(1, byte));
  EXPECT_NE(one.hear(), "");
  one.say(frame(1, 1).bytes() + frame(1, 2).bytes().substr(0, 77));
  settle();
  EXPECT_TRUE(heartbeat_->status().ok());
}

// More guests than it keeps, who say nothing: the oldest make room.
TEST_F(PlayedHeartbeatTest, AFloodOfStrangersDoesNoHarm) {
  start(2, kLong);
  std::vector<std::unique_ptr<Guest>> crowd;
  for (int i = 0; i < 40; ++i) crowd.push_back(std::make_unique<Guest>(port_));
  for (int i = 0; i < 8; ++i) expect_turned_away(*crowd[static_cast<size_t>(i)]);
  Guest& one = *crowd.back();
  one.say(frame(1, 0).bytes());
  EXPECT_NE(one.hear(), "");
  one.say(frame(1, 1).bytes());
  settle();
  EXPECT_GE(heartbeat_->refused(), 8);
  EXPECT_TRUE(heartbeat_->status().ok());
}

// Listens on an address of the loopback; port 0: any.
class Listener {
 public:
  Listener(uint32_t address, int port)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port));
    at.sin_addr.s_addr = htonl(address);
    socklen_t bytes = sizeof(at);
    CHECK(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&at), bytes) == 0);
    CHECK(::listen(socket_.get(), 8) == 0);
    CHECK(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&at), &bytes) == 0);
    this->port = ntohs(at.sin_port);
  }
  Guest accept() { return Guest(Descriptor(::accept(socket_.get(), nullptr, nullptr))); }

  int port = 0;

 private:
  Descriptor socket_;
};

// Rank 1's heartbeat looks for rank 0, where at one address another rank answers.
TEST(HeartbeatAddressTest, TheRightAddressIsFound) {
  const Watchdog watchdog("a heartbeat", std::chrono::seconds(60));
  Listener right(INADDR_LOOPBACK, 0), wrong(INADDR_LOOPBACK + 1, right.port);
  ScriptedCommunicator all(1, {std::string(32, '1') + strf(" far %d 240.0.0.1 127.0.0.2 127.0.0.1",
                                                           right.port), ""});
  RawFrame answer;
  answer.key = std::string(16, '\x11');
  answer.from = 2, answer.to = 1;
  std::thread others([&] {
    Guest lost = wrong.accept();
    EXPECT_EQ(lost.hear().substr(24, 8), std::string("\1\0\0\0\0\0\0\0", 8));
    lost.say(answer.bytes());
    EXPECT_EQ(lost.hear(), "");
    Guest found = right.accept();
    EXPECT_EQ(found.hear().substr(24, 16), std::string("\1", 1) + std::string(15, '\0'));
    answer.from = 0;
    found.say(answer.bytes());
    EXPECT_EQ(found.hear()[32], 1);
    RawFrame goodbye = answer;
    goodbye.kind = 1, goodbye.number = 1;
    found.say(goodbye.bytes());
  });
  const auto started = Heartbeat::start(all, {.deadline_s = kLong}, [](int, const Status&) {});
  EXPECT_TRUE(started.ok()) << started.status().message();
  others.join();
}
// Nobody listens where rank 0 says that it does.
TEST(HeartbeatAddressTest, AnUnreachableRankIsNamed) {
  ScriptedCommunicator all(1, {std::string(32, '1') + " far 1 127.0.0.1", ""});
  const Status status =
      Heartbeat::start(all, {.deadline_s = 0.3}, [](int, const Status&) {}).status();
  EXPECT_EQ(status.code(), Exit::kUnavailable);
  EXPECT_EQ(status.message(),
            "rank 1: rank 0 on far cannot be reached at 127.0.0.1, port 1; open "
            "it in that machine's firewall, or name others (parallel.ports)");
}

}  // namespace
}  // namespace pagoda
