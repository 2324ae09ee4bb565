#include "report/step_trace.h"

#include <utility>

#include "base/log.h"

namespace pagoda {

StepTrace::StepTrace(std::optional<StepRange> steps, std::string path)
    : steps_(steps), path_(std::move(path)) {
  if (!steps_) return;
  trace_.emplace();
  lane_ = trace_->lane("run", "steps");
}

void StepTrace::begin_step(int64_t step) {
  if (!steps_ || step < steps_->first || step > steps_->last) return;
  if (first_step_ == 0) first_step_ = step;
  last_step_ = step;
  trace_->start();
  begin_us_ = monotonic_us();
}

void StepTrace::end_step(int64_t step, Pager& pager) {
  if (!trace_ || !trace_->on()) return;
  trace_->span(lane_, begin_us_, monotonic_us(), {strf("step %lld", (long long)step), {}, 0});
  if (step < steps_->last) return;
  pager.drain();  // what the step wrote back is part of it
  write();
}

void StepTrace::end_run() {
  if (!trace_ || written_) return;
  if (first_step_ == 0) {
    log_warn(strf("train.trace_steps: this run had none of the steps %lld to %lld; no trace was "
                  "written", (long long)steps_->first, (long long)steps_->last));
    return;
  }
  write();
}

void StepTrace::write() {
  trace_->stop();
  written_ = true;
  if (const int64_t cut = trace_->cut_events(); cut > 0) {
    log_warn(strf("the trace is full: it holds %lld events, %lld later ones are left out; trace "
                  "fewer steps", (long long)trace_->events(), (long long)cut));
  }
  const Status written = trace_->write(path_);
  if (!written.ok()) return log_warn(written.message() + "; training goes on without a trace");
  log_info(strf("trace of steps %lld to %lld: %s, for ui.perfetto.dev", (long long)first_step_,
                (long long)last_step_, path_.c_str()));
}

}  // namespace pagoda
