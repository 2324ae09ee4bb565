#include "checkpoint/run_checkpoint.h"

#include <algorithm>

#include "base/log.h"
#include "checkpoint/manifest.h"

namespace pagoda {
namespace {

// No model's tables of records and pages come near it.
constexpr int64_t kMostFileBytes = int64_t{64} << 20;
// What a manifest may grow from one step to the next: by numbers that get longer.
constexpr int64_t kMostDigits = 20, kManifestGrowth = 4096;

std::string run_folder(const std::string& path) { return path.substr(0, path.rfind('/')); }

// The step of a directory's name, or -1.
int64_t step_of(const std::string& name) {
  const std::string digits = name.starts_with("step-") ? name.substr(5) : "";
  const bool number = digits.size() >= 8 && digits.size() <= 18 &&
                      digits.find_first_not_of("0123456789") == std::string::npos;
  return number ? std::stoll(digits) : -1;
}

// The step of a checkpoint whose writing has not ended, or -1.
int64_t unfinished_step(const std::string& name) {
  return name.ends_with(".tmp") ? step_of(name.substr(0, name.size() - 4)) : -1;
}

}  // namespace

int64_t RunCheckpoint::num_pages() const {
  int64_t count = 0;
  for (const CheckpointStore& store : stores) count += std::ssize(store.pages);
  return count;
}

std::string CheckpointDirectory::step_path(int64_t step) const {
  return path_ + strf("/step-%08lld", (long long)step);
}

Status CheckpointDirectory::write_step(const RunCheckpoint& checkpoint,
                                       const std::string& temporary) const {
  const CheckpointFiles files = encode_checkpoint(checkpoint, run_folder(path_));
  RETURN_IF_ERROR(storage_->write_file(temporary + "/pages.bin", files.pages));
  RETURN_IF_ERROR(storage_->sync_directory(temporary));
  RETURN_IF_ERROR(storage_->write_file(temporary + "/MANIFEST", files.manifest));
  return storage_->sync_directory(temporary);
}

// What is written behind a link would be written to somebody else's folder.
Status CheckpointDirectory::refuse_link(const std::string& path) const {
  if (!storage_->exists(path) || storage_->is_directory(path)) return Status();
  return Status(Exit::kCannotCreate,
                strf("%s is a link or a file, but must be a folder; nothing was written: put the "
                     "folder itself there", path.c_str()));
}

Status CheckpointDirectory::reserve(const RunCheckpoint& saved) const {
  RETURN_IF_ERROR(make_durable_directory(storage_, path_));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, folders());
  for (const std::string& name : names) {  // what a killed process left may be the room it had
    if (unfinished_step(name) >= 0) RETURN_IF_ERROR(make_room_of(path_ + "/" + name));
  }
  const CheckpointFiles files = encode_checkpoint(saved, run_folder(path_));
  const auto numbers = static_cast<int64_t>(saved.record_steps.size());
  const int64_t manifest_bytes =
      static_cast<int64_t>(files.manifest.size()) + kManifestGrowth + numbers * kMostDigits;
  RETURN_IF_ERROR(refuse_link(room_path()));
  Status reserved = storage_->make_directory(room_path());
  if (reserved.ok()) {
    reserved = storage_->reserve_file(room_path() + "/pages.bin",
                                      static_cast<int64_t>(files.pages.size()));
  }
  if (reserved.ok()) {
    reserved = storage_->reserve_file(room_path() + "/MANIFEST", manifest_bytes);
  }
  if (reserved.ok()) return Status();
  return Status(reserved.code(), strf("%s; step %lld is saved: --resume continues from it",
                                      reserved.message().c_str(), (long long)saved.step));
}

// A directory for a checkpoint being written: the room, if there is one.
Status CheckpointDirectory::take_room(const std::string& temporary) const {
  RETURN_IF_ERROR(storage_->remove_directory(temporary));
  if (!storage_->exists(room_path())) return storage_->make_directory(temporary);
  RETURN_IF_ERROR(refuse_link(room_path()));
  RETURN_IF_ERROR(storage_->rename(room_path(), temporary));
  // It must not be found under both names, and be room and a checkpoint.
  return storage_->sync_directory(path_);
}

// Makes an older step, or an unfinished one, the room of the next; or removes it if there is one.
// Either way it is no checkpoint any more at once, whatever else is interrupted here.
Status CheckpointDirectory::make_room_of(const std::string& path) const {
  if (!storage_->exists(room_path())) {
    RETURN_IF_ERROR(storage_->rename(path, room_path()));
    return storage_->sync_directory(path_);
  }
  RETURN_IF_ERROR(storage_->remove_file(path + "/MANIFEST"));
  RETURN_IF_ERROR(storage_->sync_directory(path));
  return storage_->remove_directory(path);
}

Status CheckpointDirectory::commit(const RunCheckpoint& checkpoint) const {
  const std::string target = step_path(checkpoint.step), temporary = target + ".tmp";
  RETURN_IF_ERROR(make_durable_directory(storage_, path_));
  // Its name may still be volatile when the process that made it was killed.
  RETURN_IF_ERROR(storage_->sync_directory(run_folder(path_)));
  RETURN_IF_ERROR(refuse_link(path_));
  RETURN_IF_ERROR(storage_->remove_directory(target));
  RETURN_IF_ERROR(take_room(temporary));
  const Status written = write_step(checkpoint, temporary);
  if (!written.ok()) {
    const Status kept = make_room_of(temporary);
    if (!kept.ok()) log_warn(kept.message());
    return written;
  }
  RETURN_IF_ERROR(storage_->rename(temporary, target));
  return storage_->sync_directory(path_);
}

Status CheckpointDirectory::sync() const {
  if (!storage_->exists(path_)) return Status();
  RETURN_IF_ERROR(steps().status());  // says so where one may not look
  RETURN_IF_ERROR(storage_->sync_directory(path_));
  return storage_->sync_directory(run_folder(path_));
}

// A link to a folder is none: what it leads to is not this run's.
Result<std::vector<std::string>> CheckpointDirectory::folders() const {
  ASSIGN_OR_RETURN(std::vector<std::string> names, storage_->list_directory(path_));
  std::erase_if(names, [this](const std::string& name) {
    return !storage_->is_directory(path_ + "/" + name);
  });
  return names;
}

void CheckpointDirectory::remove_older(int64_t step) const {
  const auto names = folders();
  if (!names.ok()) return log_warn(names.status().message());
  for (const std::string& name : names.value()) {
    const int64_t finished = step_of(name);
    if (unfinished_step(name) < 0 && (finished < 0 || finished >= step)) continue;
    const Status removed = make_room_of(path_ + "/" + name);
    if (!removed.ok()) log_warn(removed.message());
  }
  const std::string newest = step_path(step).substr(path_.size() + 1);
  const Status hint = storage_->write_file(path_ + "/LATEST", newest + "\n");
  if (!hint.ok()) log_warn(hint.message());
}

Result<std::vector<int64_t>> CheckpointDirectory::steps() const {
  std::vector<int64_t> steps;
  if (!storage_->exists(path_)) return steps;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, folders());
  for (const std::string& name : names) {
    if (const int64_t step = step_of(name); step >= 0) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

bool CheckpointDirectory::is_complete(int64_t step) const {
  return storage_->exists(step_path(step) + "/MANIFEST") &&
         storage_->exists(step_path(step) + "/pages.bin");
}

Result<CheckpointFiles> CheckpointDirectory::read_files(int64_t step) const {
  const auto manifest = storage_->read_file(step_path(step) + "/MANIFEST", kMostFileBytes);
  const auto pages = manifest.ok()
                         ? storage_->read_file(step_path(step) + "/pages.bin", kMostFileBytes)
                         : manifest;
  if (pages.ok()) return CheckpointFiles{manifest.value(), pages.value()};
  if (is_complete(step)) return pages.status();
  return Status(Exit::kIoError, strf("%s lacks MANIFEST or pages.bin; this checkpoint is not used",
                                     step_path(step).c_str()));
}

Result<RunCheckpoint> CheckpointDirectory::load(int64_t step) const {
  ASSIGN_OR_RETURN(const CheckpointFiles files, read_files(step));
  return decode_checkpoint(files, step, step_path(step), run_folder(path_));
}

Result<FoundCheckpoint> CheckpointDirectory::newest() const {
  ASSIGN_OR_RETURN(std::vector<int64_t> all, steps());
  for (;;) {
    FoundCheckpoint found;
    for (auto step = all.rbegin(); step != all.rend(); ++step) {
      const auto files = read_files(*step);
      const bool damaged = !is_complete(*step) || files.status().code() == Exit::kBadData;
      if (!files.ok() && !damaged) return files.status();
      auto checkpoint = files.ok() ? decode_checkpoint(files.value(), *step, step_path(*step),
                                                       run_folder(path_))
                                   : files.status();
      if (!checkpoint.ok()) {
        found.damaged.push_back(checkpoint.status());
        continue;
      }
      found.checkpoint = checkpoint.take();
      return found;
    }
    // A run that goes on may have saved another step meanwhile, and taken these away.
    ASSIGN_OR_RETURN(std::vector<int64_t> now, steps());
    if (now == all) {
      for (const Status& damaged : found.damaged) log_warn(damaged.message());
      break;
    }
    all = std::move(now);
  }
  return Status(Exit::kNoCheckpoint,
                strf("no valid checkpoint in %s; start a new run, in a new train.output_dir and "
                     "with train.save_steps above 0",
                     path_.c_str()));
}

}  // namespace pagoda
