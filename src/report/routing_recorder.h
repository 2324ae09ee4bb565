// Records what the experts of each layer got in the steps of a run (train.trace_routing), as
// plan/step/routing_trace.h has it. A step that cannot be written is a warning and is left out; it
// never stops a run. One thread uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "plan/step/routing_trace.h"
#include "report/line_file.h"

namespace pagoda {

class RoutingRecorder {
 public:
  // kCannotCreate unless a fresh run's file would be new: asked before anything is started.
  static Status check_new(const std::string& path);

  // kept_step < 0: a fresh run, whose file must be new. Else of a run that is resumed after that
  // step: its file, from which later steps are removed, or a new one. kCannotCreate, also when the
  // first line says that the file is something else or of another run; it is left as it is.
  static Result<std::unique_ptr<RoutingRecorder>> open(const std::string& path,
                                                       const RoutedShape& shape,
                                                       int64_t kept_step);

  // After each step, `step` counted from 1.
  void record(int64_t step, const Routing& routing) { lines_->add(routing_lines(step, routing)); }

  // kIoError when the file was removed or replaced.
  Status check() const { return lines_->check(); }

 private:
  explicit RoutingRecorder(std::unique_ptr<LineFile> lines) : lines_(std::move(lines)) {}

  std::unique_ptr<LineFile> lines_;
};

}  // namespace pagoda
