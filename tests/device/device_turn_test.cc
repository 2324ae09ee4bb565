// Streams that take turns on one device: one of them computes at a time, whoever asks first is
// first, and none keeps the others waiting while it waits itself.
#include "device/device_turn.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "device/device.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

std::unique_ptr<Stream> stream_of(const std::string& name,
                                  const std::shared_ptr<DeviceTurn>& turn) {
  return make_host_stream({name, WorkKind::kCompute, nullptr, turn},
                          std::make_shared<ThreadPool>(1));
}

void sleep_ms(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// What happened, in its order.
class Record {
 public:
  void add(const std::string& what) {
    std::lock_guard lock(mutex_);
    text_ += (text_.empty() ? "" : " ") + what;
  }
  std::string text() const {
    std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;  // guards the rest
  std::string text_;
};

TEST(DeviceTurn, WhoAsksFirstIsFirst) {
  const Watchdog watchdog("turns in order", std::chrono::seconds(60));
  DeviceTurn turn;
  Record record;
  turn.take();
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; ++i) {
    threads.emplace_back([&, i] {
      turn.take();
      record.add(std::to_string(i));
      turn.leave();
    });
    sleep_ms(20);  // until it has asked
  }
  EXPECT_EQ(record.text(), "") << "somebody else had the turn";
  turn.leave();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(record.text(), "0 1 2 3 4");
}

TEST(DeviceTurn, OneComputesAtATime) {
  const Watchdog watchdog("turns alone", std::chrono::seconds(120));
  const auto turn = std::make_shared<DeviceTurn>();
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(stream_of(strf("stream %d", i), turn));
  int at_work = 0, most = 0;  // the turn guards them, as a sanitizer would say
  int64_t pieces = 0;
  for (int i = 0; i < 2000; ++i) {
    for (auto& stream : streams) {
      stream->enqueue([&] {
        most = std::max(most, ++at_work);
        ++pieces;
        --at_work;
      });
      if (i % 7 == 0) stream->wait(streams[static_cast<size_t>(i) % streams.size()]->record());
    }
  }
  for (auto& stream : streams) stream->synchronize();
  turn->take();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(pieces, 6000);
  turn->leave();
}

// Two sessions' phases: each computes, has an exchange, computes. They alternate, though both have
// all of their work from the beginning.
TEST(DeviceTurn, OneComputesWhileTheOthersRowsAreOnTheirWay) {
  const Watchdog watchdog("turns alternate", std::chrono::seconds(60));
  const auto turn = std::make_shared<DeviceTurn>();
  const auto a = stream_of("a", turn), b = stream_of("b", turn);
  Record record;
  Event begin = Event::make(), of_a = Event::make(), of_b = Event::make();
  const auto work = [&](const char* name) { return [&record, name] { record.add(name); }; };
  a->wait(begin);
  a->enqueue([&] {
    record.add("Ga");
    sleep_ms(60);  // while b asks
  });
  a->enqueue(work("Ra"));
  a->wait(of_a);
  a->enqueue(work("Fa"));
  begin.signal();
  sleep_ms(20);
  b->enqueue(work("Gb"));
  b->wait(of_b);
  b->enqueue(work("Fb"));
  while (record.text().find("Gb") == std::string::npos) sleep_ms(1);
  EXPECT_EQ(record.text(), "Ga Ra Gb") << "b's phase comes in the exchange of a, and not before";
  of_b.signal();
  b->synchronize();
  of_a.signal();
  a->synchronize();
  EXPECT_EQ(record.text(), "Ga Ra Gb Fb Fa") << "whose rows come first goes on first";
}

TEST(DeviceTurn, OneThatHasNothingToDoLeavesIt) {
  const Watchdog watchdog("turns left", std::chrono::seconds(60));
  const auto turn = std::make_shared<DeviceTurn>();
  auto a = stream_of("a", turn);
  const auto b = stream_of("b", turn);
  a->enqueue([] {});
  b->enqueue([] {});
  b->synchronize();  // a is there and idle
  a->enqueue([] {});
  a.reset();
  b->enqueue([] {});
  b->synchronize();  // a has ended
  turn->take();
  turn->leave();
}

// A slowed stream's sleep is part of its work: devices that are shared are not two.
TEST(DeviceTurn, SleepingIsComputing) {
  const Watchdog watchdog("turns slowed", std::chrono::seconds(60));
  constexpr int kPieces = 5;
  constexpr int64_t kPieceUs = 2000, kSlowness = 6;
  const auto turn = std::make_shared<DeviceTurn>();
  const auto a = stream_of("a", turn), b = stream_of("b", turn);
  const int64_t begin_us = monotonic_us();
  for (int i = 0; i < kPieces; ++i) {
    for (Stream* stream : {a.get(), b.get()}) {
      stream->slow_down(kSlowness);
      stream->enqueue([] {
        const int64_t end_us = thread_cpu_us() + kPieceUs;
        while (thread_cpu_us() < end_us) {
        }
      });
    }
  }
  a->synchronize();
  b->synchronize();
  const int64_t alone_us = kPieces * kPieceUs * kSlowness;
  EXPECT_GT(monotonic_us() - begin_us, 2 * alone_us * 9 / 10);
}

// A wait for the turn is a wait for who computes, not work.
TEST(DeviceTurn, WaitingForItIsNotWork) {
  const Watchdog watchdog("turns timed", std::chrono::seconds(60));
  const auto turn = std::make_shared<DeviceTurn>();
  const auto stream = stream_of("stream", turn);
  turn->take();
  stream->enqueue([] {});
  sleep_ms(100);
  turn->leave();
  stream->synchronize();
  const StreamTime time = stream->time();
  EXPECT_GT(time.waited_us[static_cast<size_t>(WorkKind::kCompute)], 60000);
  EXPECT_LT(time.busy_us, 40000);
}

// What a device's other streams do goes on beside the work of the session that has the turn.
TEST(DeviceTurn, OnlyComputingTakesIt) {
  const Watchdog watchdog("turns of a device", std::chrono::seconds(60));
  const auto turn = std::make_shared<DeviceTurn>();
  const auto device = open_host_device({4096, 1, nullptr, turn}).take();
  const auto computes = device->make_stream("computes", WorkKind::kCompute);
  const auto sends = device->make_stream("sends", WorkKind::kLink);
  std::atomic<bool> computed{false};
  turn->take();
  computes->enqueue([&] { computed = true; });
  sends->enqueue([] {});
  sends->synchronize();
  sleep_ms(20);
  EXPECT_FALSE(computed);
  turn->leave();
  computes->synchronize();
  EXPECT_TRUE(computed);
}

}  // namespace
}  // namespace pagoda
