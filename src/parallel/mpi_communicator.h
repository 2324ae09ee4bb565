// The communicator whose messages a thread's carrier moves: MPI, as join_processes() has it.
//
// The thread that calls sleeps meanwhile. Links of the same ranks (mpi_link.h) use the carrier
// beside it, and an error of one is an error of all.
#pragma once

#include "parallel/carrier_thread.h"
#include "parallel/communicator.h"

namespace pagoda {

class MpiCommunicator final : public Communicator {
 public:
  // Opens the carrier, which every rank does. kStopped when one does not join within `deadline_s`,
  // which also becomes the deadline of later calls (0: none), and errors of `open`.
  static Result<std::unique_ptr<MpiCommunicator>> join(CarrierThread::Open open, double deadline_s);
  // leave(), unless that was called or it is broken.
  ~MpiCommunicator() override;
  // Leaves MPI together with the others, which all call it last. kStopped when some do not come
  // within the deadline: the launcher would wait for them for ever unless this process ends with an
  // error.
  Status leave();

  int rank() const override { return thread_->rank(); }
  int size() const override { return thread_->size(); }
  bool broken() const override { return !thread_->status().ok(); }
  void set_deadline(double seconds) override { deadline_s_ = seconds; }
  void abandon(const Status& why) override { thread_->fail(why); }
  // The same, since a rank is lost: the error also says what this one waited for it in.
  void lose(int rank, const Status& why) { thread_->lose(rank, why); }

  Status send(const OutgoingPiece& piece) override;
  Status receive(const IncomingPiece& piece) override;
  Status exchange(std::span<const OutgoingPiece> out, std::span<const IncomingPiece> in) override;
  Status barrier() override;
  Result<std::vector<std::string>> gather(const std::string& text) override;

  CarrierThread& thread() { return *thread_; }  // for links; they end before this

 private:
  // What all ranks call together.
  enum class Together : int64_t { kGather = 1, kBarrier, kLeave };
  struct Opening;

  explicit MpiCommunicator(std::unique_ptr<CarrierThread> thread, double deadline_s)
      : thread_(std::move(thread)), deadline_s_(deadline_s) {}
  static const char* name_of(Together call);
  CarriedMessage piece(bool sends, int peer, std::byte* data, int64_t bytes) const;
  CarriedMessage message_of(const OutgoingPiece& out) const;
  CarriedMessage message_of(const IncomingPiece& in) const;
  Status carry(std::vector<CarriedMessage> messages);
  Status exchange_together(Together call, std::span<const OutgoingPiece> out,
                           std::span<const IncomingPiece> in);
  Result<std::vector<Opening>> exchange_openings(const Opening& mine);
  Result<std::vector<std::string>> call_together(Together call, const std::string& text);

  std::unique_ptr<CarrierThread> thread_;
  double deadline_s_ = 0;
  bool left_ = false;
};

// Joins the processes that a launcher started together with this one (parallel/launcher.h); as
// MpiCommunicator::join(). Call it once in a process. kUnavailable when this program was built
// without MPI, or with another MPI than the launcher's.
Result<std::unique_ptr<MpiCommunicator>> join_processes(double deadline_s = 0);

}  // namespace pagoda
