#include "train/page_move.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"

namespace pagoda {

namespace {

// [record] the rank whose store has its weights, -1 where none has. Empty: there are not `ranks`.
std::vector<int> ranks_of_records(const RunCheckpoint& checkpoint, size_t records, int ranks) {
  if (std::ssize(checkpoint.stores) != ranks) return {};
  std::vector<int> rank_of(records, -1);
  for (size_t rank = 0; rank < checkpoint.stores.size(); ++rank) {
    for (const PageVersion& version : checkpoint.stores[rank].pages) {
      const size_t record = version.page / 2;  // PageTable::weights() and state()
      if (record < records) rank_of[record] = static_cast<int>(rank);  // else it is refused later
    }
  }
  return rank_of;
}

}  // namespace

std::vector<int> homes_of(const RunCheckpoint& checkpoint, const RunShape& shape, int ranks) {
  const std::vector<int> rank_of = ranks_of_records(checkpoint, shape.records.size(), ranks);
  return rank_of.empty() ? std::vector<int>() : homes_of(rank_of, shape);
}

std::vector<int> homes_of(const std::vector<int>& rank_of, const RunShape& shape) {
  std::vector<int> homes;
  std::map<std::pair<int64_t, int>, std::deque<int>> left;  // [layer, rank] devices of those gone
  for (size_t r = 0; r < shape.records.size(); ++r) {
    const RecordShape& record = shape.records[r];
    const int rank = shape.rank_of(record.device);
    homes.push_back(record.device);
    if (rank_of[r] == rank || rank_of[r] < 0) continue;
    if (record.expert < 0 || shape.copies.several()) return {};
    left[{record.layer, rank}].push_back(record.device);
  }
  for (size_t r = 0; r < shape.records.size(); ++r) {
    const RecordShape& record = shape.records[r];
    if (rank_of[r] == shape.rank_of(record.device) || rank_of[r] < 0) continue;
    std::deque<int>& devices = left[{record.layer, rank_of[r]}];
    if (devices.empty()) return {};
    homes[r] = devices.front();
    devices.pop_front();
  }
  return homes;
}

Result<std::vector<int>> store_readers(const RunCheckpoint& checkpoint,
                                       const CheckpointPages& pages, RankGroup& ranks) {
  std::string can;
  for (int64_t s = 0; s < pages.num_stores(); ++s) can += pages.status_of(s).ok() ? '1' : '0';
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.agree(Status(), can));
  std::vector<int> readers;
  for (size_t s = 0; s < checkpoint.stores.size(); ++s) {
    int reader = -1;
    for (int rank = ranks.size() - 1; rank >= 0; --rank) {
      const std::string& of_rank = all[static_cast<size_t>(rank)];
      if (of_rank.size() == can.size() && of_rank[s] == '1') reader = rank;
    }
    const bool same = s < all.size() && all[s].size() == can.size() && all[s][s] == '1';
    readers.push_back(same ? static_cast<int>(s) : reader);
    if (readers.back() >= 0) continue;
    RETURN_IF_ERROR(ranks.agree(pages.status_of(static_cast<int64_t>(s))));
    return Status(Exit::kMismatch,
                  "ranks no longer see the same stores as before; the checkpoint is "
                  "whole: see that no disk was unmounted, and resume again");
  }
  return readers;
}

Status copy_pages(CheckpointPages& pages, const std::vector<int>& readers, Session& session) {
  RankGroup& ranks = session.ranks();
  const RunShape& shape = session.shape();
  int64_t largest = 0;
  for (PageId page = 0; page < 2 * shape.records.size(); ++page) {
    largest = std::max(largest, kPageHeaderBytes + session.pages().pages[page].bytes);
  }
  auto allocated = HostMemory::allocate(largest);
  RETURN_IF_ERROR(ranks.agree(allocated.status()));
  HostMemory memory = allocated.take();
  // After an error of its own a rank goes on, since others wait for what it sends.
  Status mine, passed;
  for (PageId page = 0; page < 2 * shape.records.size() && passed.ok(); ++page) {
    if (!is_durable(shape, page)) continue;
    const int from = readers[static_cast<size_t>(pages.store_of(page))];
    const int to = shape.rank_of(shape.records[session.pages().pages[page].record].device);
    if (from != ranks.rank() && to != ranks.rank()) continue;
    const int64_t payload = session.pages().pages[page].bytes;
    if (from == ranks.rank() && mine.ok()) mine = pages.read(page, memory);
    passed = ranks.pass(from, to, {memory.data() + kPageHeaderBytes, static_cast<size_t>(payload)});
    if (to != ranks.rank() || !mine.ok() || !passed.ok()) continue;
    session.file().write(page, memory.data(), pages.generation(page), Event()).wait();
    mine = session.file().status();
  }
  RETURN_IF_ERROR(passed);
  if (mine.ok()) mine = session.file().sync();
  RETURN_IF_ERROR(ranks.agree(mine));
  session.durable_are_on_disk();
  return Status();
}

namespace {

// Gives the rank's page `out` to another rank, whose page `in` takes its place.
Status exchange_page(int with, PageId out, PageId in, Session& session, HostMemory& buffer) {
  Pager& pager = session.pager();
  RankGroup& ranks = session.ranks();
  Stream& stream = session.executor().host_stream();
  const auto bytes = static_cast<size_t>(session.pages().pages[out].bytes);
  uint64_t mine = 0, theirs = 0;
  {
    const PageUse use{out, Place::host(), Access::kRead};
    const Lease lease = pager.acquire({&use, 1}, stream, 0);
    stream.synchronize();
    std::memcpy(buffer.data(), lease.data(0), bytes);
    mine = pager.generation_in_host(out);
  }
  pager.replace(out, in);
  RETURN_IF_ERROR(ranks.exchange(with, std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(&theirs, 1))));
  const PageUse use{in, Place::host(), Access::kCreate};
  const Lease lease = pager.acquire({&use, 1}, stream, theirs);
  stream.synchronize();
  return ranks.exchange(with, {buffer.data(), bytes}, {lease.data(0), bytes});
}

// Exchanges expert `out`, which is at home here, for expert `in`.
Status exchange_expert(int with, int64_t out, int64_t in, Session& session, HostMemory& buffer) {
  const PageTable& pages = session.pages();
  RETURN_IF_ERROR(exchange_page(with, pages.weights(out), pages.weights(in), session, buffer));
  if (!session.shape().trains(out)) return Status();
  session.pager().replace(pages.gradient(out), pages.gradient(in));
  return exchange_page(with, pages.state(out), pages.state(in), session, buffer);
}

int64_t largest_page(std::span<const HomeSwap> swaps, const PageTable& pages) {
  int64_t largest = 0;
  for (const HomeSwap& swap : swaps) {
    for (const PageId page : {pages.weights(swap.a), pages.state(swap.a)}) {
      largest = std::max(largest, pages.pages[page].bytes);
    }
  }
  return largest;
}

}  // namespace

Result<double> exchange_homes(std::span<const HomeSwap> swaps, Session& session,
                              StepRunner& runner) {
  // Two ranks exchange while others wait for them.
  const RankGroup::OwnWork moves(session.ranks());
  std::vector<int64_t> records;
  for (const HomeSwap& swap : swaps) {
    CHECK(may_exchange(session.shape(), swap));
    records.insert(records.end(), {swap.a, swap.b});
  }
  std::sort(records.begin(), records.end());
  records.erase(std::unique(records.begin(), records.end()), records.end());
  RETURN_IF_ERROR(runner.settle(records));
  session.pager().foresee({});
  session.pager().foresee_later({});
  RankGroup& ranks = session.ranks();
  HostMemory buffer;
  if (!ranks.alone()) {
    auto allocated = HostMemory::allocate(largest_page(swaps, session.pages()));
    RETURN_IF_ERROR(ranks.agree(allocated.status()));
    buffer = allocated.take();
  }
  std::vector<int> home;  // [record] rank
  for (int64_t r = 0; r < std::ssize(session.shape().records); ++r) {
    home.push_back(session.shape().home_rank(r));
  }
  const int64_t began_us = monotonic_us();  // all ranks have agreed
  for (const HomeSwap& swap : swaps) {
    int& of_a = home[static_cast<size_t>(swap.a)];
    int& of_b = home[static_cast<size_t>(swap.b)];
    // A page that could not be read is sent as zeros: the other rank waits for it.
    if (of_a != of_b && of_a == ranks.rank()) {
      RETURN_IF_ERROR(exchange_expert(of_b, swap.a, swap.b, session, buffer));
    } else if (of_a != of_b && of_b == ranks.rank()) {
      RETURN_IF_ERROR(exchange_expert(of_a, swap.b, swap.a, session, buffer));
    }
    std::swap(of_a, of_b);
  }
  RETURN_IF_ERROR(ranks.agree(session.pager().status()));
  ASSIGN_OR_RETURN(const int64_t took_us, ranks.most(monotonic_us() - began_us));
  session.exchange_homes(swaps);
  runner.plan_again();
  return 1e-6 * static_cast<double>(took_us);
}

Result<double> measure_exchange(RankGroup& ranks) {
  constexpr int64_t kBytes = kMiB;
  const int with = ranks.rank() ^ 1;
  std::vector<std::byte> out(kBytes), in(kBytes);
  const int64_t begin_us = monotonic_us();
  if (with < ranks.size()) RETURN_IF_ERROR(ranks.exchange(with, out, in));
  ASSIGN_OR_RETURN(const int64_t took_us,
                   ranks.most(std::max<int64_t>(1, monotonic_us() - begin_us)));
  return 1e6 * static_cast<double>(kBytes) / static_cast<double>(took_us);
}

}  // namespace pagoda
