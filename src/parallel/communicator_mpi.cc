#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "base/check.h"
#include "parallel/communicator.h"
#include "parallel/launcher.h"

namespace pagoda {
namespace {

constexpr int64_t kMostBytes = 16 * 1024 * 1024;  // of one message; MPI counts with an int
constexpr int kTag = 0;

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

class MpiCommunicator final : public Communicator {
 public:
  // REQUIRES: MPI_Init_thread returned MPI_SUCCESS.
  MpiCommunicator() {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~MpiCommunicator() override {
    if (!broken_) MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool broken() const override { return broken_; }

  Status send(const OutgoingPiece& piece) override;
  Status receive(const IncomingPiece& piece) override;
  Status exchange(std::span<const OutgoingPiece> out, std::span<const IncomingPiece> in) override;
  Status barrier() override { return checked(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); }
  Result<std::vector<std::string>> gather(const std::string& text) override;

 private:
  Status broken_by(const std::string& what, const std::string& why) {
    broken_ = true;
    return Status(Exit::kIoError, strf("rank %d of %d: ", rank_, size_) + what + ": " + why +
                                      "; start all processes again");
  }
  Status checked(int code, const std::string& what) {
    return code == MPI_SUCCESS ? Status() : broken_by(what, error_text(code));
  }
  // A piece that is shorter than was asked for; a longer one is an error of MPI's.
  Status check_bytes(const MPI_Status& status, int from, int64_t bytes) {
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (count == bytes) return Status();
    return broken_by(strf("MPI_Recv from rank %d", from),
                     strf("%d bytes came, not %lld", count, (long long)bytes));
  }
  void peer_is_valid(int peer) const { CHECK(peer >= 0 && peer < size_ && peer != rank_); }
  Status finish(std::vector<MPI_Request>& requests, std::span<const IncomingPiece> awaited);
  Status wait_asleep(MPI_Request request, const char* what);

  int rank_ = 0, size_ = 1;
  bool broken_ = false;
};

// part(offset, bytes) for each message of a piece; an empty piece is one message too.
template <typename Part>
void for_each_part(int64_t bytes, const Part& part) {
  int64_t offset = 0;
  do {
    const int64_t count = std::min(kMostBytes, bytes - offset);
    part(offset, static_cast<int>(count));
    offset += count;
  } while (offset < bytes);
}

Status MpiCommunicator::send(const OutgoingPiece& piece) {
  peer_is_valid(piece.to);
  Status status;
  for_each_part(piece.bytes, [&](int64_t offset, int bytes) {
    if (!status.ok()) return;
    status = checked(MPI_Send(piece.data + offset, bytes, MPI_BYTE, piece.to, kTag, MPI_COMM_WORLD),
                     strf("MPI_Send to rank %d", piece.to));
  });
  return status;
}

Status MpiCommunicator::receive(const IncomingPiece& piece) {
  peer_is_valid(piece.from);
  Status status;
  for_each_part(piece.bytes, [&](int64_t offset, int bytes) {
    if (!status.ok()) return;
    MPI_Status found;
    status = checked(MPI_Recv(piece.data + offset, bytes, MPI_BYTE, piece.from, kTag,
                              MPI_COMM_WORLD, &found),
                     strf("MPI_Recv from rank %d", piece.from));
    if (status.ok()) status = check_bytes(found, piece.from, bytes);
  });
  return status;
}

// Waits for all; the first of them are those of `awaited`, a message each.
Status MpiCommunicator::finish(std::vector<MPI_Request>& requests,
                               std::span<const IncomingPiece> awaited) {
  std::vector<MPI_Status> found(requests.size());
  const int code =
      MPI_Waitall(static_cast<int>(requests.size()), requests.data(), found.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : found) {
      if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) {
        return checked(status.MPI_ERROR, "MPI_Waitall");
      }
    }
  }
  RETURN_IF_ERROR(checked(code, "MPI_Waitall"));
  for (size_t i = 0; i < awaited.size(); ++i) {
    RETURN_IF_ERROR(check_bytes(found[i], awaited[i].from, awaited[i].bytes));
  }
  return Status();
}

Status MpiCommunicator::exchange(std::span<const OutgoingPiece> out,
                                 std::span<const IncomingPiece> in) {
  std::vector<MPI_Request> requests;
  std::vector<IncomingPiece> awaited;
  Status status;
  for (const IncomingPiece& piece : in) {
    peer_is_valid(piece.from);
    for_each_part(piece.bytes, [&](int64_t offset, int bytes) {
      if (!status.ok()) return;
      requests.push_back(MPI_REQUEST_NULL);
      awaited.push_back({piece.from, piece.data + offset, bytes});
      status = checked(MPI_Irecv(piece.data + offset, bytes, MPI_BYTE, piece.from, kTag,
                                 MPI_COMM_WORLD, &requests.back()),
                       strf("MPI_Irecv from rank %d", piece.from));
    });
  }
  for (const OutgoingPiece& piece : out) {
    peer_is_valid(piece.to);
    for_each_part(piece.bytes, [&](int64_t offset, int bytes) {
      if (!status.ok()) return;
      requests.push_back(MPI_REQUEST_NULL);
      status = checked(MPI_Isend(piece.data + offset, bytes, MPI_BYTE, piece.to, kTag,
                                 MPI_COMM_WORLD, &requests.back()),
                       strf("MPI_Isend to rank %d", piece.to));
    });
  }
  RETURN_IF_ERROR(status);
  return finish(requests, awaited);
}

// Others may be minutes away, and their work may need this core.
Status MpiCommunicator::wait_asleep(MPI_Request request, const char* what) {
  constexpr int kAwakeTries = 100;
  for (int tries = 0;; ++tries) {
    int done = 0;
    RETURN_IF_ERROR(checked(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what));
    if (done != 0) return Status();
    if (tries >= kAwakeTries) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<std::vector<std::string>> MpiCommunicator::gather(const std::string& text) {
  CHECK(static_cast<int64_t>(text.size()) * size_ <= kMostBytes);
  const int mine = static_cast<int>(text.size());
  std::vector<int> bytes(static_cast<size_t>(size_)), begins(bytes.size());
  MPI_Request request = MPI_REQUEST_NULL;
  RETURN_IF_ERROR(checked(
      MPI_Iallgather(&mine, 1, MPI_INT, bytes.data(), 1, MPI_INT, MPI_COMM_WORLD, &request),
      "MPI_Iallgather"));
  RETURN_IF_ERROR(wait_asleep(request, "MPI_Iallgather"));
  std::exclusive_scan(bytes.begin(), bytes.end(), begins.begin(), 0);
  std::string joined(static_cast<size_t>(begins.back() + bytes.back()), '\0');
  RETURN_IF_ERROR(checked(MPI_Iallgatherv(text.data(), mine, MPI_BYTE, joined.data(), bytes.data(),
                                          begins.data(), MPI_BYTE, MPI_COMM_WORLD, &request),
                          "MPI_Iallgatherv"));
  RETURN_IF_ERROR(wait_asleep(request, "MPI_Iallgatherv"));
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    texts.push_back(joined.substr(static_cast<size_t>(begins[rank]),
                                  static_cast<size_t>(bytes[rank])));
  }
  return texts;
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

Result<std::unique_ptr<Communicator>> join_processes() {
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  if (code != MPI_SUCCESS) {
    return Status(Exit::kUnavailable, "MPI_Init_thread: " + error_text(code));
  }
  auto all = std::make_unique<MpiCommunicator>();
  const Launch launch = read_launch();
  if (provided < MPI_THREAD_FUNNELED) {
    return Status(Exit::kUnavailable, mpi_library() + " does not let a program have threads");
  }
  if (launch.processes > 0 && launch.processes != all->size()) {
    return Status(Exit::kUnavailable,
                  strf("%s started %d processes, but %s, which this program was built with, sees "
                       "%d; start it with that MPI's mpirun, or srun --mpi=pmix",
                       launch.launcher.c_str(), launch.processes, mpi_library().c_str(),
                       all->size()));
  }
  return std::unique_ptr<Communicator>(std::move(all));
}

}  // namespace pagoda
