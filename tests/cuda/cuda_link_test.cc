// Transfers between GPUs that are made up (tests/cuda/fake_cuda.h): they arrive whole whether the
// GPUs are peers or not, and the sender's memory is free once they have.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/bytes.h"
#include "device/gpus.h"
#include "parallel/local_link.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

constexpr int64_t kArena = 24 * kMiB;
constexpr int64_t kHalf = kArena / 2;  // what is sent, then what is received

// A GPU with its lanes.
struct LinkedGpu {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> out, in;
};

class CudaLink : public testing::TestWithParam<bool> {
 protected:
  CudaLink() {
    fake_cuda::start({.gpus = 3, .peers = GetParam()});
    std::vector<Device*> devices;
    for (int g = 0; g < 3; ++g) {
      LinkedGpu& gpu = gpus_.emplace_back();
      gpu.device = open_gpu(g, {kArena, 1}).take();
      gpu.out = gpu.device->make_stream(strf("out %d", g), WorkKind::kLink);
      gpu.in = gpu.device->make_stream(strf("in %d", g), WorkKind::kLink);
      devices.push_back(gpu.device.get());
    }
    link_ = LocalLink::create(devices).take();
  }
  ~CudaLink() override {
    fake_cuda::slow_down(0, 0);
    for (LinkedGpu& gpu : gpus_) gpu.in->synchronize();
    link_.reset();
    gpus_.clear();
    const fake_cuda::Counters left = fake_cuda::counters();
    EXPECT_EQ(left.streams + left.events + left.allocated_bytes + left.pinned_bytes, 0);
  }

  std::vector<LinkedGpu> gpus_;
  std::unique_ptr<LocalLink> link_;
};

// Between random GPUs, of random sizes: some take several pieces of the way through the host. The
// source is overwritten as soon as it may be, the target read before the next transfer.
TEST_P(CudaLink, BytesArriveWhole) {
  const Watchdog watchdog("transfers", std::chrono::seconds(120));
  std::mt19937 random(5);
  fake_cuda::slow_down(5, 200);
  std::map<std::pair<int, int>, int64_t> numbers, bytes_of;
  std::vector<std::vector<std::byte>> sent, arrived;
  std::vector<std::shared_ptr<void>> pins;
  EXPECT_EQ(fake_cuda::counters().pinned_bytes, GetParam() ? 0 : 3 * LocalLink::kStagingBytes);
  constexpr int kTransfers = 40;
  sent.reserve(kTransfers);
  arrived.reserve(kTransfers);
  for (int i = 0; i < kTransfers; ++i) {
    const int from = static_cast<int>(random() % 3);
    const int to = (from + 1 + static_cast<int>(random() % 2)) % 3;
    const int64_t most = i % 8 == 0 ? kHalf : 100'000;
    const auto bytes = static_cast<int64_t>(random() % static_cast<uint32_t>(most));
    std::vector<std::byte>& content = sent.emplace_back(static_cast<size_t>(bytes));
    for (size_t b = 0; b < content.size(); ++b) {
      content[b] = static_cast<std::byte>((b + static_cast<size_t>(i)) * 0x9e3779b1u >> 13);
    }
    std::vector<std::byte>& found = arrived.emplace_back(static_cast<size_t>(bytes));
    pins.push_back(gpus_[0].device->pin(content.data(), bytes));
    pins.push_back(gpus_[0].device->pin(found.data(), bytes));
    LinkedGpu &sender = gpus_[from], &receiver = gpus_[to];
    sender.out->copy(sender.device->arena(), content.data(), bytes);
    const Transfer transfer{numbers[{from, to}]++, from, to, bytes};
    const Event free = link_->send(transfer, sender.device->arena(), *sender.out);
    std::byte* target = receiver.device->arena() + kHalf;
    link_->receive(transfer, target, *receiver.in);
    receiver.in->copy(found.data(), target, bytes);
    sender.out->wait(free);
    if (bytes > 0) bytes_of[{from, to}] += bytes;
  }
  for (LinkedGpu& gpu : gpus_) {
    gpu.out->synchronize();
    gpu.in->synchronize();
  }
  for (int i = 0; i < kTransfers; ++i) EXPECT_TRUE(sent[i] == arrived[i]) << "transfer " << i;
  for (const auto& [pair, bytes] : bytes_of) EXPECT_EQ(link_->counts().at(pair).bytes, bytes);
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      if (from != to) bytes_of[{from, to}] += LocalLink::kTriedBytes;
    }
  }
  if (!GetParam()) bytes_of.clear();
  EXPECT_EQ(fake_cuda::counters().peer_bytes, bytes_of);
  EXPECT_EQ(fake_cuda::counters().unpinned_bytes, 0);
}

TEST_P(CudaLink, AnUnreceivedTransferStopsNobody) {
  const Watchdog watchdog("an unreceived transfer", std::chrono::seconds(60));
  gpus_[0].out->wait(link_->send({0, 0, 1, 4096}, gpus_[0].device->arena(), *gpus_[0].out));
  link_.reset();
  gpus_[0].out->synchronize();
}

INSTANTIATE_TEST_SUITE_P(Peers, CudaLink, testing::Bool());

// The driver allows peer copies, but they bring other bytes.
TEST(CudaLinkOfBadPeers, BytesTakeTheWayThroughTheHost) {
  const Watchdog watchdog("peers that do not work", std::chrono::seconds(60));
  fake_cuda::start({.gpus = 2, .peer_copies_work = false});
  const auto sender = open_gpu(0, {kArena, 1}).take(), receiver = open_gpu(1, {kArena, 1}).take();
  testing::internal::CaptureStderr();
  auto link = LocalLink::create({sender.get(), receiver.get()}).take();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("GPU 1 reads other bytes than GPU 0 has"), std::string::npos) << said;
  EXPECT_NE(said.find("GPU 0 reads other bytes than GPU 1 has"), std::string::npos) << said;
  std::vector<std::byte> sent(300'000, std::byte{7}), found(sent.size());
  const auto pin = sender->pin(sent.data(), std::ssize(sent));
  const auto other_pin = receiver->pin(found.data(), std::ssize(found));
  const auto out = sender->make_stream("out", WorkKind::kLink);
  const auto in = receiver->make_stream("in", WorkKind::kLink);
  // What was tried has left nothing.
  in->copy(found.data(), receiver->arena(), std::ssize(found));
  in->synchronize();
  EXPECT_TRUE(found == std::vector<std::byte>(found.size()));
  out->copy(sender->arena(), sent.data(), std::ssize(sent));
  const Transfer transfer{0, 0, 1, std::ssize(sent)};
  link->send(transfer, sender->arena(), *out);
  link->receive(transfer, receiver->arena(), *in);
  in->copy(found.data(), receiver->arena(), std::ssize(found));
  in->synchronize();
  EXPECT_TRUE(sent == found);
  EXPECT_EQ(fake_cuda::counters().peer_bytes.at({0, 1}), LocalLink::kTriedBytes);
  link.reset();
}

// The made-up runtime itself: who takes another GPU's memory, or forgets whose turn it is, dies.
TEST(CudaLinkDeathTest, StreamsKeepToTheirGpu) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto copy = [](bool peer) {
    fake_cuda::start({.gpus = 2});
    const auto here = open_gpu(0, {kMiB, 1}).take(), there = open_gpu(1, {kMiB, 1}).take();
    const auto stream = here->make_stream("in 0", WorkKind::kLink);
    if (peer) {
      stream->copy_from(*there, here->arena(), there->arena(), 64);
    } else {
      stream->copy(here->arena(), there->arena(), 64);
    }
  };
  EXPECT_DEATH(copy(false), "memory of GPU 1 on a stream of GPU 0");
  EXPECT_DEATH(copy(true), "GPU 0 does not reach GPU 1");
}

}  // namespace
}  // namespace pagoda
