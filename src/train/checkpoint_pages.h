// The pages of a checkpoint, to read: those of all its stores, as far as they are in reach.
#pragma once

#include <memory>
#include <vector>

#include "checkpoint/run_checkpoint.h"
#include "model/tensors.h"
#include "optim/state_format.h"
#include "plan/step/pages.h"

namespace pagoda {

// How a checkpoint's optimizer state is stored; kMismatch if this build reads no such state.
Result<StateFormat> state_format_of(const RunCheckpoint& checkpoint);

// The model of the run that wrote it.
Result<ModelConfig> model_of(const RunCheckpoint& checkpoint);
DType saved_dtype(const RunCheckpoint& checkpoint);

// kNoCheckpoint, with path and host, if the store's files are not where it says. `step`: of the
// checkpoint.
Status check_store_is_there(const CheckpointStore& store, int64_t step, Storage* storage);

class CheckpointPages {
 public:
  // Opens all stores, locked for reading; the pages follow from the checkpoint itself. `storage` is
  // not owned. kMismatch if the checkpoint names other pages than a run of its model has, each of
  // them once.
  static Result<std::unique_ptr<CheckpointPages>> open(const RunCheckpoint& checkpoint,
                                                       Storage* storage);
  // The same for the stores that can be opened. Why one cannot, status_of() tells.
  static Result<std::unique_ptr<CheckpointPages>> open_some(const RunCheckpoint& checkpoint,
                                                            Storage* storage);

  const PageTable& table() const { return pages_; }
  // The elements of the record that have optimizer state.
  int64_t trained_elements(int64_t record) const {
    return shape_.records[static_cast<size_t>(record)].trained_elements();
  }
  int64_t num_stores() const { return std::ssize(files_); }
  const Status& status_of(int64_t store) const { return statuses_[static_cast<size_t>(store)]; }
  // The store that has the page.
  int64_t store_of(PageId page) const { return store_of_[page]; }
  uint64_t generation(PageId page) const { return generation_[page]; }

  // Reads a page, header and payload, into `memory`, which becomes as large as that. Waits. After
  // an error the payload is zeros. REQUIRES: its store is open.
  Status read(PageId page, HostMemory& memory);
  // Reads and checks every page; the first bad one is the error. REQUIRES: open().
  Status verify();

 private:
  CheckpointPages(RunShape shape, PageTable pages)
      : shape_(std::move(shape)), pages_(std::move(pages)) {}

  RunShape shape_;
  PageTable pages_;
  std::vector<std::unique_ptr<PageFile>> files_;  // [store] nullptr: it is not open
  std::vector<Status> statuses_;                  // [store]
  std::vector<int32_t> store_of_;                 // [page]
  std::vector<uint64_t> generation_;              // [page]
};

}  // namespace pagoda
