#include "parallel/rank_group.h"

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "base/number_text.h"
#include "parallel/host_name.h"

namespace pagoda {
namespace {

// Bytes that pass() and exchange() send at a time: whoever waits sees that something comes.
constexpr size_t kMostPassed = size_t{8} << 20;

constexpr size_t kMostDigits = 24;                          // of a number, and a space
constexpr size_t kMostWhole = RankGroup::kMostText + kMiB;  // a text, and a status before it

// What a rank brings: an exit code, the rank that met the error, the message's length, the message
// and a text.
std::string to_text(const Status& status, int met_by, const std::string& text) {
  return strf("%d %d %zu ", static_cast<int>(status.code()), met_by, status.message().size()) +
         status.message() + text;
}

Status not_understood(size_t rank) {
  return Status(Exit::kIoError, strf("rank %zu sent what no rank of this run sends; the last "
                                     "checkpoint is intact: see that all ranks run the same "
                                     "program, and resume",
                                     rank));
}

struct Brought {
  int code = 0, met_by = 0;
  std::string message, text;
};

std::optional<Brought> parse(const std::string& from, int ranks) {
  Brought brought;
  size_t length = 0;
  NumberReader in(from);
  if (!in.read(brought.code, 0, 255) || !in.read(brought.met_by, 0, ranks - 1) ||
      !in.read(length, size_t{0}, from.size()) || in.rest().size() < length) {
    return std::nullopt;
  }
  brought.message = in.rest().substr(0, length);
  brought.text = in.rest().substr(length);
  return brought;
}

}  // namespace

Status RankGroup::open_link(std::vector<LinkEnd> ends, Trace* trace) {
  if (!make_) return Status();
  close_link();
  ASSIGN_OR_RETURN(made_, make_(std::move(ends), trace));
  link_ = made_.get();
  return Status();
}

void RankGroup::close_link() {
  if (!made_) return;
  link_ = nullptr;
  made_.reset();
}

void RankGroup::set_deadlines(double deadline_s, double work_s) {
  deadline_s_ = deadline_s;
  work_s_ = deadline_s > 0 ? std::max(deadline_s, work_s) : 0;
  count_work(0);
}

void RankGroup::count_work(int more) {
  own_works_ += more;
  if (all_ != nullptr) all_->set_deadline(own_works_ > 0 ? work_s_ : deadline_s_);
}

void RankGroup::give_up(const Status& why) {
  if (alone() || link_ == nullptr) return;
  link_->give_up(Status(why.code(), strf("rank %d: ", rank()) + why.message()));
}

Status RankGroup::agree(const Status& mine) {
  if (alone()) return mine;
  return agree(mine, "").status();
}

// Each call of the communicator brings a piece, behind the number of bytes that are left of its
// text, until none is left of any. Memory is taken for what has come.
Result<std::vector<std::string>> RankGroup::gather(std::string_view text) {
  const size_t most = static_cast<size_t>(Communicator::kMostGathered / size()) - kMostDigits;
  std::vector<std::string> whole(static_cast<size_t>(size()));
  for (bool more = true; more;) {
    const std::string piece(text.substr(0, most));
    text.remove_prefix(piece.size());
    ASSIGN_OR_RETURN(const std::vector<std::string> pieces,
                     all_->gather(strf("%zu ", text.size()) + piece));
    more = false;
    for (size_t r = 0; r < pieces.size(); ++r) {
      size_t left = 0;
      NumberReader in(pieces[r]);
      const bool good = in.read(left, size_t{0}, kMostWhole) && (left == 0 || !in.rest().empty());
      if (!good || whole[r].size() + in.rest().size() > kMostWhole - left) return not_understood(r);
      whole[r] += in.rest();
      more = more || left > 0;
    }
  }
  return whole;
}

Result<std::vector<std::string>> RankGroup::agree(const Status& mine, const std::string& text) {
  if (alone()) {
    RETURN_IF_ERROR(mine);
    return std::vector<std::string>{text};
  }
  if (text.size() > kMostText) {
    return agree(
        Status(Exit::kInternal, strf("it tells the others %zu bytes, and %zu is the most; the last "
                                     "checkpoint is intact: please report this",
                                     text.size(), kMostText)),
        "");
  }
  const int told_by = link_ != nullptr ? link_->given_up_by() : -1;
  const int met_by = told_by >= 0 && mine.code() == link_->status().code() &&
                             mine.message() == link_->status().message()
                         ? told_by
                         : rank();
  const bool of_a_file = mine.code() == Exit::kIoError || mine.code() == Exit::kNoInput;
  const Status told_of = of_a_file && met_by == rank()
                             ? Status(mine.code(), host_name() + ": " + mine.message())
                             : mine;
  ASSIGN_OR_RETURN(const std::vector<std::string> all, gather(to_text(told_of, met_by, text)));
  std::vector<std::string> texts;
  std::optional<Status> met, told;
  for (size_t r = 0; r < all.size(); ++r) {
    std::optional<Brought> brought = parse(all[r], size());
    if (!brought) return not_understood(r);
    texts.push_back(std::move(brought->text));
    if (brought->code == 0) continue;
    const bool own = brought->met_by == static_cast<int>(r);
    std::optional<Status>& of = own ? met : told;
    const std::string front = own ? strf("rank %zu: ", r) : "";
    if (!of) of = Status(static_cast<Exit>(brought->code), front + brought->message);
  }
  if (met) return *met;
  if (told) return *told;
  return texts;
}

// [rank]
Result<std::vector<int64_t>> RankGroup::numbers(int64_t mine) {
  if (alone()) return std::vector<int64_t>{mine};
  ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                   agree(Status(), strf("%lld", (long long)mine)));
  std::vector<int64_t> values;
  for (const std::string& text : texts) {
    if (!parse_int64(text, values.emplace_back())) {
      return Status(Exit::kIoError, "a rank sent \"" + printable(text) +
                                        "\", which is no number; see that all ranks run the same "
                                        "program");
    }
  }
  return values;
}

Result<int64_t> RankGroup::least(int64_t mine) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> all, numbers(mine));
  return *std::min_element(all.begin(), all.end());
}

Result<int64_t> RankGroup::most(int64_t mine) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> all, numbers(mine));
  return *std::max_element(all.begin(), all.end());
}

Status RankGroup::exchange(int with, std::span<const std::byte> out, std::span<std::byte> in) {
  CHECK(with != rank() && out.size() == in.size());
  while (!out.empty()) {
    const size_t piece = std::min(out.size(), kMostPassed);
    const auto bytes = static_cast<int64_t>(piece);
    const OutgoingPiece sent{with, out.data(), bytes};
    const IncomingPiece came{with, in.data(), bytes};
    RETURN_IF_ERROR(all_->exchange({&sent, 1}, {&came, 1}));
    out = out.subspan(piece);
    in = in.subspan(piece);
  }
  return Status();
}

Status RankGroup::pass(int from, int to, std::span<std::byte> data) {
  if (from == to) return Status();
  while (!data.empty() && (rank() == from || rank() == to)) {
    const std::span<std::byte> piece = data.first(std::min(data.size(), kMostPassed));
    const auto bytes = static_cast<int64_t>(piece.size());
    RETURN_IF_ERROR(rank() == from ? all_->send({to, piece.data(), bytes})
                                   : all_->receive({from, piece.data(), bytes}));
    data = data.subspan(piece.size());
  }
  return Status();
}

}  // namespace pagoda
