// Transfers between GPUs of two ranks, and the memories of their hosts. The GPUs are made up
// (tests/cuda/fake_cuda.h), the ranks are threads: all bytes arrive whole through pinned memory,
// and an error stops no lane.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/bytes.h"
#include "device/gpus.h"
#include "parallel/mpi_link.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/testing/memory_network.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

constexpr int64_t kArena = 24 * kMiB;
constexpr int64_t kHalf = kArena / 2;  // what is sent, then what is received

// Endpoints: the GPU of each rank, the host's memory of each rank.
class CudaMpiLink : public testing::Test {
 protected:
  CudaMpiLink() { fake_cuda::start({.gpus = 2}); }
  ~CudaMpiLink() override {
    fake_cuda::slow_down(0, 0);
    const fake_cuda::Counters left = fake_cuda::counters();
    EXPECT_EQ(left.streams + left.events + left.allocated_bytes + left.pinned_bytes, 0);
  }

  // One rank: its GPU, its link and its lanes.
  struct Rank {
    std::unique_ptr<MpiCommunicator> all;
    std::unique_ptr<Device> gpu;
    std::unique_ptr<Stream> out, in;  // of the GPU
    std::unique_ptr<MpiLink> link;
    std::vector<std::byte> host = std::vector<std::byte>(kArena);  // as the GPU's arena
    std::shared_ptr<void> pin;

    bool is_gpu(int end) const { return end == all->rank(); }
    std::byte* memory(int end) { return is_gpu(end) ? gpu->arena() : host.data(); }
  };
  Rank join(int rank, double deadline_s = 0) {
    Rank r;
    r.all = MpiCommunicator::join([this, rank] { return network_->carrier(rank); }, 0).take();
    r.gpu = open_gpu(rank, {kArena, 1}).take();
    r.out = r.gpu->make_stream("out", WorkKind::kLink);
    r.in = r.gpu->make_stream("in", WorkKind::kLink);
    r.pin = r.gpu->pin(r.host.data(), kArena);
    std::vector<LinkEnd> ends = {{0, nullptr}, {1, nullptr}, {0, nullptr}, {1, nullptr}};
    ends[static_cast<size_t>(rank)].gpu = r.gpu.get();
    r.link = MpiLink::create(*r.all, ends, deadline_s).take();
    return r;
  }

  void send_and_compare();

  const Watchdog watchdog_{"transfers", std::chrono::seconds(120)};
  std::unique_ptr<MemoryNetwork> network_ = std::make_unique<MemoryNetwork>(2);
};

// Sizes are random: some take several pieces. The source is overwritten as soon as it may be, the
// target read before the next transfer.
void CudaMpiLink::send_and_compare() {
  fake_cuda::slow_down(5, 200);
  network_->slow_down(300);
  constexpr int kTransfers = 60;
  std::vector<Transfer> transfers;
  std::vector<std::vector<std::byte>> sent, arrived;
  std::mt19937 random(5);
  std::map<std::pair<int, int>, int64_t> numbers, bytes_of;
  for (int i = 0; i < kTransfers; ++i) {
    const int from = static_cast<int>(random() % 4);
    const int to = (1 - from % 2) + 2 * static_cast<int>(random() % 2);
    const int64_t most = i % 8 == 0 ? kHalf : 100'000;
    const int64_t bytes = i % 9 == 4 ? 0 : static_cast<int64_t>(random() % most);
    transfers.push_back({numbers[{from, to}]++, from, to, bytes});
    bytes_of[{from, to}] += bytes;
    std::vector<std::byte>& content = sent.emplace_back(static_cast<size_t>(bytes));
    for (size_t b = 0; b < content.size(); b += 256) {
      const auto value = static_cast<int>(((b + static_cast<size_t>(i)) * 0x9e3779b1u) >> 13);
      std::memset(&content[b], value, std::min<size_t>(256, content.size() - b));
    }
    arrived.emplace_back(static_cast<size_t>(bytes));
  }
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Rank me = join(rank);
      EXPECT_EQ(fake_cuda::gpu_of(me.gpu->arena()), rank);
      std::vector<std::shared_ptr<void>> pins;
      for (size_t i = 0; i < transfers.size(); ++i) {
        const Transfer& transfer = transfers[i];
        auto& content = transfer.from % 2 == rank ? sent[i] : arrived[i];
        pins.push_back(me.gpu->pin(content.data(), std::ssize(content)));
        if (transfer.from % 2 == rank) {
          std::byte* source = me.memory(transfer.from);
          me.out->copy(source, content.data(), transfer.bytes);
          me.out->wait(me.link->send(transfer, source, *me.out));
        } else {
          std::byte* target = me.memory(transfer.to) + kHalf;
          me.link->receive(transfer, target, *me.in);
          me.in->copy(content.data(), target, transfer.bytes);
        }
      }
      me.out->synchronize();
      me.in->synchronize();
      EXPECT_TRUE(me.link->status().ok()) << me.link->status().message();
      for (const auto& [pair, count] : me.link->counts()) {
        EXPECT_EQ(count.bytes, bytes_of.at(pair));
        EXPECT_EQ(count.transfers, numbers.at(pair));
      }
      int64_t received = 0;
      for (const auto& [pair, bytes] : bytes_of) received += pair.second % 2 == rank ? bytes : 0;
      EXPECT_EQ(me.link->traffic()[1 - rank].received.bytes, received);
      ASSERT_TRUE(me.all->barrier().ok());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int i = 0; i < kTransfers; ++i) EXPECT_TRUE(sent[i] == arrived[i]) << "transfer " << i;
  EXPECT_EQ(fake_cuda::counters().unpinned_bytes, 0);
}

TEST_F(CudaMpiLink, BytesArriveWhole) { send_and_compare(); }

TEST_F(CudaMpiLink, BytesArriveWholeFromAnotherHost) {
  network_ = std::make_unique<MemoryNetwork>(2, 1, std::vector<std::string>{"a", "b"});
  send_and_compare();
}

// Nothing comes: what the lane finds are zeros. What it sends may be overwritten.
TEST_F(CudaMpiLink, AnErrorStopsNoLane) {
  std::vector<std::byte> target(static_cast<size_t>(5 * kMiB), std::byte{9});
  Event over = Event::make();
  std::thread other([&] {
    Rank silent = join(1);
    over.wait();
    silent.all->abandon(Status(Exit::kStopped, "over"));
  });
  {
    Rank me = join(0, 0.05);
    const auto pin = me.gpu->pin(target.data(), std::ssize(target));
    me.in->copy(me.gpu->arena(), target.data(), std::ssize(target));
    me.link->receive({1, 1, 0, 5 * kMiB}, me.gpu->arena(), *me.in);
    me.in->copy(target.data(), me.gpu->arena(), std::ssize(target));
    me.out->wait(me.link->send({1, 0, 1, 5 * kMiB}, me.gpu->arena(), *me.out));
    me.in->synchronize();
    me.out->synchronize();
    EXPECT_EQ(me.link->status().code(), Exit::kStopped);
    EXPECT_NE(me.link->status().message().find("silent for 0.05 s in transfer 1 from"),
              std::string::npos);
    EXPECT_TRUE(target == std::vector<std::byte>(target.size()));
  }
  over.signal();
  other.join();
}

// What was neither sent nor received when the link ends keeps no lane waiting.
TEST_F(CudaMpiLink, AnUnreceivedTransferStopsNobody) {
  Event over = Event::make();
  std::thread other([&] {
    Rank silent = join(1);
    over.wait();
    silent.all->abandon(Status(Exit::kStopped, "over"));
  });
  {
    Rank me = join(0);
    me.link->receive({1, 1, 0, 5 * kMiB}, me.gpu->arena(), *me.in);
    me.out->wait(me.link->send({1, 0, 1, 5 * kMiB}, me.gpu->arena(), *me.out));
    me.link.reset();
    me.in->synchronize();
    me.out->synchronize();
    me.all->abandon(Status(Exit::kStopped, "over"));
  }
  over.signal();
  other.join();
}

}  // namespace
}  // namespace pagoda
