#include "parallel/mpi_link.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pagoda {

// A transfer with messages that have not ended. The carrier's thread alone changes it.
struct MpiLink::UnderWay {
  Transfer transfer;
  bool sends = false;
  int64_t messages = 1;  // until they have ended
  int64_t begin_us = -1;
};

Result<std::unique_ptr<MpiLink>> MpiLink::create(MpiCommunicator& all, std::vector<LinkEnd> ends,
                                                 double deadline_s, Trace* trace) {
  std::unique_ptr<MpiLink> link(new MpiLink(all, std::move(ends), deadline_s, trace));
  RETURN_IF_ERROR(link->stage());
  all.thread().set_link_deadline(deadline_s);
  return link;
}

MpiLink::MpiLink(MpiCommunicator& all, std::vector<LinkEnd> ends, double deadline_s, Trace* trace)
    : all_(all),
      ends_(std::move(ends)),
      deadline_s_(deadline_s),
      trace_(trace),
      ends_of_(static_cast<size_t>(all.size())),
      traffic_(ends_of_.size()) {
  for (const LinkEnd& end : ends_) {
    place_.push_back(ends_of_.at(static_cast<size_t>(end.rank))++);
    cards_ = std::max(cards_, end.card + 1);
  }
  const int most = *std::max_element(ends_of_.begin(), ends_of_.end());
  CHECK(CarrierFlows::kFirstLinkChannel + most * most <= Carrier::kMostChannel,
        "a rank has %d endpoints", most);
}

Status MpiLink::Staging::allocate(Device& gpu, int64_t bytes) {
  ASSIGN_OR_RETURN(memory, HostMemory::allocate(bytes));
  pin = gpu.pin(memory.data(), bytes);
  empty.resize(static_cast<size_t>(bytes / Carrier::kMostBytes));
  return Status();
}

Status MpiLink::stage() {
  for (int here = 0; here < std::ssize(ends_); ++here) {
    Device* gpu = ends_[here].gpu;
    if (gpu == nullptr) continue;
    CHECK(ends_[here].rank == all_.rank());
    RETURN_IF_ERROR(in_[here].allocate(*gpu, kReceiveStagingBytes));
    for (int to = 0; to < std::ssize(ends_); ++to) {
      if (ends_[to].rank == all_.rank()) continue;
      Staging& out = out_[{here, to}];
      RETURN_IF_ERROR(out.allocate(*gpu, kSendStagingBytes));
      out.stream = gpu->make_stream(strf("send %d to %d", here, to), WorkKind::kLink);
    }
  }
  return Status();
}

// Lanes that wait for a transfer go on. What they copy from stays until they have.
MpiLink::~MpiLink() {
  all_.thread().forget(this);
  for (auto& [to, staging] : in_) when_all(staging.empty).wait();
}

int MpiLink::channel(const Transfer& transfer) const {
  const int receivers = ends_of_[static_cast<size_t>(ends_[transfer.to].rank)];
  return CarrierFlows::kFirstLinkChannel + place_[transfer.from] * receivers +
         place_[transfer.to];
}

// The queue of this end's messages: each card has one for each direction and Transfer::turns.
int MpiLink::queue(const Transfer& transfer, bool sends) const {
  if (transfer.turns == 0) return -1;
  const int card = ends_[sends ? transfer.from : transfer.to].card;
  return 2 * (transfer.turns * cards_ + card) + (sends ? 1 : 0);
}

void MpiLink::check_order(const Transfer& transfer) {
  const auto [newest, is_first] =
      newest_.try_emplace({transfer.from, transfer.to}, transfer.number);
  CHECK(is_first || newest->second < transfer.number, "%s comes behind %lld",
        transfer.text().c_str(), (long long)newest->second);
  newest->second = transfer.number;
}

CarriedMessage MpiLink::message(const std::shared_ptr<UnderWay>& under_way, std::byte* data,
                                int64_t bytes, Event ready, Event ended) {
  const Transfer& transfer = under_way->transfer;
  CarriedMessage message;
  message.sends = under_way->sends;
  message.peer = ends_[under_way->sends ? transfer.to : transfer.from].rank;
  message.channel = channel(transfer);
  message.queue = queue(transfer, under_way->sends);
  message.data = data;
  message.bytes = bytes;
  message.ready = std::move(ready);
  message.deadline_s = deadline_s_;
  message.owner = this;
  message.about = [under_way] { return under_way->transfer.text(); };
  message.then = [this, under_way, ended = std::move(ended)](
                     const CarriedMessage::End& end) mutable {
    this->end(*under_way, end);
    ended.signal(Delays(WorkKind::kLink));
  };
  return message;
}

void MpiLink::end(UnderWay& under_way, const CarriedMessage::End& end) {
  if (under_way.begin_us < 0) under_way.begin_us = end.begin_us;
  if (--under_way.messages > 0 || !end.status.ok()) return;
  const Transfer& transfer = under_way.transfer;
  const int peer = ends_[under_way.sends ? transfer.to : transfer.from].rank;
  if (trace_ != nullptr && trace_->on()) {
    TraceLabel label{transfer.about.empty() ? "transfer" : transfer.about, {}, 0};
    label.add("number", transfer.number).add("from", transfer.from).add("to", transfer.to);
    label.add(kTraceBytes, transfer.bytes);
    if (transfer.rows > 0) label.add("rows", transfer.rows);
    if (transfer.turns > 0) label.add("turns", transfer.turns);
    trace_->span(trace_lane(*trace_, under_way.sends, peer), under_way.begin_us, end.end_us,
                 std::move(label));
  }
  std::lock_guard lock(mutex_);
  PeerTraffic& traffic = traffic_[static_cast<size_t>(peer)];
  (under_way.sends ? traffic.sent : traffic.received).add(transfer);
  traffic.in_turn += transfer.turns > 0;
  (under_way.sends ? traffic.sending_us : traffic.receiving_us) += end.end_us - under_way.begin_us;
}

Status MpiLink::status() const {
  RETURN_IF_ERROR(all_.thread().status());
  return all_.thread().link_given_up().why;
}

Event MpiLink::send(const Transfer& transfer, const std::byte* source, Stream& lane) {
  CHECK(ends_[transfer.from].rank == all_.rank() && ends_[transfer.to].rank != all_.rank());
  check_order(transfer);
  if (ends_[transfer.from].gpu != nullptr) return send_staged(transfer, source, lane);
  Event sent = Event::make();
  auto under_way = std::make_shared<UnderWay>(transfer, true);
  auto* data = const_cast<std::byte*>(source);  // it is only read
  all_.thread().post({message(under_way, data, transfer.bytes, lane.record(), sent)});
  return sent;
}

void MpiLink::receive(const Transfer& transfer, std::byte* target, Stream& lane,
                      const TraceLabel& label) {
  CHECK(ends_[transfer.to].rank == all_.rank() && ends_[transfer.from].rank != all_.rank());
  check_order(transfer);
  if (ends_[transfer.to].gpu != nullptr) {
    receive_staged(transfer, target, lane, label);
  } else {
    Event arrived = Event::make();
    auto under_way = std::make_shared<UnderWay>(transfer, false);
    all_.thread().post({message(under_way, target, transfer.bytes, lane.record(), arrived)});
    lane.wait(arrived);
  }
  counts_[{transfer.from, transfer.to}].add(transfer);
}

namespace {

// piece(offset, bytes) for each piece of a transfer; an empty transfer is one piece too.
template <typename Piece>
void for_each_piece(int64_t bytes, const Piece& piece) {
  for (int64_t offset = 0; offset == 0 || offset < bytes; offset += Carrier::kMostBytes) {
    piece(offset, std::min(bytes - offset, Carrier::kMostBytes));
  }
}

int64_t pieces_of(int64_t bytes) {
  return std::max<int64_t>(1, div_ceil(bytes, Carrier::kMostBytes));
}

}  // namespace

// The source may be overwritten once it has been copied.
Event MpiLink::send_staged(const Transfer& transfer, const std::byte* source, Stream& lane) {
  Staging& staging = out_.at({transfer.from, transfer.to});
  Stream& stream = *staging.stream;
  auto under_way = std::make_shared<UnderWay>(transfer, true, pieces_of(transfer.bytes));
  stream.wait(lane.record());
  for_each_piece(transfer.bytes, [&](int64_t offset, int64_t bytes) {
    const size_t piece = staging.take();
    stream.wait(staging.empty[piece]);
    stream.copy(staging.piece(piece), source + offset, bytes);
    staging.empty[piece] = Event::make();
    all_.thread().post({message(under_way, staging.piece(piece), bytes, stream.record(),
                                staging.empty[piece])});
  });
  return stream.record();
}

// The lane shows a span for each piece, without the wait for it.
void MpiLink::receive_staged(const Transfer& transfer, std::byte* target, Stream& lane,
                             const TraceLabel& label) {
  Staging& staging = in_.at(transfer.to);
  auto under_way = std::make_shared<UnderWay>(transfer, false, pieces_of(transfer.bytes));
  for_each_piece(transfer.bytes, [&](int64_t offset, int64_t bytes) {
    const size_t piece = staging.take();
    Event arrived = Event::make();
    CarriedMessage in =
        message(under_way, staging.piece(piece), bytes, staging.empty[piece], arrived);
    in.expected = lane.record();
    all_.thread().post({std::move(in)});
    lane.wait(arrived);
    if (lane.traced()) lane.begin_span(label);
    lane.copy(target + offset, staging.piece(piece), bytes);
    lane.end_span();
    staging.empty[piece] = lane.record();
  });
}

std::vector<MpiLink::PeerTraffic> MpiLink::traffic() const {
  std::lock_guard lock(mutex_);
  return traffic_;
}

}  // namespace pagoda
