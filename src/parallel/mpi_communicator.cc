#include "parallel/mpi_communicator.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/log.h"

namespace pagoda {
namespace {

constexpr int kPieces = 0, kTogether = 1;  // channels
constexpr int64_t kOpeningText = 2032;

// What does not fit into an opening.
const std::byte* rest_of(const std::string& text) {
  return reinterpret_cast<const std::byte*>(text.data()) + kOpeningText;
}
std::byte* rest_of(std::string& text) {
  return reinterpret_cast<std::byte*>(text.data()) + kOpeningText;
}

}  // namespace

const char* MpiCommunicator::name_of(Together call) {
  switch (call) {
    case Together::kGather: return "gather";
    case Together::kBarrier: return "barrier";
    case Together::kLeave: return "common end";
  }
  return "call";
}

// A call's first message, 2 KiB. Most texts fit.
struct MpiCommunicator::Opening {
  int64_t bytes = 0;  // of the whole text
  Together call{};
  std::array<char, kOpeningText> text{};

  int64_t in_opening() const { return std::min(bytes, kOpeningText); }
  int64_t rest() const { return bytes - in_opening(); }
};

Result<std::unique_ptr<MpiCommunicator>> MpiCommunicator::join(CarrierThread::Open open,
                                                               double deadline_s) {
  ASSIGN_OR_RETURN(std::unique_ptr<CarrierThread> thread,
                   CarrierThread::start(std::move(open), deadline_s));
  return std::unique_ptr<MpiCommunicator>(new MpiCommunicator(std::move(thread), deadline_s));
}

MpiCommunicator::~MpiCommunicator() {
  if (left_ || broken()) return;
  const Status left = leave();
  if (!left.ok()) log_warn(left.message());
}

Status MpiCommunicator::leave() {
  left_ = true;
  RETURN_IF_ERROR(call_together(Together::kLeave, "").status());
  return thread_->leave(deadline_s_);
}

CarriedMessage MpiCommunicator::piece(bool sends, int peer, std::byte* data,
                                      int64_t bytes) const {
  CarriedMessage message;
  message.sends = sends;
  message.peer = peer;
  message.channel = kPieces;
  message.data = data;
  message.bytes = bytes;
  message.about = [from = sends ? rank() : peer, to = sends ? peer : rank()] {
    return strf("message from %d to %d", from, to);
  };
  return message;
}

CarriedMessage MpiCommunicator::message_of(const OutgoingPiece& out) const {
  return piece(true, out.to, const_cast<std::byte*>(out.data), out.bytes);  // it is only read
}

CarriedMessage MpiCommunicator::message_of(const IncomingPiece& in) const {
  return piece(false, in.from, in.data, in.bytes);
}

// Returns when all have ended.
Status MpiCommunicator::carry(std::vector<CarriedMessage> messages) {
  std::vector<Event> ended;
  for (CarriedMessage& message : messages) {
    ended.push_back(Event::make());
    message.deadline_s = deadline_s_;
    message.then = [event = ended.back()](const CarriedMessage::End&) mutable { event.signal(); };
  }
  thread_->post(std::move(messages));
  when_all(ended).wait();
  return thread_->status();
}

Status MpiCommunicator::send(const OutgoingPiece& piece) { return carry({message_of(piece)}); }
Status MpiCommunicator::receive(const IncomingPiece& piece) { return carry({message_of(piece)}); }

Status MpiCommunicator::exchange(std::span<const OutgoingPiece> out,
                                 std::span<const IncomingPiece> in) {
  std::vector<CarriedMessage> messages;
  for (const IncomingPiece& piece : in) messages.push_back(message_of(piece));
  for (const OutgoingPiece& piece : out) messages.push_back(message_of(piece));
  return carry(std::move(messages));
}

Status MpiCommunicator::barrier() { return call_together(Together::kBarrier, "").status(); }

Result<std::vector<std::string>> MpiCommunicator::gather(const std::string& text) {
  return call_together(Together::kGather, text);
}

Status MpiCommunicator::exchange_together(Together call, std::span<const OutgoingPiece> out,
                                          std::span<const IncomingPiece> in) {
  std::vector<CarriedMessage> messages;
  for (const IncomingPiece& piece : in) messages.push_back(message_of(piece));
  for (const OutgoingPiece& piece : out) messages.push_back(message_of(piece));
  for (CarriedMessage& message : messages) {
    message.channel = kTogether;
    message.about = [call] { return std::string(name_of(call)); };
  }
  return carry(std::move(messages));
}

// Returns the openings of all ranks, the own one apart.
Result<std::vector<MpiCommunicator::Opening>> MpiCommunicator::exchange_openings(
    const Opening& mine) {
  std::vector<Opening> theirs(static_cast<size_t>(size()));
  std::vector<OutgoingPiece> out;
  std::vector<IncomingPiece> in;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    Opening& its = theirs[static_cast<size_t>(peer)];
    out.push_back({peer, reinterpret_cast<const std::byte*>(&mine), sizeof(Opening)});
    in.push_back({peer, reinterpret_cast<std::byte*>(&its), sizeof(Opening)});
  }
  RETURN_IF_ERROR(exchange_together(mine.call, out, in));
  for (const IncomingPiece& piece : in) {
    const Opening& its = theirs[static_cast<size_t>(piece.from)];
    if (its.call == mine.call && its.bytes >= 0 && its.bytes <= kMostGathered / size()) continue;
    abandon(Status(Exit::kInternal, thread_->rank_text(piece.from) + " does not take part in a " +
                                        name_of(mine.call) + "; please report this"));
  }
  RETURN_IF_ERROR(thread_->status());
  return theirs;
}

Result<std::vector<std::string>> MpiCommunicator::call_together(Together call,
                                                                const std::string& text) {
  CHECK(std::ssize(text) <= kMostGathered / size());
  Opening mine{std::ssize(text), call, {}};
  std::copy_n(text.data(), mine.in_opening(), mine.text.data());
  ASSIGN_OR_RETURN(const std::vector<Opening> theirs, exchange_openings(mine));
  std::vector<std::string> texts(theirs.size());
  std::vector<OutgoingPiece> out;
  std::vector<IncomingPiece> in;
  for (int peer = 0; peer < size(); ++peer) {
    std::string& its_text = texts[static_cast<size_t>(peer)];
    if (peer == rank()) {
      its_text = text;
      continue;
    }
    const Opening& its = theirs[static_cast<size_t>(peer)];
    its_text.resize(static_cast<size_t>(its.bytes));
    std::copy_n(its.text.data(), its.in_opening(), its_text.data());
    if (its.rest() > 0) in.push_back({peer, rest_of(its_text), its.rest()});
    if (mine.rest() > 0) out.push_back({peer, rest_of(text), mine.rest()});
  }
  if (!in.empty() || !out.empty()) RETURN_IF_ERROR(exchange_together(call, out, in));
  return texts;
}

}  // namespace pagoda
