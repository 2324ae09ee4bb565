// Names of tasks and pages in a trace.
#pragma once

#include <string>

#include "base/trace.h"
#include "plan/step/pages.h"
#include "plan/step/run_shape.h"
#include "plan/step/task.h"

namespace pagoda {

// "expert L3 E12", "attention L0 b1", with layer, expert, microbatch and rows as arguments.
TraceLabel task_label(const Task& task);

// "weights L3 E12", "state embedding", "middle L0 b1". REQUIRES: a page of `pages`, which were made
// for `shape`.
std::string page_name(const RunShape& shape, const PageTable& pages, PageId page);

}  // namespace pagoda
