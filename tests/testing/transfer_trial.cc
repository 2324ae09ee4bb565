#include "tests/testing/transfer_trial.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "base/check.h"

namespace pagoda {
namespace {

// One endpoint's lanes, what it sends from, and what it receives into.
struct TrialEndpoint {
  std::unique_ptr<Stream> out, in;
  std::vector<std::byte> source, target;
  int64_t differences = 0;
  int64_t first_different = -1;  // number of a transfer
};

int mark(const Transfer& transfer, size_t block) {
  const auto word = static_cast<uint32_t>(transfer.number * 131 + transfer.from * 17 + transfer.to);
  return static_cast<int>(((word + block) * 0x9e3779b1u) >> 24);
}

constexpr size_t kBlock = 512;

void fill(const Transfer& transfer, std::vector<std::byte>& bytes) {
  for (size_t i = 0; i < bytes.size(); i += kBlock) {
    std::memset(&bytes[i], mark(transfer, i / kBlock), std::min(kBlock, bytes.size() - i));
  }
}

bool is_right(const Transfer& transfer, const std::vector<std::byte>& bytes) {
  std::vector<std::byte> expected(static_cast<size_t>(transfer.bytes));
  fill(transfer, expected);
  return std::equal(expected.begin(), expected.end(), bytes.begin());
}

}  // namespace

std::vector<Transfer> TransferTrial::all() const {
  std::mt19937_64 random(seed);
  std::map<std::pair<int, int>, int64_t> numbers;
  std::vector<Transfer> transfers;
  const uint64_t ends = rank_of.size();
  while (std::ssize(transfers) < this->transfers) {
    const int from = static_cast<int>(random() % ends), to = static_cast<int>(random() % ends);
    if (rank_of[static_cast<size_t>(from)] == rank_of[static_cast<size_t>(to)]) continue;
    const uint64_t size = random() % 8;
    const uint64_t most = size == 0 ? 1 : size == 1 ? most_bytes + 1 : most_bytes / 16 + 1;
    transfers.push_back({numbers[{from, to}]++, from, to, static_cast<int64_t>(random() % most)});
    if (turns > 0) {
      transfers.back().turns = static_cast<int>(random() % static_cast<uint64_t>(turns + 1));
    }
  }
  return transfers;
}

Status TransferTrial::run(Link& link, int rank) const {
  std::map<int, TrialEndpoint> mine;
  for (size_t end = 0; end < rank_of.size(); ++end) {
    if (rank_of[end] != rank) continue;
    TrialEndpoint& one = mine[static_cast<int>(end)];
    const auto lane = [&](const char* name) {
      return make_host_stream({name, WorkKind::kOther, nullptr}, std::make_shared<ThreadPool>(1));
    };
    one.out = lane("out");
    one.in = lane("in");
    one.source.resize(static_cast<size_t>(most_bytes));
    one.target.resize(static_cast<size_t>(most_bytes));
  }
  const std::vector<Transfer> transfers = all();
  for (int i = 0; i < std::ssize(transfers); ++i) {
    const Transfer& transfer = transfers[static_cast<size_t>(i)];
    if (rank == giving_up && i == gives_up_at) {
      link.give_up(Status(Exit::kDiverged, "tired"));
      break;
    }
    if (const auto from = mine.find(transfer.from); from != mine.end()) {
      TrialEndpoint& end = from->second;
      end.out->enqueue([&end, transfer] {
        std::vector<std::byte> bytes(static_cast<size_t>(transfer.bytes));
        fill(transfer, bytes);
        std::copy(bytes.begin(), bytes.end(), end.source.begin());
      });
      end.out->wait(link.send(transfer, end.source.data(), *end.out));
    } else if (const auto to = mine.find(transfer.to); to != mine.end()) {
      TrialEndpoint& end = to->second;
      link.receive(transfer, end.target.data(), *end.in);
      end.in->enqueue([&end, transfer] {
        if (is_right(transfer, end.target)) return;
        if (end.differences++ == 0) end.first_different = transfer.number;
      });
    }
  }
  for (auto& [end, one] : mine) {
    one.out->synchronize();
    one.in->synchronize();
  }
  RETURN_IF_ERROR(link.status());
  for (const auto& [end, one] : mine) {
    if (one.differences == 0) continue;
    return Status(Exit::kInternal, strf("endpoint %d: %lld transfers came wrong, first %lld", end,
                                        (long long)one.differences,
                                        (long long)one.first_different));
  }
  return Status();
}

}  // namespace pagoda
