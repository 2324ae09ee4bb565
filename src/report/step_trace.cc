#include "report/step_trace.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/number_text.h"
#include "base/output_file.h"
#include "parallel/mpi_link.h"

namespace pagoda {

namespace {

constexpr int kGroupsOfRank = 100;  // numbers that a rank's groups have room in
constexpr size_t kPieceBytes = size_t{1} << 20;  // a message holds at most

std::span<std::byte> bytes_of(int64_t& value) {
  return {reinterpret_cast<std::byte*>(&value), sizeof(value)};
}

int64_t argument(const TraceLabel& label, std::string_view name) {
  for (int i = 0; i < label.num_args; ++i) {
    const TraceLabel::Arg& arg = label.args[static_cast<size_t>(i)];
    if (name == arg.name) return arg.value;
  }
  return -1;
}

// The transfers to other ranks, or from them.
std::vector<RankClock::Seen> transfers(Trace& trace, bool sent, int ranks) {
  std::vector<RankClock::Seen> seen;
  for (int peer = 0; peer < ranks; ++peer) {
    for (const Trace::Span& span : trace.spans(MpiLink::trace_lane(trace, sent, peer))) {
      seen.push_back({peer, argument(span.label, "from"), argument(span.label, "to"),
                      argument(span.label, "number"), sent ? span.begin_us : span.end_us});
    }
  }
  return seen;
}

}  // namespace

StepTrace::StepTrace(std::optional<StepRange> steps, std::string path, RankGroup* ranks)
    : steps_(steps), path_(std::move(path)), ranks_(ranks != nullptr ? *ranks : alone_) {
  if (!steps_) return;
  trace_.emplace();
  lane_ = trace_->lane("run", "steps");
}

Status StepTrace::begin_step(int64_t step) {
  if (!steps_ || step < steps_->first || step > steps_->last) return Status();
  if (first_step_ == 0) RETURN_IF_ERROR(clock_.compare(ranks_));
  if (first_step_ == 0) first_step_ = step;
  last_step_ = step;
  trace_->start();
  begin_us_ = monotonic_us();
  return Status();
}

Status StepTrace::end_step(int64_t step, Pager& pager) {
  if (!trace_ || !trace_->on()) return Status();
  trace_->span(lane_, begin_us_, monotonic_us(), {strf("step %lld", (long long)step), {}, 0});
  if (step < steps_->last) return Status();
  pager.drain();  // what the step wrote back is part of it
  return write();
}

Status StepTrace::end_run() {
  if (!trace_ || written_) return Status();
  if (first_step_ == 0) {
    if (!leads()) return Status();
    log_warn(strf("train.trace_steps: this run had none of the steps %lld to %lld; no trace was "
                  "written", (long long)steps_->first, (long long)steps_->last));
    return Status();
  }
  return write();
}

Status StepTrace::write() {
  trace_->stop();
  written_ = true;
  const bool tries = !ranks_.alone() && !ranks_.broken();
  const auto all = tries ? align() : Together{trace_->cut_events(), 0};
  const bool together = tries && all.ok();
  const int64_t cut = all.ok() ? all.value().cut_events : trace_->cut_events();
  Status written;
  const Status sent = write_parts(together, cut, written);
  if (leads() && cut > 0) {
    log_warn(strf("the trace is full: it holds %lld events, %lld later ones are left out; trace "
                  "fewer steps", (long long)trace_->events(), (long long)cut));
  }
  if (leads() && !written.ok()) {
    log_warn(written.message() + "; training goes on without a trace");
  } else {
    const std::string clocks =
        together ? strf("; the clocks of its %d ranks were compared to within %lld us",
                        ranks_.size(), (long long)all.value().error_us)
                 : "";
    log_info(strf("trace of steps %lld to %lld: %s, for ui.perfetto.dev%s", (long long)first_step_,
                  (long long)last_step_, path_.c_str(), clocks.c_str()));
  }
  return all.ok() ? sent : all.status();
}

Result<StepTrace::Together> StepTrace::align() {
  RETURN_IF_ERROR(clock_.compare(ranks_));
  RETURN_IF_ERROR(clock_.put_in_order(ranks_, transfers(*trace_, true, ranks_.size()),
                                      transfers(*trace_, false, ranks_.size())));
  ASSIGN_OR_RETURN(const std::vector<std::string> cut,
                   ranks_.agree(Status(), strf("%lld ", (long long)trace_->cut_events())));
  Together all;
  for (const std::string& of_rank : cut) {
    int64_t events = 0;
    if (NumberReader(of_rank).read(events, int64_t{0}, INT64_MAX / kMostDevices)) {
      all.cut_events += events;
    }
  }
  ASSIGN_OR_RETURN(all.error_us, ranks_.most(clock_.error_us()));
  return all;
}

Trace::Part StepTrace::part(int64_t origin_us) const {
  if (ranks_.alone()) return {.origin_us = origin_us};
  return {strf("rank %d ", ranks_.rank()), kGroupsOfRank * ranks_.rank(), origin_us,
          [this](int64_t at_us) { return clock_.on_rank_0(at_us); }};
}

// What cannot be written is told by `written`, and others send nevertheless.
Status StepTrace::write_parts(bool with_others, int64_t cut_events, Status& written) {
  int64_t origin_us = trace_->origin_us();
  if (with_others) {
    for (int rank = 1; rank < ranks_.size(); ++rank) {
      RETURN_IF_ERROR(ranks_.pass(0, rank, bytes_of(origin_us)));
    }
  }
  if (!leads()) return with_others ? send_part(origin_us) : Status();
  auto file = OutputFile::create(path_);
  written = file.status();
  const Trace::Sink append = [&](const std::string& text) {
    if (written.ok()) written = file->append(text.data(), static_cast<int64_t>(text.size()));
    return Status();
  };
  RETURN_IF_ERROR(append(Trace::begin_text()));
  RETURN_IF_ERROR(trace_->write_part(part(origin_us), append));
  for (int rank = 1; rank < ranks_.size() && with_others; ++rank) {
    RETURN_IF_ERROR(receive_part(rank, append));
  }
  RETURN_IF_ERROR(append(Trace::end_text(cut_events)));
  if (written.ok()) written = file->commit();
  return Status();
}

// The text is made before it is sent: threads that carry it may record meanwhile.
Status StepTrace::send_part(int64_t origin_us) {
  std::string text;
  RETURN_IF_ERROR(trace_->write_part(part(origin_us), [&](const std::string& more) {
    text += more;
    return Status();
  }));
  auto left = static_cast<int64_t>(text.size());
  RETURN_IF_ERROR(ranks_.pass(ranks_.rank(), 0, bytes_of(left)));
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(text));
  for (size_t at = 0; at < bytes.size(); at += kPieceBytes) {
    const size_t count = std::min(bytes.size() - at, kPieceBytes);
    RETURN_IF_ERROR(ranks_.pass(ranks_.rank(), 0, bytes.subspan(at, count)));
  }
  return Status();
}

Status StepTrace::receive_part(int rank, const Trace::Sink& sink) {
  int64_t left = 0;
  RETURN_IF_ERROR(ranks_.pass(rank, 0, bytes_of(left)));
  while (left > 0) {
    std::string text(std::min(static_cast<size_t>(left), kPieceBytes), ' ');
    RETURN_IF_ERROR(ranks_.pass(rank, 0, std::as_writable_bytes(std::span(text))));
    RETURN_IF_ERROR(sink(text));
    left -= std::ssize(text);
  }
  return Status();
}

}  // namespace pagoda
