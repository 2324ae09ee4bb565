#include "tests/cuda/ranks/fake_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "base/check.h"
#include "tests/cuda/fake_cuda.h"

using pagoda::strf;

// One end of a transfer.
struct FakeOperation {
  bool sends = false;
  std::byte* data = nullptr;
  size_t bytes = 0;
  int peer = 0;
  bool ended = false;
};

struct ncclComm {
  int device = 0, devices = 0;
  std::string id;
  cudaStream_t stream = nullptr;  // of all its groups
  int busy = 0;                   // questions that it answers with ncclInProgress
  std::vector<std::shared_ptr<FakeOperation>> group;  // not enqueued yet
  int under_way = 0;                                  // groups
  bool aborted = false;
};

namespace {

using pagoda::fake_nccl::calls;

constexpr int kBusy = 2;

struct NcclWorld {
  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  int ids = 0;
  std::map<std::string, int> failures;  // calls to go
  bool broken = false;
  std::map<int, std::vector<std::string>> logs;  // [device]
  std::set<ncclComm*> communicators;
  std::map<std::string, int> joined;  // [id] devices
  // [from, to] ends that have come and wait for the others'
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<FakeOperation>>> sends, receives;
};

NcclWorld& nccl_world() {
  static NcclWorld w;
  return w;
}

// What the thread's group has so far.
struct Group {
  int depth = 0;
  std::vector<ncclComm*> communicators;  // in the order of their first calls
};
thread_local Group this_group;

bool fails(NcclWorld& w, const char* call) {
  const auto found = w.failures.find(call);
  if (found == w.failures.end()) return false;
  if (found->second-- > 0) return false;
  w.failures.erase(found);
  return true;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  if (fails(w, "ncclGetUniqueId")) return ncclSystemError;
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "id %d", ++w.ids);
  return ncclSuccess;
}

void join_group(ncclComm* comm) {
  CHECK(this_group.depth > 0, "a call is in no group");
  auto& all = this_group.communicators;
  if (std::find(all.begin(), all.end(), comm) == all.end()) all.push_back(comm);
}

ncclResult_t init_rank(ncclComm_t* comm, int devices, ncclUniqueId id, int device,
                       ncclConfig_t* config) {
  CHECK(config != nullptr && config->blocking == 0, "a communicator would block");
  CHECK(device >= 0 && device < devices);
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  if (fails(w, "ncclCommInitRankConfig")) return ncclSystemError;
  auto* made = new ncclComm;
  made->device = device;
  made->devices = devices;
  made->id = id.internal;
  made->busy = kBusy;
  w.communicators.insert(made);
  ++w.joined[made->id];
  *comm = made;
  return ncclInProgress;
}

ncclResult_t group_start() {
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  if (fails(w, "ncclGroupStart")) return ncclSystemError;
  ++this_group.depth;
  return ncclSuccess;
}

ncclResult_t add(bool sends, const void* data, size_t bytes, ncclDataType_t type, int peer,
                 ncclComm_t comm, cudaStream_t stream) {
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  if (fails(w, sends ? "ncclSend" : "ncclRecv")) return ncclSystemError;
  CHECK(type == ncclInt8 && w.communicators.contains(comm) && comm->busy == 0);
  CHECK(peer >= 0 && peer < comm->devices && peer != comm->device && bytes > 0);
  CHECK(pagoda::fake_cuda::gpu_of(data) == pagoda::fake_cuda::gpu_of(stream),
        "memory is another GPU's");
  CHECK(comm->stream == nullptr || comm->stream == stream, "a communicator has two streams");
  comm->stream = stream;
  join_group(comm);
  if (comm->group.empty()) w.logs[comm->device].push_back("start");
  w.logs[comm->device].push_back(
      strf("%s %zu %s %d", sends ? "send" : "receive", bytes, sends ? "to" : "from", peer));
  auto* bytes_at = static_cast<std::byte*>(const_cast<void*>(data));
  comm->group.push_back(
      std::make_shared<FakeOperation>(FakeOperation{sends, bytes_at, bytes, peer}));
  return ncclInProgress;
}

ncclResult_t send(const void* data, size_t bytes, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add(true, data, bytes, type, peer, comm, stream);
}

ncclResult_t receive(void* data, size_t bytes, ncclDataType_t type, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
  return add(false, data, bytes, type, peer, comm, stream);
}

ncclResult_t group_end() {
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  CHECK(this_group.depth == 1, "a group ends that was not started");
  this_group.depth = 0;
  for (ncclComm* comm : std::exchange(this_group.communicators, {})) {
    w.logs[comm->device].push_back("end");
    comm->busy = kBusy;
  }
  return fails(w, "ncclGroupEnd") ? ncclSystemError : ncclInProgress;
}

// Copies what has both ends. REQUIRES: the world is locked.
void match(NcclWorld& w, int from, int to) {
  auto &sends = w.sends[{from, to}], &receives = w.receives[{from, to}];
  while (!sends.empty() && !receives.empty()) {
    FakeOperation &out = *sends.front(), &in = *receives.front();
    CHECK(out.bytes == in.bytes, "%zu bytes are sent, %zu received", out.bytes, in.bytes);
    std::memcpy(in.data, out.data, in.bytes);
    out.ended = in.ended = true;
    sends.pop_front();
    receives.pop_front();
  }
}

// On the communicator's stream: all operations of a group go on together.
void run_group(ncclComm* comm, const std::vector<std::shared_ptr<FakeOperation>>& group) {
  NcclWorld& w = nccl_world();
  std::unique_lock lock(w.mutex);
  for (const auto& operation : group) {
    if (comm->aborted) break;
    const int from = operation->sends ? comm->device : operation->peer;
    const int to = operation->sends ? operation->peer : comm->device;
    (operation->sends ? w.sends : w.receives)[{from, to}].push_back(operation);
    match(w, from, to);
  }
  w.changed.notify_all();
  w.changed.wait(lock, [&] {
    return comm->aborted || std::all_of(group.begin(), group.end(),
                                        [](const auto& operation) { return operation->ended; });
  });
  for (auto* ends : {&w.sends, &w.receives}) {
    for (auto& [pair, waiting] : *ends) {
      std::erase_if(waiting, [&](const auto& end) {
        return std::find(group.begin(), group.end(), end) != group.end();
      });
    }
  }
  --comm->under_way;
  w.changed.notify_all();
}

// A group is enqueued behind NCCL's back: while it is asked.
ncclResult_t async_error(ncclComm_t comm, ncclResult_t* state) {
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  if (fails(w, "ncclCommGetAsyncError")) return ncclSystemError;
  CHECK(w.communicators.contains(comm));
  *state = ncclInProgress;
  if (w.broken && comm->under_way > 0) {
    *state = ncclRemoteError;
  } else if (comm->busy > 1) {
    --comm->busy;
  } else if (w.joined[comm->id] == comm->devices) {
    *state = ncclSuccess;
    comm->busy = 0;
  }
  if (*state == ncclSuccess && !comm->group.empty()) {
    ++comm->under_way;
    pagoda::fake_cuda::enqueue(
        comm->stream, [comm, group = std::exchange(comm->group, {})] { run_group(comm, group); });
  }
  return ncclSuccess;
}

ncclResult_t finalize(ncclComm_t comm) {
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  w.logs[comm->device].push_back("finalize");
  if (fails(w, "ncclCommFinalize")) return ncclSystemError;
  CHECK(comm->under_way == 0 && comm->group.empty(), "finalized while transfers are under way");
  comm->busy = kBusy;
  return ncclInProgress;
}

ncclResult_t close(ncclComm_t comm, const char* call) {
  NcclWorld& w = nccl_world();
  std::unique_lock lock(w.mutex);
  CHECK(w.communicators.contains(comm));
  w.logs[comm->device].push_back(call);
  comm->aborted = true;
  w.changed.notify_all();
  w.changed.wait(lock, [&] { return comm->under_way == 0; });
  w.communicators.erase(comm);
  delete comm;
  return ncclSuccess;
}

ncclResult_t destroy(ncclComm_t comm) {
  CHECK(comm->busy == 0, "destroyed before it was finalized");
  return close(comm, "destroy");
}

ncclResult_t abort_communicator(ncclComm_t comm) { return close(comm, "abort"); }

const char* error_text(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "unhandled system error";
}

}  // namespace

namespace pagoda::fake_nccl {

void start() {
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  CHECK(w.communicators.empty());
  w.failures.clear();
  w.broken = false;
  w.logs.clear();
  w.joined.clear();
  CHECK(std::all_of(w.sends.begin(), w.sends.end(), [](auto& s) { return s.second.empty(); }));
}

NcclCalls calls() {
  NcclCalls made;
  made.get_unique_id = get_unique_id;
  made.init_rank = init_rank;
  made.async_error = async_error;
  made.group_start = group_start;
  made.group_end = group_end;
  made.send = send;
  made.receive = receive;
  made.finalize = finalize;
  made.destroy = destroy;
  made.abort = abort_communicator;
  made.error_text = error_text;
  return made;
}

void fail(const std::string& call, int calls) {
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  w.failures[call] = calls;
}

void break_down() {
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  w.broken = true;
}

std::vector<std::string> log(int device) {
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  return w.logs[device];
}

int open_communicators() {
  NcclWorld& w = nccl_world();
  std::lock_guard lock(w.mutex);
  return static_cast<int>(w.communicators.size());
}

}  // namespace pagoda::fake_nccl
