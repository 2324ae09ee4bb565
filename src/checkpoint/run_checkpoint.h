// Training checkpoints, from which a resumed run continues with the same bits.
//
// The weights and optimizer state of a checkpoint stay where they are, in the page file (offload/
// page_file.h): a checkpoint is a manifest of page versions, so saving costs only the pages that
// changed. Order of a commit (docs/reliability.md): pages synced; PATH there and its parent synced;
// PATH/step-N.tmp/{pages.bin,MANIFEST} written and synced, MANIFEST last; directory synced; renamed
// to PATH/step-N; PATH synced. Only then is the checkpoint reported, older manifests removed and
// their extents used again. LATEST is a hint for people and is never read. PATH/room is the room
// of the next checkpoint, allocated before it is needed: it becomes PATH/step-N.tmp, and what was
// an older step becomes the room after that.
//
//   PATH/step-00001200/{pages.bin,MANIFEST}   as checkpoint/manifest.h says
//
// Only the content counts: a directory whose MANIFEST or pages.bin does not verify is reported,
// left alone and not used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "offload/page_file.h"

namespace pagoda {

// Where the pages are that have their home on one rank of a run.
struct CheckpointStore {
  std::string host;  // the rank's machine, for people; empty in old checkpoints
  // Absolute, or in the run's folder, which may move between a commit and a load.
  std::vector<std::string> directories;
  std::string file_name, store_id;
  std::vector<PageVersion> pages;
  std::string kernel_set = {};  // the kernels of the rank; empty in old checkpoints
  bool operator==(const CheckpointStore&) const = default;
};

struct RunCheckpoint {
  int64_t step = 0;           // steps done
  int64_t updates = 0;        // steps that were not skipped
  int64_t rows_consumed = 0;  // data position: rows of the shuffled sequence used so far
  std::string config_hash;       // hash of the options that affect results
  std::string resolved_config;   // resolved.toml
  std::string model_json;        // config.json
  std::string run_folder;        // where it was committed, absolute
  std::string model_path;        // where the run's first weights and tokenizer came from
  std::string tokenizer;         // Tokenizer::identity()
  std::string data_fingerprint;
  std::string build;             // version and libraries, with the processor features they use
  std::string kernel_set;        // the kernels that it computed with; empty in old checkpoints
  int64_t page_slots = 2, microbatches = 0, microbatch_tokens = 0;
  std::string dtype, state_format;
  std::vector<int64_t> record_steps;  // Adam's t of each record
  std::vector<CheckpointStore> stores;  // [rank] of the run that wrote it; no page is in two
  int64_t num_pages() const;            // of all stores
};

// A folder's newest valid checkpoint, and why newer ones are not valid.
struct FoundCheckpoint {
  RunCheckpoint checkpoint;
  std::vector<Status> damaged;  // newest first
};

struct CheckpointFiles {
  std::string manifest, pages;
};

class CheckpointDirectory {
 public:
  // `path` is in the run's folder. `storage` is not owned.
  CheckpointDirectory(Storage* storage, std::string path)
      : storage_(storage), path_(std::move(path)) {}

  // Allocates the room of the next checkpoint; `saved` tells how large that may get. kCannotCreate,
  // naming the needed and the free bytes and the step that is saved.
  Status reserve(const RunCheckpoint& saved) const;
  // Makes the checkpoint durable, as above. After an error there is none, and its files are room
  // for the next. REQUIRES: the page file is synced.
  Status commit(const RunCheckpoint& checkpoint) const;
  // Removes older steps and unfinished commits, but no newer step (which is damaged, or this one
  // would not have been made) and nothing else. Errors are warnings.
  void remove_older(int64_t step) const;

  // Makes durable what a process that died may have left in the caches. Call it before a resume: a
  // name that is only cached may vanish with a power loss, after the resumed run has overwritten
  // the pages of the step before.
  Status sync() const;

  // Steps that have a directory, ascending, valid or not. kNoInput if one may not look.
  Result<std::vector<int64_t>> steps() const;
  // kIoError, naming the file, if one is missing, cannot be read or does not verify; kBadData if
  // one is no file or larger than any; kNoInput if it may not be read; kMismatch if another version
  // wrote it.
  Result<RunCheckpoint> load(int64_t step) const;
  // The newest checkpoint that verifies. kNoCheckpoint if there is none, after a warning for each
  // that is not valid. One that cannot be read now may be good: that is an error, as in load(), not
  // a reason to take an older one. A run may save meanwhile, but then the found one may be gone
  // soon.
  Result<FoundCheckpoint> newest() const;

  const std::string& path() const { return path_; }

 private:
  Status refuse_link(const std::string& path) const;
  Status take_room(const std::string& temporary) const;
  Status make_room_of(const std::string& path) const;
  Status write_step(const RunCheckpoint& checkpoint, const std::string& temporary) const;
  std::string step_path(int64_t step) const;
  Result<std::vector<std::string>> folders() const;
  std::string room_path() const { return path_ + "/room"; }
  bool is_complete(int64_t step) const;
  Result<CheckpointFiles> read_files(int64_t step) const;
  Storage* storage_;
  std::string path_;
};

}  // namespace pagoda
