// Streams, events, the loop workers and host memory: order, exactly-once, and clean ends.
#include "device/device.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "base/bytes.h"
#include "device/past_cache.h"
#include "device/sleep_debt.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

std::unique_ptr<Stream> make_stream(const std::string& name, int threads = 1) {
  return make_host_stream({name}, std::make_shared<ThreadPool>(threads));
}

void sleep_us(int64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

TEST(Stream, WorkRunsInTheOrderItWasEnqueued) {
  const Watchdog watchdog("Stream order", std::chrono::seconds(60));
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::vector<int>> seen(3);
  for (int s = 0; s < 3; ++s) streams.push_back(make_stream(strf("stream %d", s)));
  for (int i = 0; i < 5000; ++i) {
    for (int s = 0; s < 3; ++s) streams[s]->enqueue([&seen, s, i] { seen[s].push_back(i); });
  }
  std::vector<int> expected(5000);
  std::iota(expected.begin(), expected.end(), 0);
  for (int s = 0; s < 3; ++s) {
    streams[s]->synchronize();
    EXPECT_EQ(seen[s], expected) << streams[s]->name();
  }
}

TEST(Stream, CopiesAreWorkLikeAnyOther) {
  auto stream = make_stream("copies");
  std::vector<int> a(1000, 1), b(1000, 0), c(1000, 0);
  stream->enqueue([&] { std::fill(a.begin(), a.end(), 7); });
  stream->copy(b.data(), a.data(), 4000);
  stream->copy(c.data(), b.data(), 4000);
  stream->enqueue([&] { std::fill(b.begin(), b.end(), 9); });
  stream->synchronize();
  EXPECT_EQ(c, std::vector<int>(1000, 7));
  EXPECT_EQ(b, std::vector<int>(1000, 9));
}

// Sizes around where it changes its way, at aligned and other places: every byte, and none besides.
TEST(PastCache, CopiesEveryByteAndNoOther) {
  constexpr int64_t kRoom = 64, kMost = 512 * kKiB;
  auto from = HostMemory::allocate(kMost + 2 * kRoom), to = HostMemory::allocate(kMost + 2 * kRoom);
  ASSERT_TRUE(from.ok() && to.ok());
  std::mt19937 random(3);
  for (int64_t i = 0; i < from->bytes(); ++i) from->data()[i] = std::byte(random() % 255 + 1);
  const std::vector<int64_t> sizes = {1,           4097,        256 * kKiB - 1,
                                      256 * kKiB,  260 * kKiB,  260 * kKiB + 1,
                                      288 * kKiB,  kMost - 1,   kMost};
  for (const int64_t bytes : sizes) {
    for (const int64_t source : {0, 1, 64}) {
      for (const int64_t target : {0, 8, 64}) {
        std::memset(to->data(), 0, static_cast<size_t>(to->bytes()));
        copy_past_cache(to->data() + target, from->data() + source, bytes);
        const auto count = static_cast<size_t>(bytes);
        ASSERT_EQ(std::memcmp(to->data() + target, from->data() + source, count), 0)
            << bytes << " bytes from " << source << " to " << target;
        for (int64_t i = 0; i < to->bytes(); ++i) {
          if (i == target) i += bytes;
          ASSERT_EQ(to->data()[i], std::byte{0}) << bytes << " bytes: " << i << " was written";
        }
      }
    }
  }
}

// Memory comes aligned, empty and whole, whether in huge pages or not.
TEST(HostMemory, IsAlignedEmptyAndWhole) {
  const std::vector<int64_t> sizes = {1, 5000, 2 * kMiB - 1, 2 * kMiB, 3 * kMiB + 4096};
  for (const int64_t bytes : sizes) {
    auto memory = HostMemory::allocate(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    EXPECT_EQ(memory->bytes(), bytes);
    const int64_t alignment = bytes >= 2 * kMiB ? 2 * kMiB : kIoAlign;
    EXPECT_EQ(reinterpret_cast<int64_t>(memory->data()) % alignment, 0) << bytes;
    for (int64_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(memory->data()[i], std::byte{0}) << i << " of " << bytes;
      memory->data()[i] = std::byte{1};
    }
  }
}

// Random graphs of work over several streams: a piece of work starts only after everything it was
// told to wait for has ended. The only clock is a counter, so the check does not depend on timing.
void run_graph(uint32_t seed) {
  constexpr int kWork = 150;
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  std::vector<std::unique_ptr<Stream>> streams;
  const int count = 2 + pick(4);
  for (int s = 0; s < count; ++s) streams.push_back(make_stream(strf("graph %d", s)));
  std::atomic<int64_t> clock{0};
  std::vector<int64_t> begin(kWork), end(kWork);  // each written by one piece of work
  std::vector<Event> done;
  std::vector<std::vector<int>> waits_for(kWork);
  for (int i = 0; i < kWork; ++i) {
    Stream& stream = *streams[pick(count)];
    std::vector<Event> events;
    for (int n = pick(3); n > 0 && i > 0; --n) {
      waits_for[i].push_back(pick(i));
      events.push_back(done[waits_for[i].back()]);
    }
    if (pick(2) == 0) {
      stream.wait(when_all(events));
    } else {
      for (const Event& event : events) stream.wait(event);
    }
    const int pause_us = pick(20) == 0 ? 50 : 0;
    stream.enqueue([&, i, pause_us] {
      begin[i] = ++clock;
      if (pause_us > 0) sleep_us(pause_us);
      end[i] = ++clock;
    });
    done.push_back(stream.record());
  }
  when_all(done).wait();
  for (int i = 0; i < kWork; ++i) {
    for (const int before : waits_for[i]) {
      ASSERT_LT(end[before], begin[i]) << "seed " << seed << ": work " << i << " after " << before;
    }
  }
}

TEST(Event, OrdersWorkAcrossStreams) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    const Watchdog watchdog(strf("graph of seed %u", seed), std::chrono::seconds(60));
    run_graph(seed);
    if (HasFatalFailure()) return;
  }
}

TEST(Event, DefaultHasHappened) {
  const Event event;
  EXPECT_TRUE(event.happened());
  event.wait();
  bool ran = false;
  event.when_happened([&] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(Event, SignalLetsEveryWaiterGo) {
  const Watchdog watchdog("waiters", std::chrono::seconds(60));
  for (int round = 0; round < 200; ++round) {
    Event event = Event::make();
    EXPECT_FALSE(event.happened());
    std::atomic<int> through{0};
    std::vector<std::thread> waiters;
    for (int i = 0; i < 3; ++i) {
      waiters.emplace_back([&through, event] {
        event.wait();
        ++through;
      });
    }
    event.signal();
    for (std::thread& waiter : waiters) waiter.join();
    EXPECT_EQ(through, 3);
    EXPECT_TRUE(event.happened());
  }
}

// A waiter may drop its handle, and with it the event, while signal() is still returning.
TEST(Event, OutlivesItsWaiter) {
  const Watchdog watchdog("short-lived events", std::chrono::seconds(60));
  auto stream = make_stream("signals");
  for (int i = 0; i < 5000; ++i) {
    auto event = std::make_unique<Event>(Event::make());
    stream->enqueue([signalled = event.get()] { signalled->signal(); });
    event->wait();
    event.reset();
  }
}

TEST(Event, ContinuationRunsOnceOnTheSignallingThreadOrAtOnce) {
  Event event = Event::make();
  std::thread::id before, after;
  event.when_happened([&] { before = std::this_thread::get_id(); });
  std::thread signaller([&] { event.signal(); });
  const std::thread::id signaller_id = signaller.get_id();
  signaller.join();
  event.when_happened([&] { after = std::this_thread::get_id(); });
  EXPECT_EQ(before, signaller_id);
  EXPECT_EQ(after, std::this_thread::get_id());
}

TEST(Event, ContinuationIsNeitherLostNorRunTwiceWhenItRacesTheSignal) {
  const Watchdog watchdog("continuations", std::chrono::seconds(60));
  auto stream = make_stream("signals");
  std::atomic<int> ran{0};
  constexpr int kRounds = 5000;
  for (int i = 0; i < kRounds; ++i) {
    Event event = Event::make();
    stream->enqueue([event]() mutable { event.signal(); });
    event.when_happened([&ran] { ++ran; });
    event.when_happened([&ran] { ++ran; });
  }
  stream->synchronize();
  EXPECT_EQ(ran, 2 * kRounds);
}

TEST(EventDeathTest, SecondSignalIsABug) {
  Event event = Event::make();
  event.signal();
  EXPECT_DEATH(event.signal(), "signalled twice");
  Event nothing;
  EXPECT_DEATH(nothing.signal(), "was not made");
}

TEST(WhenAll, HappensWithTheLastOfItsEvents) {
  EXPECT_TRUE(when_all({}).happened());
  EXPECT_TRUE(when_all({Event(), Event()}).happened());
  std::vector<Event> parts;
  for (int i = 0; i < 5; ++i) parts.push_back(Event::make());
  std::vector<Event> events = parts;
  events.push_back(parts[2]);  // twice the same
  events.push_back(Event());
  const Event all = when_all(events);
  for (const int i : {3, 0, 4, 2, 1}) {
    EXPECT_FALSE(all.happened());
    parts[i].signal();
  }
  EXPECT_TRUE(all.happened());
}

TEST(WhenAll, SignalsFromManyThreadsAtOnce) {
  const Watchdog watchdog("when_all", std::chrono::seconds(60));
  std::vector<std::unique_ptr<Stream>> streams;
  for (int s = 0; s < 4; ++s) streams.push_back(make_stream(strf("part %d", s)));
  for (int round = 0; round < 1000; ++round) {
    std::vector<int> values(streams.size(), 0);
    std::vector<Event> parts;
    for (size_t s = 0; s < streams.size(); ++s) {
      streams[s]->enqueue([&values, s] { values[s] = 1; });
      parts.push_back(streams[s]->record());
    }
    when_all(parts).wait();
    // Without locks: the events alone must make the writes visible.
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), 0), 4);
  }
}

TEST(Stream, MeasuresHowLongItWaited) {
  auto stream = make_stream("waits");
  Event event = Event::make();
  stream->wait(Event());
  stream->synchronize();
  EXPECT_EQ(stream->time().all_waits_us(), 0);
  Event waiting = Event::make();
  stream->enqueue([waiting]() mutable { waiting.signal(); });
  stream->wait(event);
  waiting.wait();
  sleep_us(100000);  // it may start late, but not so late
  event.signal();
  stream->synchronize();
  EXPECT_GT(stream->time().all_waits_us(), 0);
}

// Keeps a processor busy, and returns for how long.
int64_t work_for(int64_t us) {
  const int64_t begin_us = thread_cpu_us();
  while (thread_cpu_us() - begin_us < us) {
  }
  return thread_cpu_us() - begin_us;
}

// A slowed piece of work takes at least its factor times the processor time it took, but for the
// sleep that is too short to be worth it. Being idle before is no sleep.
TEST(Stream, SleepsWhereItIsSlowed) {
  constexpr int64_t kFactor = 20, kLeastSleepUs = 200;
  auto stream = make_stream("slow");
  int64_t cpu_us = 0;
  stream->slow_down(kFactor);
  stream->enqueue([] {});  // too little to sleep for
  sleep_us(100000);
  stream->enqueue([&] { cpu_us = work_for(2000); });
  stream->synchronize();
  EXPECT_GE(stream->time().busy_us, kFactor * cpu_us - kLeastSleepUs);
}

// 100 us of work that should take 8 times as long leave 700 us, and sleeps that end late leave less
// behind the next work.
TEST(SleepDebt, IsWhatIsLeftOfTheTimeThatWorkShouldTake) {
  SleepDebt debt;
  EXPECT_EQ(debt.due_us(), 0);
  debt.add_work(8, 100, 100);
  EXPECT_EQ(debt.due_us(), 700);
  debt.add_sleep(760);
  EXPECT_EQ(debt.due_us(), 0);
  debt.add_work(8, 100, 100);
  EXPECT_EQ(debt.due_us(), 640);
  debt.add_work(24, 10, 10);
  EXPECT_EQ(debt.due_us(), 640 + 230);
}

// Work that waited 500 us for a core took 600 us of its 800 us.
TEST(SleepDebt, TimeWithoutACoreIsSlept) {
  SleepDebt debt;
  debt.add_work(8, 600, 100);
  EXPECT_EQ(debt.due_us(), 200);
  debt.add_work(8, 1000, 100);
  EXPECT_EQ(debt.due_us(), 0);
  debt.add_work(8, 100, 100);
  EXPECT_EQ(debt.due_us(), 700);
}

// A thread that had no core for a second makes up for 20 ms.
TEST(SleepDebt, DoesNotMakeUpForLongDelays) {
  SleepDebt debt;
  debt.add_work(8, 1000000, 100);
  debt.add_work(8, 3000, 3000);
  EXPECT_EQ(debt.due_us(), 1000);
}

TEST(SleepDebt, TooLittleWaitsForMore) {
  SleepDebt debt;
  debt.add_work(8, 20, 20);
  EXPECT_EQ(debt.due_us(), 0);
  debt.add_work(8, 20, 20);
  EXPECT_EQ(debt.due_us(), 280);
}

// How often the calling thread has slept or waited so far.
int64_t pauses() {
  rusage usage = {};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

// The stream does not pause between slowed pieces, but before what is not slowed.
TEST(Stream, SleepsBehindAllSlowedWork) {
  constexpr int kPieces = 5;
  auto stream = make_stream("slow");
  std::vector<int64_t> seen;
  seen.reserve(kPieces + 1);
  Event gate = Event::make();
  stream->wait(gate);
  stream->slow_down(200);
  for (int i = 0; i < kPieces; ++i) {
    stream->enqueue([&seen] {
      work_for(100);
      seen.push_back(pauses());
    });
  }
  stream->slow_down(1);
  stream->enqueue([&seen] { seen.push_back(pauses()); });
  const Event done = stream->record();
  gate.signal();  // from here on nobody else touches the stream
  done.wait();
  EXPECT_EQ(std::vector(seen.begin(), seen.end() - 1), std::vector(kPieces, seen.front()));
  EXPECT_GT(seen.back(), seen.front());
}

TEST(Stream, DestructionFinishesQueuedWork) {
  const Watchdog watchdog("destruction", std::chrono::seconds(60));
  for (int round = 0; round < 50; ++round) {
    int ran = 0;
    Event gate = Event::make();
    auto stream = make_stream("queue");
    stream->wait(gate);
    for (int i = 0; i < 100; ++i) stream->enqueue([&ran] { ++ran; });
    std::thread opener([gate]() mutable {
      sleep_us(200);
      gate.signal();
    });
    stream.reset();
    EXPECT_EQ(ran, 100);
    opener.join();
  }
}

// What a piece of work owns goes when the work has ended, not when the next arrives.
TEST(Stream, ReleasesWhatFinishedWorkOwned) {
  auto stream = make_stream("owners");
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owned;
  stream->enqueue([kept = std::move(owned)] {});
  stream->synchronize();
  EXPECT_TRUE(watch.expired());
}

TEST(ThreadPool, EachIndexOnceOnItsWorker) {
  const Watchdog watchdog("parallel_for", std::chrono::seconds(60));
  for (int threads = 1; threads <= 5; ++threads) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<int> times(static_cast<size_t>(count), 0);
      std::vector<std::thread::id> where(static_cast<size_t>(count));
      pool.parallel_for(count, [&](int64_t i) {
        ++times[static_cast<size_t>(i)];
        where[static_cast<size_t>(i)] = std::this_thread::get_id();
      });
      EXPECT_EQ(times, std::vector<int>(static_cast<size_t>(count), 1));
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_EQ(where[at], where[at % static_cast<size_t>(threads)]) << "index " << i;
      }
      if (count == 0) continue;
      EXPECT_EQ(where[0], std::this_thread::get_id()) << "the caller is worker 0";
    }
  }
}

TEST(ThreadPool, LoopsOfSeveralStreamsTakeTurns) {
  const Watchdog watchdog("turns", std::chrono::seconds(60));
  const auto pool = std::make_shared<ThreadPool>(3);
  std::atomic<int> inside[3] = {};  // indices of each stream's loop that are running
  std::atomic<bool> mixed{false};
  std::vector<int64_t> sums(3, 0);
  std::vector<std::unique_ptr<Stream>> streams;
  for (int s = 0; s < 3; ++s) streams.push_back(make_host_stream({strf("loop %d", s)}, pool));
  for (int round = 0; round < 300; ++round) {
    for (int s = 0; s < 3; ++s) {
      streams[s]->enqueue([&, s] {
        std::vector<int64_t> part(24, 0);
        streams[s]->pool().parallel_for(24, [&](int64_t i) {
          ++inside[s];
          if (inside[(s + 1) % 3] + inside[(s + 2) % 3] > 0) mixed = true;
          part[static_cast<size_t>(i)] = i;
          --inside[s];
        });
        sums[s] += std::accumulate(part.begin(), part.end(), int64_t{0});
      });
    }
  }
  for (auto& stream : streams) stream->synchronize();
  EXPECT_FALSE(mixed) << "two loops ran at the same time";
  EXPECT_EQ(sums, std::vector<int64_t>(3, 300 * 276));
}

TEST(HostDevice, OpensAnArenaAndRefusesWhatCannotBe) {
  auto device = open_host_device({.arena_bytes = 3 * kMiB, .threads = 2});
  ASSERT_TRUE(device.ok()) << device.status().message();
  EXPECT_EQ((*device)->arena_bytes(), 3 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*device)->arena()) % kIoAlign, 0u);
  std::memset((*device)->arena(), 0x5a, 3 * kMiB);
  auto stream = (*device)->make_stream("compute", WorkKind::kCompute);
  EXPECT_EQ(stream->pool().threads(), 2);
  const auto refused = open_host_device({.arena_bytes = int64_t{1} << 60, .threads = 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Exit::kDeviceMemory);
  EXPECT_NE(refused.status().message().find("memory.device"), std::string::npos);
}

TEST(HostMemory, MovesAndMayBeEmpty) {
  HostMemory memory = HostMemory::allocate(2 * kIoAlign).take();
  std::byte* data = memory.data();
  ASSERT_NE(data, nullptr);
  HostMemory other = std::move(memory);
  EXPECT_EQ(other.data(), data);
  EXPECT_EQ(memory.data(), nullptr);  // NOLINT: what a moved-from one holds is part of the contract
  memory = std::move(other);
  EXPECT_EQ(memory.data(), data);
  EXPECT_EQ(HostMemory::allocate(0).value().data(), nullptr);
  const auto refused = HostMemory::allocate(int64_t{1} << 60);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Exit::kHostMemory);
}

}  // namespace
}  // namespace pagoda
