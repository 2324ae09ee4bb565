// NCCL for a process whose ranks are threads with made-up GPUs (fake_cuda.h): a send ends with its
// receive, groups of a communicator run one behind the other, and all calls are written down.
//
// It is as strict as NCCL may be: communicators do not block, and are busy for a while after each
// group. Who calls them meanwhile, other than to ask, dies of a failed CHECK, and so does who sends
// from or receives into memory of another GPU, or has other bytes than the other end.
#pragma once

#include <string>
#include <vector>

#include "parallel/gpus/nccl_calls.h"

namespace pagoda::fake_nccl {

// Forgets all of before. REQUIRES: no communicator is open.
void start();
NcclCalls calls();

// The call after `calls` further ones of this name ("ncclSend") fails.
void fail(const std::string& call, int calls = 0);
// From now on communicators report an error when they are asked while a group is under way.
void break_down();

// The calls of a device's communicator so far: "start" and "end" of its groups with "send 64 to 2"
// and "receive 8 from 1" in between, "finalize", "destroy", "abort".
std::vector<std::string> log(int device);
int open_communicators();

}  // namespace pagoda::fake_nccl
