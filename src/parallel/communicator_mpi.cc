#include <mpi.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/log.h"
#include "parallel/host_name.h"
#include "parallel/launcher.h"
#include "parallel/mpi_communicator.h"

namespace pagoda {
namespace {

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

// Messages of a communicator of its own, so that no other code of this process meets them.
// Channels are tags.
class MpiCarrier final : public Carrier {
 public:
  // REQUIRES: MPI_Init_thread returned MPI_SUCCESS.
  MpiCarrier() {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  // All ranks call it. After an error leave() may be called.
  Status open();

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string host(int rank) const override { return hosts_[rank]; }
  Status start(const Message& message) override;
  Status test(std::vector<Ended>& ended) override;
  Result<Unasked> peek(int channel) override;
  Status exchange_all(const std::byte* out, std::byte* in, int64_t bytes) override;
  void leave() override { MPI_Finalize(); }

 private:
  static Status checked(int code, const std::string& call) {
    if (code == MPI_SUCCESS) return Status();
    return Status(Exit::kIoError, call + ": " + error_text(code));
  }
  static std::string call_of(bool sends, int peer) {
    return strf("%s rank %d", sends ? "MPI_Isend to" : "MPI_Irecv from", peer);
  }
  void drop_ended();

  MPI_Comm messages_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::vector<std::string> hosts_;  // [rank]
  std::vector<MPI_Request> requests_;
  std::vector<Message> started_;  // [request]
  std::vector<int> indices_;      // of requests that have ended
  std::vector<MPI_Status> statuses_;
};

Status MpiCarrier::open() {
  RETURN_IF_ERROR(checked(MPI_Comm_dup(MPI_COMM_WORLD, &messages_), "MPI_Comm_dup"));
  using Name = std::array<char, 256>;  // zeros behind it
  Name mine{};
  host_name().copy(mine.data(), mine.size() - 1);
  std::vector<Name> all(static_cast<size_t>(size_));
  const int bytes = static_cast<int>(mine.size());
  RETURN_IF_ERROR(
      checked(MPI_Allgather(mine.data(), bytes, MPI_CHAR, all.data(), bytes, MPI_CHAR, messages_),
              "MPI_Allgather"));
  for (const Name& name : all) hosts_.push_back(printable(name.data()));
  return Status();
}

Status MpiCarrier::start(const Message& message) {
  const int bytes = static_cast<int>(message.bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = message.sends
                       ? MPI_Isend(message.data, bytes, MPI_BYTE, message.peer, message.channel,
                                   messages_, &request)
                       : MPI_Irecv(message.data, bytes, MPI_BYTE, message.peer, message.channel,
                                   messages_, &request);
  RETURN_IF_ERROR(checked(code, call_of(message.sends, message.peer)));
  requests_.push_back(request);
  started_.push_back(message);
  return Status();
}

Status MpiCarrier::test(std::vector<Ended>& ended) {
  if (requests_.empty()) return Status();
  int count = 0;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                indices_.data(), statuses_.data());
  if (code != MPI_ERR_IN_STATUS) RETURN_IF_ERROR(checked(code, "MPI_Testsome"));
  for (size_t i = 0; i < static_cast<size_t>(std::max(count, 0)); ++i) {
    const Message& message = started_[static_cast<size_t>(indices_[i])];
    if (code == MPI_ERR_IN_STATUS) {
      RETURN_IF_ERROR(checked(statuses_[i].MPI_ERROR, call_of(message.sends, message.peer)));
    }
    int bytes = static_cast<int>(message.bytes);
    if (!message.sends) MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
    ended.push_back({message.id, bytes});
  }
  if (count > 0) drop_ended();
  return Status();
}

Result<Carrier::Unasked> MpiCarrier::peek(int channel) {
  int found = 0, bytes = 0;
  MPI_Status status;
  RETURN_IF_ERROR(checked(MPI_Iprobe(MPI_ANY_SOURCE, channel, messages_, &found, &status),
                          "MPI_Iprobe"));
  if (found == 0) return Unasked{};
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  return Unasked{status.MPI_SOURCE, bytes};
}

Status MpiCarrier::exchange_all(const std::byte* out, std::byte* in, int64_t bytes) {
  std::vector<int> counts(static_cast<size_t>(size_), static_cast<int>(bytes)), offsets;
  for (int rank = 0; rank < size_; ++rank) offsets.push_back(rank * static_cast<int>(bytes));
  return checked(MPI_Alltoallv(out, counts.data(), offsets.data(), MPI_BYTE, in, counts.data(),
                               offsets.data(), MPI_BYTE, messages_),
                 "MPI_Alltoallv");
}

void MpiCarrier::drop_ended() {
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    started_[kept++] = started_[i];
  }
  requests_.resize(kept);
  started_.resize(kept);
}

// Over TCP Open MPI asks for the rest of a large message and waits for the answer, which stands
// behind what goes the other way: even exchanges of two nodes took 1.2 to 2 times as long as the
// wire needs, and 1.0 to 1.2 times where messages are sent as they are
// (tools/bench/results/exchange_machines.txt).
//
// What it still asks and answers at the beginning of a large message stands behind what goes the
// same way, as far as that is in the socket already: up to 4 MiB where the system sizes the socket,
// 160 ms at 200 Mbit/s. So the socket holds 256 KiB, 10 ms, or up to double, since Linux doubles
// the number to have room for its own records. A connection then sends no more than that in a round
// trip: 2.6 GB/s or more at 0.1 ms, which is 20 Gbit/s. Between faster or farther machines the
// system's choice, 0, may be better.
//
// A variable that is set stays.
void set_up_tcp() {
  constexpr const char* kOnlySend = "1";  // MCA_BTL_FLAGS_SEND, without put and get
  constexpr const char* kSocketBytes = "262144";
  setenv("OMPI_MCA_btl_tcp_flags", kOnlySend, 0);
  setenv("OMPI_MCA_btl_tcp_sndbuf", kSocketBytes, 0);
}

Result<std::unique_ptr<Carrier>> open_mpi() {
  set_up_tcp();
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  if (code != MPI_SUCCESS) {
    return Status(Exit::kUnavailable, "MPI_Init_thread: " + error_text(code));
  }
  auto carrier = std::make_unique<MpiCarrier>();
  Status status = carrier->open();
  const Launch launch = read_launch();
  if (provided < MPI_THREAD_FUNNELED) {
    status =
        Status(Exit::kUnavailable, mpi_library() + " does not let a program have threads");
  } else if (launch.processes > 0 && launch.processes != carrier->size()) {
    status =
        Status(Exit::kUnavailable,
               strf("%s started %d processes, but %s, which this program was built with, sees "
                    "%d; start it with that MPI's mpirun, or srun --mpi=pmix",
                    launch.launcher.c_str(), launch.processes, mpi_library().c_str(),
                    carrier->size()));
  }
  if (status.ok()) return std::unique_ptr<Carrier>(std::move(carrier));
  carrier->leave();
  return status;
}

}  // namespace

// Its first words: "Open MPI v4.1.4, package: ..."
std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

Result<std::unique_ptr<MpiCommunicator>> join_processes(double deadline_s) {
  return MpiCommunicator::join(open_mpi, deadline_s);
}

}  // namespace pagoda
