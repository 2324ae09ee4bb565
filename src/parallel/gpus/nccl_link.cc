#include "parallel/gpus/nccl_link.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "device/cuda_stream.h"
#include "parallel/gpus/nccl_calls.h"

namespace pagoda {
namespace {

constexpr int64_t kZeroBytes = kMiB;
constexpr int64_t kLookUs = 100'000;  // at NCCL's errors, while a round is under way
constexpr int64_t kFirstPauseUs = 20, kLongestPauseUs = 1000;  // while NCCL is not ready
constexpr double kLeaveSeconds = 10;

bool is_error(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

// Both ends of a transfer in one round get the same number, others hardly ever do.
uint64_t mark_of(int64_t round, const Transfer& transfer) {
  uint64_t mark = 0x9e3779b97f4a7c15;
  for (const int64_t part :
       {round, int64_t{transfer.from}, int64_t{transfer.to}, transfer.number, transfer.bytes}) {
    mark = (mark ^ static_cast<uint64_t>(part)) * 0xff51afd7ed558ccd;
    mark ^= mark >> 32;
  }
  return mark;
}

}  // namespace

// Outlives the link where an event still knows it.
struct NcclLink::Waker {
  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  bool woken = false;

  void wake() {
    {
      std::lock_guard lock(mutex);
      woken = true;
    }
    changed.notify_one();
  }
  // Until it is woken, or for so long; 0: for ever.
  void wait(int64_t us) {
    std::unique_lock lock(mutex);
    if (us == 0) {
      changed.wait(lock, [this] { return woken; });
    } else {
      changed.wait_for(lock, std::chrono::microseconds(us), [this] { return woken; });
    }
    woken = false;
  }
};

struct NcclLink::Gpu {
  std::unique_ptr<Stream> stream;
  ncclComm_t comm = nullptr;
};

Result<std::unique_ptr<NcclLink>> NcclLink::create(MpiCommunicator& all, const NcclCalls& calls,
                                                   const std::vector<Device*>& gpus,
                                                   std::vector<int> rank_of, double deadline_s) {
  std::unique_ptr<NcclLink> link(new NcclLink(all, calls, std::move(rank_of), deadline_s));
  RETURN_IF_ERROR(link->join(gpus));
  all.thread().set_link_deadline(deadline_s);
  link->thread_ = std::thread([raw = link.get()] { raw->run(); });
  return link;
}

NcclLink::NcclLink(MpiCommunicator& all, const NcclCalls& calls, std::vector<int> rank_of,
                   double deadline_s)
    : all_(all),
      calls_(std::make_unique<NcclCalls>(calls)),
      rank_of_(std::move(rank_of)),
      deadline_s_(deadline_s),
      issued_(static_cast<size_t>(all.size())),
      waker_(std::make_shared<Waker>()) {}

NcclLink::~NcclLink() {
  end(open_);
  if (thread_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    waker_->wake();
    thread_.join();
  } else {
    abort();
  }
  for (std::thread& abort : aborts_) abort.join();
}

Status NcclLink::error_of(const char* call, int result) const {
  return Status(Exit::kUnavailable,
                strf("rank %d of %d: %s: %s; start all processes again", all_.rank(), all_.size(),
                     call, calls_->error_text(static_cast<ncclResult_t>(result))));
}

// ---- joining ----

// Rank 0's id makes one group of all devices.
Status NcclLink::join(const std::vector<Device*>& gpus) {
  Result<HostMemory> zeros = HostMemory::allocate(kZeroBytes);
  ncclUniqueId id = {};
  Status mine = zeros.status();
  if (mine.ok() && all_.rank() == 0) {
    const ncclResult_t got = calls_->get_unique_id(&id);
    if (got != ncclSuccess) mine = error_of("ncclGetUniqueId", got);
  }
  RETURN_IF_ERROR(agree(all_, mine));
  zeros_ = zeros.take();
  std::memset(zeros_.data(), 0, kZeroBytes);
  for (int device = 0; device < std::ssize(gpus); ++device) {
    if (gpus[device] == nullptr) continue;
    CHECK(rank_of_.at(static_cast<size_t>(device)) == all_.rank());
    Gpu& gpu = gpus_[device];
    gpu.stream = gpus[device]->make_stream(strf("NCCL %d", device), WorkKind::kLink);
    if (!pin_) pin_ = gpus[device]->pin(zeros_.data(), kZeroBytes);  // for all of them
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                   all_.gather(std::string(id.internal, sizeof(id.internal))));
  RETURN_IF_ERROR(agree(all_, init_ranks(ids.front())));  // else some would wait for others
  return agree(all_, settle(deadline_s_, [] { return false; }));
}

Status NcclLink::init_ranks(const std::string& id_bytes) {
  ncclUniqueId id = {};
  if (id_bytes.size() != sizeof(id.internal)) {
    return Status(Exit::kIoError,
                  "rank 0 sent no valid id of NCCL; nothing was changed: see that all "
                  "ranks have the same program and NCCL");
  }
  std::memcpy(id.internal, id_bytes.data(), sizeof(id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // so that nothing hangs
  ncclResult_t result = calls_->group_start();
  if (is_error(result)) return error_of("ncclGroupStart", result);
  Status status;
  for (auto& [device, gpu] : gpus_) {
    raw_stream(*gpu.stream);  // its GPU is the thread's now
    result = calls_->init_rank(&gpu.comm, static_cast<int>(rank_of_.size()), id, device, &config);
    if (is_error(result)) status = error_of("ncclCommInitRankConfig", result);
    if (!status.ok()) break;
  }
  result = calls_->group_end();
  if (status.ok() && is_error(result)) status = error_of("ncclGroupEnd", result);
  return status;
}

// Waits until NCCL has done what it does in the background, or this rank gives up.
template <typename GiveUp>
Status NcclLink::settle(double deadline_s, const GiveUp& gives_up) {
  const int64_t begin_us = monotonic_us();
  for (auto& [device, gpu] : gpus_) {
    for (;;) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = calls_->async_error(gpu.comm, &state);
      if (asked != ncclSuccess) return error_of("ncclCommGetAsyncError", asked);
      if (state == ncclSuccess) break;
      if (is_error(state)) return error_of("NCCL", state);
      const int64_t waited_us = monotonic_us() - begin_us;
      if (deadline_s > 0 && static_cast<double>(waited_us) > 1e6 * deadline_s) {
        return Status(Exit::kStopped, strf("rank %d has waited for others in NCCL for %g s; let "
                                           "NCCL reach all machines (NCCL_SOCKET_IFNAME names the "
                                           "network), or set parallel.nccl = false",
                                           all_.rank(), deadline_s));
      }
      if (gives_up()) return Status(Exit::kStopped, "given up");
      std::this_thread::sleep_for(
          std::chrono::microseconds(std::clamp(waited_us / 8, kFirstPauseUs, kLongestPauseUs)));
    }
  }
  return Status();
}

// ---- the issuing thread ----

NcclLink::Operation& NcclLink::add(const Transfer& transfer, bool sends, std::byte* data,
                                   Stream& lane) {
  const int here = sends ? transfer.from : transfer.to, there = sends ? transfer.to : transfer.from;
  CHECK(gpus_.contains(here) && !gpus_.contains(there), "%s", transfer.text().c_str());
  const auto [newest, is_first] =
      newest_.try_emplace({transfer.from, transfer.to}, transfer.number);
  CHECK(is_first || newest->second < transfer.number, "%s comes behind %lld",
        transfer.text().c_str(), (long long)newest->second);
  newest->second = transfer.number;
  for (const Operation& other : open_.operations) {
    CHECK(sends || other.sends || other.lane != &lane, "%s: a lane receives twice in a round",
          transfer.text().c_str());
  }
  issued_[static_cast<size_t>(rank_of_[static_cast<size_t>(there)])] +=
      mark_of(open_.number, transfer);
  open_.operations.push_back({transfer, sends, data, &lane, lane.record(), Event::make()});
  return open_.operations.back();
}

Event NcclLink::send(const Transfer& transfer, const std::byte* source, Stream& lane) {
  return add(transfer, true, const_cast<std::byte*>(source), lane).done;  // it is only read
}

void NcclLink::receive(const Transfer& transfer, std::byte* target, Stream& lane,
                       const TraceLabel&) {
  lane.wait(add(transfer, false, target, lane).done);
  counts_[{transfer.from, transfer.to}].add(transfer);
}

void NcclLink::end_round() {
  const int64_t number = open_.number;
  if (!open_.operations.empty()) {
    std::vector<Event> ready;
    for (const Operation& operation : open_.operations) ready.push_back(operation.ready);
    open_.ready = when_all(ready);
    const Event all_ready = open_.ready;
    {
      std::lock_guard lock(mutex_);
      ended_.push_back(std::move(open_));
    }
    open_ = {};
    all_ready.when_happened([waker = waker_] { waker->wake(); });
  }
  open_.number = number + 1;
}

Status NcclLink::status() const {
  RETURN_IF_ERROR(all_.thread().status());
  return all_.thread().link_given_up().why;
}

void NcclLink::give_up(const Status& why) {
  all_.thread().give_up_link(why);
  waker_->wake();
}

Status NcclLink::check_rounds() const {
  std::string mine = strf("%lld", (long long)open_.number);
  for (const uint64_t sum : issued_) mine += strf(" %llx", (unsigned long long)sum);
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all_.gather(mine));
  std::vector<std::vector<std::string>> words;  // [rank] rounds, then [rank] its sum
  for (const std::string& text : texts) {
    std::istringstream in(text);
    words.emplace_back(std::istream_iterator<std::string>(in),
                       std::istream_iterator<std::string>());
    words.back().resize(static_cast<size_t>(all_.size()) + 1);
  }
  for (size_t a = 0; a < words.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (words[a][0] == words[b][0] && words[a][1 + b] == words[b][1 + a]) continue;
      return Status(Exit::kInternal,
                    strf("ranks %zu and %zu have other transfers with each other, or in other "
                         "rounds; please report this",
                         b, a));
    }
  }
  return Status();
}

// ---- the link's thread ----

void NcclLink::run() {
  for (bool goes_on = true; goes_on;) {
    waker_->wait(under_way_.empty() ? 0 : kLookUs);
    goes_on = take_ended();
    if (!status().ok()) abort();
    while (!waiting_.empty() && waiting_.front().ready.happened()) {
      launch(waiting_.front());
      under_way_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    if (const Status watched = watch(); !watched.ok()) fail(watched);
  }
  if (!under_way_.empty()) fail(Status(Exit::kStopped, "a link ended before its transfers"));
  for (Round& round : under_way_) {
    round.ended.wait();
    end(round);
  }
  for (Round& round : waiting_) end(round);
  leave();
}

// Returns false when the thread is to end.
bool NcclLink::take_ended() {
  std::lock_guard lock(mutex_);
  for (Round& round : ended_) waiting_.push_back(std::move(round));
  ended_.clear();
  return !stop_;
}

void NcclLink::leave() {
  if (aborted_) return;
  bool is_left = true;  // what destroy says comes too late for anyone
  for (auto& [device, gpu] : gpus_) is_left = is_left && !is_error(calls_->finalize(gpu.comm));
  if (!is_left || !settle(kLeaveSeconds, [] { return false; }).ok()) return abort();
  for (auto& [device, gpu] : gpus_) calls_->destroy(std::exchange(gpu.comm, nullptr));
}

void NcclLink::launch(Round& round) {
  round.begin_us = monotonic_us();
  if (!aborted_) {
    if (const Status issued = issue(round); !issued.ok()) fail(issued);
  }
  if (aborted_) write_zeros(round);
  follow(round);
}

Status NcclLink::issue(const Round& round) {
  ncclResult_t result = calls_->group_start();
  if (is_error(result)) return error_of("ncclGroupStart", result);
  Status status = issue_calls(round);
  result = calls_->group_end();
  if (status.ok() && is_error(result)) status = error_of("ncclGroupEnd", result);
  RETURN_IF_ERROR(status);
  return settle(deadline_s_, [this] {
    std::lock_guard lock(mutex_);
    return stop_ || !this->status().ok();
  });
}

// The calls of a round, in the order in which its transfers were issued. What is empty needs none.
Status NcclLink::issue_calls(const Round& round) {
  for (const Operation& operation : round.operations) {
    const Transfer& transfer = operation.transfer;
    if (transfer.bytes == 0) continue;
    Gpu& gpu = gpus_.at(operation.device());
    const auto bytes = static_cast<size_t>(transfer.bytes);
    cudaStream_t stream = raw_stream(*gpu.stream);
    const ncclResult_t result =
        operation.sends
            ? calls_->send(operation.data, bytes, ncclInt8, transfer.to, gpu.comm, stream)
            : calls_->receive(operation.data, bytes, ncclInt8, transfer.from, gpu.comm, stream);
    if (is_error(result)) return error_of(operation.sends ? "ncclSend" : "ncclRecv", result);
  }
  return Status();
}

// The round has ended once its streams get here.
void NcclLink::follow(Round& round) {
  std::map<int, Event> ends;  // [device]
  for (const Operation& operation : round.operations) {
    const int device = operation.device();
    if (!ends.contains(device)) ends[device] = gpus_.at(device).stream->record();
  }
  std::vector<Event> all;
  for (const auto& [device, end] : ends) all.push_back(end);
  round.ended = when_all(all);
  round.ended.when_happened([waker = waker_] { waker->wake(); });
}

void NcclLink::end(Round& round) {
  for (Operation& operation : round.operations) operation.done.signal(Delays(WorkKind::kLink));
}

// Ends rounds that have ended, in their order: the first one is the one that stands still. Returns
// what is wrong with it.
Status NcclLink::watch() {
  while (!under_way_.empty() && under_way_.front().ended.happened()) {
    end(under_way_.front());
    under_way_.pop_front();
  }
  if (under_way_.empty() || aborted_) return Status();
  for (auto& [device, gpu] : gpus_) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = calls_->async_error(gpu.comm, &state);
    if (asked != ncclSuccess) return error_of("ncclCommGetAsyncError", asked);
    if (is_error(state)) return error_of("NCCL", state);
  }
  const double waited_s = 1e-6 * static_cast<double>(monotonic_us() - under_way_.front().begin_us);
  return deadline_s_ > 0 && waited_s > deadline_s_ ? silence_in(under_way_.front()) : Status();
}

Status NcclLink::silence_in(const Round& round) const {
  const Operation& first = round.operations.front();
  const int there = first.sends ? first.transfer.to : first.transfer.from;
  return Status(Exit::kStopped,
                all_.thread().rank_text(rank_of_[static_cast<size_t>(there)]) +
                    strf(" may have been silent for %g s: round %lld of NCCL does not end, with ",
                         deadline_s_, (long long)round.number) +
                    first.transfer.text());
}

void NcclLink::fail(const Status& why) {
  all_.thread().give_up_link(why);
  abort();
}

// Zeros come behind what a stream does for NCCL, so they are enqueued before that may stop.
// NCCL's communicators may wait for each other's end, and for the GPU's other streams, which wait
// for transfers: so each has a thread, which nobody waits for until all transfers have ended.
void NcclLink::abort() {
  if (std::exchange(aborted_, true)) return;
  for (Round& round : under_way_) {
    if (round.ended.happened()) continue;
    write_zeros(round);
    follow(round);
  }
  for (auto& [device, gpu] : gpus_) {
    ncclComm_t comm = std::exchange(gpu.comm, nullptr);
    if (comm != nullptr) aborts_.emplace_back([this, comm] { calls_->abort(comm); });
  }
}

void NcclLink::write_zeros(const Round& round) {
  for (const Operation& operation : round.operations) {
    const int64_t bytes = operation.sends ? 0 : operation.transfer.bytes;
    Stream& stream = *gpus_.at(operation.device()).stream;
    for (int64_t done = 0; done < bytes; done += kZeroBytes) {
      stream.copy(operation.data + done, zeros_.data(), std::min(kZeroBytes, bytes - done));
    }
  }
}

}  // namespace pagoda
