// What the ranks of a run know of one another while they run it, and how they agree. What one of
// them alone sees (an error, a signal) must not make it leave a step that the others are in: it
// tells them, and all decide alike on what all of them know.
//
// Every call that needs several ranks is made by each of them, in the same order. With one rank
// nothing is sent, and each call returns what it was given.
//
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/link.h"

namespace pagoda {

class RankGroup {
 public:
  // Makes a link between ends, which are equal on all ranks but for the GPUs: first all devices,
  // then each rank's host memory.
  using MakeLink =
      std::function<Result<std::unique_ptr<Link>>(std::vector<LinkEnd> ends, Trace* trace)>;

  RankGroup() = default;  // one rank
  // Neither is owned. `link` is there from the beginning, or is made by open_link().
  RankGroup(Communicator* all, Link* link) : all_(all), link_(link) {}
  RankGroup(Communicator* all, MakeLink make) : all_(all), make_(std::move(make)) {}

  int rank() const { return all_ == nullptr ? 0 : all_->rank(); }
  int size() const { return all_ == nullptr ? 1 : all_->size(); }
  bool alone() const { return size() == 1; }
  // After the loss of a rank every call fails (parallel/communicator.h).
  bool broken() const { return all_ != nullptr && all_->broken(); }
  // Where this rank is in its work, for those that lose it.
  void set_progress(std::function<void(const std::string&)> tell) { tell_ = std::move(tell); }
  void progress(const std::string& word) const {
    if (tell_) tell_(word);
  }
  // How long calls wait for a rank of which nothing comes, seconds: `deadline_s`, or `work_s`
  // if that is longer and there is an OwnWork. 0, as in the beginning: as long as it takes.
  void set_deadlines(double deadline_s, double work_s);
  // Ranks make one, all of them, around what one may do for long while the others wait in a call
  // for it: it makes tokens, loads, writes a checkpoint, moves pages to one of them. One that is
  // dead or cut off is lost all the same (parallel/heartbeat.h). The group outlives it; one within
  // another changes nothing.
  class OwnWork {
   public:
    explicit OwnWork(RankGroup& ranks) : ranks_(&ranks) { ranks.count_work(1); }
    ~OwnWork() { end(); }
    void end() {  // before its scope does
      if (RankGroup* ranks = std::exchange(ranks_, nullptr)) ranks->count_work(-1);
    }
    OwnWork(const OwnWork&) = delete;
    OwnWork& operator=(const OwnWork&) = delete;

   private:
    RankGroup* ranks_;
  };
  Link* link() { return link_; }  // to the other ranks; nullptr: it is not open
  // Opens the link for a session, and closes it when that ends. Spans go to `trace`, if that is
  // given. Returns and throws what MpiLink::create() does.
  Status open_link(std::vector<LinkEnd> ends, Trace* trace);
  void close_link();

  // Call it when this rank leaves a pass that the others are in, with the error that it will bring
  // to the next agree(): they wait for its transfers no longer.
  void give_up(const Status& why);

  // The same status everywhere: ok where all ranks are ok. Otherwise an error that one of them met
  // itself, of the lowest rank that did, with that rank in front,
  // and with its host where that is of a file.
  Status agree(const Status& mine);
  // The same, and the texts of all by rank. One may be of up to kMostText bytes, longer ones are
  // kInternal; a call of the communicator takes what it may of them, and the next ones the rest.
  static constexpr size_t kMostText = size_t{256} << 20;
  Result<std::vector<std::string>> agree(const Status& mine, const std::string& text);
  // The least value of all, and the most.
  Result<int64_t> least(int64_t mine);
  Result<int64_t> most(int64_t mine);

  // Copies `data` from rank `from` to rank `to`, which both name the same bytes; others do nothing.
  Status pass(int from, int to, std::span<std::byte> data);
  // Sends `out` to another rank while `in` comes from it, of as many bytes; that rank calls it too.
  Status exchange(int with, std::span<const std::byte> out, std::span<std::byte> in);

 private:
  Communicator* all_ = nullptr;
  Link* link_ = nullptr;
  MakeLink make_;
  std::unique_ptr<Link> made_;
  std::function<void(const std::string&)> tell_;
  double deadline_s_ = 0, work_s_ = 0;
  int own_works_ = 0;

  void count_work(int more);
  Result<std::vector<std::string>> gather(std::string_view text);
  Result<std::vector<int64_t>> numbers(int64_t mine);
};

}  // namespace pagoda
