// What tests/process/ranks/process_moves_test.cc starts several of: a run whose experts exchange
// homes behind its second and third step, whatever that brings, and which saves behind the first of
// these and at its end. A rank may kill itself at any call of its communicator in that part of the
// run:
//   moving_ranks KILLED_RANK CALL fresh|resume [KEY VALUE ...]
// Prints how many such calls the rank made, and how many of them before its second move.
#include <signal.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "parallel/mpi_communicator.h"
#include "parallel/mpi_link.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

constexpr int64_t kFirstMove = 2, kSwaps = 2;

// Ends the process, without a word to anybody, in place of one of its calls.
class KilledCommunicator final : public Communicator {
 public:
  KilledCommunicator(Communicator& all, int64_t killed_call) : all_(all), left_(killed_call) {}

  void arm(bool counts) {
    counts_ = counts;
    if (counts) calls_before_ = calls_;
  }
  int64_t calls() const { return calls_; }
  // Those before the last part that counts.
  int64_t calls_before() const { return calls_before_; }

  int rank() const override { return all_.rank(); }
  int size() const override { return all_.size(); }
  bool broken() const override { return all_.broken(); }
  void set_deadline(double seconds) override { all_.set_deadline(seconds); }
  void abandon(const Status& why) override { all_.abandon(why); }
  Status send(const OutgoingPiece& piece) override { return count(), all_.send(piece); }
  Status receive(const IncomingPiece& piece) override { return count(), all_.receive(piece); }
  Status exchange(std::span<const OutgoingPiece> out, std::span<const IncomingPiece> in) override {
    return count(), all_.exchange(out, in);
  }
  Status barrier() override { return count(), all_.barrier(); }
  Result<std::vector<std::string>> gather(const std::string& text) override {
    return count(), all_.gather(text);
  }
  void count() {
    if (!counts_) return;
    if (left_-- == 0) ::raise(SIGKILL);
    ++calls_;
  }

 private:
  Communicator& all_;
  int64_t left_;  // below 0: never
  int64_t calls_ = 0, calls_before_ = 0;
  bool counts_ = false;
};

// The same on all ranks, each of them with an expert that goes to another rank.
std::vector<HomeSwap> swaps_of(const Trainer& trainer, const RunShape& shape) {
  std::mt19937_64 random(static_cast<uint64_t>(trainer.steps_done()));
  std::vector<HomeSwap> swaps;
  while (std::ssize(swaps) < kSwaps) {
    const auto record = [&] { return static_cast<int64_t>(random() % shape.records.size()); };
    const HomeSwap swap{record(), record()};
    const bool crosses = shape.home_rank(swap.a) != shape.home_rank(swap.b);
    if (swap.a != swap.b && may_exchange(shape, swap) && (crosses || shape.ranks() == 1))
      swaps.push_back(swap);
  }
  return swaps;
}

Status run(const RunConfig& config, bool resume, MpiCommunicator& joined, KilledCommunicator& all) {
  RankGroup ranks(
      &all, [&](std::vector<LinkEnd> ends, Trace* trace) -> Result<std::unique_ptr<Link>> {
        ASSIGN_OR_RETURN(
            std::unique_ptr<MpiLink> link,
            MpiLink::create(joined, std::move(ends), config.parallel.deadline_s, trace));
        return std::unique_ptr<Link>(std::move(link));
      });
  ASSIGN_OR_RETURN(const std::unique_ptr<Storage> storage,
                   open_storage(IoKind::kThreads, nearest_directory(config.train.output_dir)));
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   Trainer::start(config, resume, storage.get(), nullptr, &ranks));
  while (trainer->steps_done() < config.train.steps) {
    RETURN_IF_ERROR(trainer->step().status());
    const int64_t moves = trainer->steps_done() - kFirstMove;  // before this one
    if (moves != 0 && moves != 1) continue;
    all.arm(true);
    RETURN_IF_ERROR(trainer->exchange_homes(swaps_of(*trainer, trainer->session().shape())));
    if (moves == 0) RETURN_IF_ERROR(trainer->save());
    all.count();  // behind it
    all.arm(false);
  }
  return trainer->save();
}

Status run_program(const std::vector<std::string>& words) {
  RunConfig config;
  OptionTable table;
  config.declare(table);
  for (size_t i = 3; i + 1 < words.size(); i += 2) {
    const Option* option = table.find(words[i]);
    if (option == nullptr) return Status(Exit::kUsage, "no option " + words[i]);
    RETURN_IF_ERROR(option->assign({words[i + 1]}));
  }
  RETURN_IF_ERROR(config.validate());
  set_log_quiet(true);
  ASSIGN_OR_RETURN(const std::unique_ptr<MpiCommunicator> joined, join_processes(60));
  joined->set_deadline(config.parallel.deadline_s);
  const bool killed = std::to_string(joined->rank()) == words[0];
  KilledCommunicator all(*joined, killed ? std::stoll(words[1]) : -1);
  const Status ended = run(config, words[2] == "resume", *joined, all);
  if (ended.ok()) {
    std::printf("rank %d: %lld calls, %lld before\n", all.rank(), (long long)all.calls(),
                (long long)all.calls_before());
  }
  std::fflush(stdout);
  return ended;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  const pagoda::Status ended = pagoda::run_program({argv + 1, argv + argc});
  if (!ended.ok()) std::fprintf(stderr, "%s\n", ended.message().c_str());
  return static_cast<int>(ended.code());
}
