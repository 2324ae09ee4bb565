// What tests/process/process_mpi_test.cc starts several of: one task of a communicator's, named by
// the argument. Prints one line a rank.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "parallel/mpi_communicator.h"
#include "parallel/mpi_link.h"
#include "tests/testing/transfer_trial.h"

namespace pagoda {
namespace {

// Byte `i` of piece `k` from rank `a` to rank `b`: known to both without a word.
std::byte pattern(int64_t i, int a, int b, int k) {
  const auto mixed = static_cast<uint64_t>(i + 1000003 * (a + 10 * b + 100 * k));
  return static_cast<std::byte>(mixed * 0x9e3779b97f4a7c15u >> 56);
}

std::vector<std::byte> piece(int64_t bytes, int a, int b, int k) {
  std::vector<std::byte> data(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes; ++i) data[static_cast<size_t>(i)] = pattern(i, a, b, k);
  return data;
}

Status expect_piece(const std::vector<std::byte>& data, int a, int b, int k) {
  for (int64_t i = 0; i < static_cast<int64_t>(data.size()); ++i) {
    if (data[static_cast<size_t>(i)] == pattern(i, a, b, k)) continue;
    return Status(Exit::kInternal, strf("byte %lld of piece %d from %d to %d is wrong",
                                        (long long)i, k, a, b));
  }
  return Status();
}

// Around the ring, in order. The last is longer than one message of MPI may be.
Status send_around(Communicator& all) {
  const int me = all.rank(), n = all.size(), next = (me + 1) % n, before = (me + n - 1) % n;
  const int64_t sizes[] = {0, 1, 7, 4096, 65537, 3 * 1024 * 1024 + 5, 16 * 1024 * 1024 + 11};
  const auto send_all = [&]() -> Status {
    for (int k = 0; k < std::ssize(sizes); ++k) {
      RETURN_IF_ERROR(all.send({next, piece(sizes[k], me, next, k).data(), sizes[k]}));
    }
    return Status();
  };
  if (me == 0) RETURN_IF_ERROR(send_all());
  for (int k = 0; k < std::ssize(sizes); ++k) {
    std::vector<std::byte> data(static_cast<size_t>(sizes[k]), std::byte{0xee});
    RETURN_IF_ERROR(all.receive({before, data.data(), sizes[k]}));
    RETURN_IF_ERROR(expect_piece(data, before, me, k));
  }
  return me == 0 ? Status() : send_all();
}

// Every pair another number of bytes, two pieces each, all at once.
int64_t unequal_bytes(int a, int b, int k) { return 100000 * k + 5003 * a + 70001 * b; }

Status exchange_unequally(Communicator& all) {
  std::vector<std::vector<std::byte>> sent, got;
  std::vector<OutgoingPiece> out;
  std::vector<IncomingPiece> in;
  for (int other = 0; other < all.size(); ++other) {
    for (int k = 0; k < 2 && other != all.rank(); ++k) {
      sent.push_back(piece(unequal_bytes(all.rank(), other, k), all.rank(), other, k));
      out.push_back({other, sent.back().data(), std::ssize(sent.back())});
      got.emplace_back(static_cast<size_t>(unequal_bytes(other, all.rank(), k)));
      in.push_back({other, got.back().data(), std::ssize(got.back())});
    }
  }
  RETURN_IF_ERROR(all.exchange(out, in));
  for (size_t i = 0; i < in.size(); ++i) {
    RETURN_IF_ERROR(expect_piece(got[i], in[i].from, all.rank(), static_cast<int>(i % 2)));
  }
  return Status();
}

std::string text_of(int rank) {  // one is empty, others hold zeros
  return std::string(static_cast<size_t>(rank == 1 ? 0 : 3 + rank), '\0') +
         (rank == 1 ? "" : "end");
}

Status gather_texts(Communicator& all) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all.gather(text_of(all.rank())));
  bool right = static_cast<int>(texts.size()) == all.size();
  for (int rank = 0; right && rank < all.size(); ++rank) {
    right = texts[static_cast<size_t>(rank)] == text_of(rank);
  }
  return right ? Status() : Status(Exit::kInternal, "a text is not what its rank gave");
}

Status messages(Communicator& all) {
  RETURN_IF_ERROR(send_around(all));
  RETURN_IF_ERROR(exchange_unequally(all));
  RETURN_IF_ERROR(gather_texts(all));
  return all.barrier();
}

// Each rank has two devices, which share a card or have one each, and its host's memory. If
// `differs`, rank 0 sends other bytes than rank 1 waits for, after many that are right.
Status transfer(MpiCommunicator& all, bool differs, int cards = 1, int turns = 0) {
  TransferTrial trial;
  trial.turns = turns;
  trial.transfers = 300;
  trial.most_bytes = 3 * 1024 * 1024 + 5;
  std::vector<LinkEnd> ends;
  for (int device = 0; device < 2 * all.size(); ++device) {
    ends.push_back({device / 2, nullptr, device % cards});
  }
  for (int host = 0; host < all.size(); ++host) ends.push_back({host, nullptr});
  for (const LinkEnd& end : ends) trial.rank_of.push_back(end.rank);
  ASSIGN_OR_RETURN(const auto link, MpiLink::create(all, ends, 1));
  RETURN_IF_ERROR(trial.run(*link, all.rank()));
  RETURN_IF_ERROR(all.barrier());
  if (!differs) return Status();
  const auto lane = make_host_stream({"lane", WorkKind::kLink, nullptr},
                                     std::make_shared<ThreadPool>(1));
  std::vector<std::byte> bytes(100);
  if (all.rank() == 0) link->send({1000, 0, 2, 99}, bytes.data(), *lane);
  if (all.rank() == 1) link->receive({1000, 0, 2, 100, 0, "rows"}, bytes.data(), *lane);
  if (all.rank() == 1) link->receive({1000, 1, 2, 100}, bytes.data(), *lane);
  lane->synchronize();
  return all.rank() == 1 ? link->status() : all.barrier();
}

// Rank 1 does not move: every other rank has a transfer with it.
Status transfer_with_nobody(MpiCommunicator& all, int signal) {
  std::vector<LinkEnd> ends;
  for (int rank = 0; rank < all.size(); ++rank) ends.push_back({rank, nullptr});
  ASSIGN_OR_RETURN(const auto link, MpiLink::create(all, ends, 1));
  if (all.rank() == 1) ::raise(signal);
  const auto lane = make_host_stream({"lane", WorkKind::kLink, nullptr},
                                     std::make_shared<ThreadPool>(1));
  std::vector<std::byte> bytes(3 * 1024 * 1024, std::byte{1}), zeros(bytes.size());
  link->receive({7, 1, all.rank(), std::ssize(bytes), 0, "rows L3"}, bytes.data(), *lane);
  lane->wait(link->send({7, all.rank(), 1, std::ssize(zeros)}, zeros.data(), *lane));
  lane->synchronize();
  if (bytes != zeros) return Status(Exit::kInternal, "what did not come is not zeros");
  return link->status();
}

// Rank 1 gives up in the middle of many transfers. The link and its memory go, and all talk on.
Status give_up(MpiCommunicator& all) {
  for (int device = 0; device < 2; ++device) {
    TransferTrial trial;
    trial.transfers = 200;
    trial.most_bytes = 3 * 1024 * 1024 + 5;
    trial.giving_up = 1;
    trial.gives_up_at = 90;
    trial.turns = device;
    std::vector<LinkEnd> ends;
    for (int end = 0; end < 2 * all.size(); ++end) ends.push_back({end / 2, nullptr});
    for (const LinkEnd& end : ends) trial.rank_of.push_back(end.rank);
    ASSIGN_OR_RETURN(auto link, MpiLink::create(all, ends, 10));
    const Status ended = trial.run(*link, all.rank());
    if (ended.message() != "tired") return ended;
    if (link->given_up_by() != (all.rank() == 1 ? -1 : 1)) {
      return Status(Exit::kInternal, "another rank gave up");
    }
    link.reset();
    RETURN_IF_ERROR(gather_texts(all));
  }
  return send_around(all);
}

// Rank 1 sends `bytes` where rank 0 waits for 8.
Status wrong_length(Communicator& all, int64_t bytes) {
  std::vector<std::byte> data(64);
  if (all.rank() == 0) return all.receive({1, data.data(), 8});
  if (all.rank() == 1) return all.send({0, data.data(), bytes});
  return Status();
}

// Rank 1 comes three seconds late. Processor time, of all threads, is not that of the clock.
Status wait_idly(Communicator& all) {
  std::byte byte{};
  if (all.rank() == 1) {
    ::sleep(3);
    return all.send({0, &byte, 1});
  }
  timespec before = {}, after = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  RETURN_IF_ERROR(all.receive({1, &byte, 1}));
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double used_s = static_cast<double>(after.tv_sec - before.tv_sec) +
                        1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  if (used_s < 0.03 * 3) return Status();
  return Status(Exit::kInternal, strf("waiting for 3 s used %.3f s of a core", used_s));
}

Status run(const std::string& task, MpiCommunicator& all) {
  if (task == "transfers") return transfer(all, false);
  if (task == "turns") return transfer(all, false, 1, 1);
  if (task == "turns of two cards") return transfer(all, false, 2, 2);
  if (task == "other bytes") return transfer(all, true);
  if (task == "give up") return give_up(all);
  if (task == "stop in a transfer") return transfer_with_nobody(all, SIGSTOP);
  if (task == "die in a transfer") return transfer_with_nobody(all, SIGKILL);
  if (task == "messages") return messages(all);
  if (task == "wait") return wait_idly(all);
  if (task == "short") return wrong_length(all, 5);
  if (task == "long") return wrong_length(all, 9);
  if (task == "disagree") {
    return agree(all, all.rank() == 1 ? Status(Exit::kNoInput, "no drive here") : Status());
  }
  if (task == "die") {
    std::byte never;
    if (all.rank() == 1) ::raise(SIGKILL);
    return all.receive({1, &never, 1});
  }
  if (task == "stop") {
    all.set_deadline(1);
    if (all.rank() == 1) ::raise(SIGSTOP);
    return all.gather("").status();
  }
  return Status(Exit::kUsage, "no such task");
}

int run_program(const std::string& task) {
  if (task == "be absent") ::raise(SIGSTOP);
  Result<std::unique_ptr<MpiCommunicator>> joined = join_processes(task == "miss" ? 1 : 0);
  Status status = joined.status();
  int rank = -1, size = 0;
  if (joined.ok()) {
    rank = joined.value()->rank(), size = joined.value()->size();
    status = run(task, *joined.value());
  }
  std::printf("%s\n", status.ok() ? strf("rank %d of %d: good", rank, size).c_str()
                                  : status.message().c_str());
  std::fflush(stdout);
  return static_cast<int>(status.code());
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::run_program(argc > 1 ? argv[1] : ""); }
