#include "checkpoint/run_checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/log.h"

namespace pagoda {
namespace {

using nlohmann::json;

constexpr int kFormat = 3;
constexpr int64_t kVersionBytes = 20;
constexpr int64_t kManifestLimit = int64_t{1} << 30;

std::string hash_text(const std::string& bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return strf("%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

template <typename T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

template <typename T>
T get(const char*& at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  at += sizeof(T);
  return value;
}

std::string encode_pages(const std::vector<PageVersion>& pages) {
  std::string out;
  out.reserve(pages.size() * kVersionBytes);
  for (const PageVersion& v : pages) {
    put(out, v.page);
    put(out, v.slot);
    put(out, v.generation);
    put(out, v.checksum);
  }
  return out;
}

std::vector<PageVersion> decode_pages(const std::string& bytes) {
  std::vector<PageVersion> pages(bytes.size() / kVersionBytes);
  const char* at = bytes.data();
  for (PageVersion& v : pages) {
    v.page = get<uint32_t>(at);
    v.slot = get<uint32_t>(at);
    v.generation = get<uint64_t>(at);
    v.checksum = get<uint32_t>(at);
  }
  return pages;
}

// A run's folder may move with its store in it: paths inside it are kept without it.
std::string inside(const std::string& run, const std::string& path) {
  return path.starts_with(run + "/") ? path.substr(run.size() + 1) : path;
}

std::string run_folder(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::string outside(const std::string& run, const std::string& path) {
  return path.starts_with("/") ? path : run + "/" + path;
}

std::string encode_manifest(const RunCheckpoint& c, const std::string& pages,
                            const std::string& run) {
  std::vector<std::string> directories;
  for (const std::string& directory : c.directories) {
    directories.push_back(inside(run, directory));
  }
  const json manifest = {
      {"format", kFormat},
      {"step", c.step},
      {"updates", c.updates},
      {"rows_consumed", c.rows_consumed},
      {"store_id", c.store_id},
      {"config_hash", c.config_hash},
      {"resolved_config", c.resolved_config},
      {"model_json", c.model_json},
      {"run_folder", absolute_path(run)},
      {"model_path", c.model_path},
      {"tokenizer", c.tokenizer},
      {"data_fingerprint", c.data_fingerprint},
      {"build", c.build},
      {"kernel_set", c.kernel_set},
      {"directories", directories},
      {"file_name", c.file_name},
      {"page_slots", c.page_slots},
      {"microbatches", c.microbatches},
      {"microbatch_tokens", c.microbatch_tokens},
      {"devices", c.devices},
      {"dtype", c.dtype},
      {"state_format", c.state_format},
      {"record_steps", c.record_steps},
      {"pages", c.pages.size()},
      {"pages_bytes", pages.size()},
      {"pages_xxh3", hash_text(pages)},
  };
  const std::string line = manifest.dump(-1, ' ', false, json::error_handler_t::replace);
  return line + "\nxxh3 " + hash_text(line) + "\n";
}

// Reads one field of the expected type; false if it is missing or of another type.
template <typename T>
bool read(const json& object, const char* key, T& value) {
  const auto at = object.find(key);
  if (at == object.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!at->is_string()) return false;
  } else if constexpr (std::is_integral_v<T>) {
    if (!at->is_number_integer()) return false;
  }
  value = at->get<T>();
  return true;
}

// As read(), of a field that older manifests lack: `value` is then left as it is.
bool read_newer(const json& object, const char* key, std::string& value) {
  return !object.contains(key) || read(object, key, value);
}

bool decode_manifest(const json& m, RunCheckpoint& c, std::string& pages_hash, int64_t& bytes) {
  const auto steps = m.find("record_steps");
  if (steps == m.end() || !steps->is_array()) return false;
  for (const json& t : *steps) {
    if (!t.is_number_integer()) return false;
    c.record_steps.push_back(t.get<int64_t>());
  }
  const auto directories = m.find("directories");
  if (directories == m.end() || !directories->is_array()) return false;
  for (const json& directory : *directories) {
    if (!directory.is_string()) return false;
    c.directories.push_back(directory.get<std::string>());
  }
  return read(m, "step", c.step) && read(m, "updates", c.updates) &&
         read(m, "rows_consumed", c.rows_consumed) && read(m, "store_id", c.store_id) &&
         read(m, "config_hash", c.config_hash) && read(m, "resolved_config", c.resolved_config) &&
         read(m, "model_json", c.model_json) && read(m, "model_path", c.model_path) &&
         read(m, "run_folder", c.run_folder) && read(m, "tokenizer", c.tokenizer) &&
         read(m, "data_fingerprint", c.data_fingerprint) && read(m, "build", c.build) &&
         read_newer(m, "kernel_set", c.kernel_set) &&
         read(m, "file_name", c.file_name) && read(m, "page_slots", c.page_slots) &&
         read(m, "microbatches", c.microbatches) &&
         read(m, "microbatch_tokens", c.microbatch_tokens) && read(m, "devices", c.devices) &&
         read(m, "dtype", c.dtype) && read(m, "state_format", c.state_format) &&
         read(m, "pages_xxh3", pages_hash) && read(m, "pages_bytes", bytes);
}

// A manifest may come from anywhere: its page files must not be where it does not say so.
bool names_a_store(const RunCheckpoint& c) {
  for (const std::string& directory : c.directories) {
    if (("/" + directory + "/").find("/../") != std::string::npos) return false;
  }
  return !c.directories.empty() && c.file_name.find('/') == std::string::npos;
}

// The step of a directory's name, or -1.
int64_t step_of(const std::string& name) {
  const std::string digits = name.starts_with("step-") ? name.substr(5) : "";
  const bool number = digits.size() >= 8 && digits.size() <= 18 &&
                      digits.find_first_not_of("0123456789") == std::string::npos;
  return number ? std::stoll(digits) : -1;
}

// The first line of a manifest, if the second confirms it; empty otherwise.
std::string verified_line(const std::string& text) {
  const size_t end = text.find('\n');
  if (end == std::string::npos) return "";
  const std::string line = text.substr(0, end);
  return text.substr(end) == "\nxxh3 " + hash_text(line) + "\n" ? line : "";
}

}  // namespace

std::string CheckpointDirectory::step_path(int64_t step) const {
  return path_ + strf("/step-%08lld", (long long)step);
}

Status CheckpointDirectory::write_step(const RunCheckpoint& checkpoint,
                                       const std::string& temporary) const {
  const std::string pages = encode_pages(checkpoint.pages);
  RETURN_IF_ERROR(storage_->make_directory(temporary));
  RETURN_IF_ERROR(storage_->write_file(temporary + "/pages.bin", pages));
  RETURN_IF_ERROR(storage_->sync_directory(temporary));
  RETURN_IF_ERROR(storage_->write_file(temporary + "/MANIFEST",
                                       encode_manifest(checkpoint, pages, run_folder(path_))));
  return storage_->sync_directory(temporary);
}

Status CheckpointDirectory::commit(const RunCheckpoint& checkpoint) const {
  const std::string target = step_path(checkpoint.step), temporary = target + ".tmp";
  RETURN_IF_ERROR(make_durable_directory(storage_, path_));
  // Its name may still be volatile when the process that made it was killed.
  RETURN_IF_ERROR(storage_->sync_directory(run_folder(path_)));
  if (!storage_->is_directory(path_)) {
    return Status(Exit::kCannotCreate,
                  strf("%s is a link, which is refused there; nothing was written: put the folder "
                       "itself there", path_.c_str()));
  }
  RETURN_IF_ERROR(storage_->remove_directory(temporary));
  RETURN_IF_ERROR(storage_->remove_directory(target));
  const Status written = write_step(checkpoint, temporary);
  if (!written.ok()) {  // on a full disk its bytes are missed
    const Status removed = storage_->remove_directory(temporary);
    if (!removed.ok()) log_warn(removed.message());
    return written;
  }
  RETURN_IF_ERROR(storage_->rename(temporary, target));
  return storage_->sync_directory(path_);
}

Status CheckpointDirectory::sync() const {
  if (!storage_->exists(path_)) return Status();
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
    const bool unfinished = name.ends_with(".tmp");
    const int64_t found = step_of(unfinished ? name.substr(0, name.size() - 4) : name);
    if (found < 0 || (found >= step && !unfinished)) continue;
    // Without its manifest a step is no checkpoint, whatever else is interrupted here.
    const std::string path = path_ + "/" + name;
    Status removed = storage_->remove_file(path + "/MANIFEST");
    if (removed.ok()) removed = storage_->sync_directory(path);
    if (removed.ok()) removed = storage_->remove_directory(path);
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

Result<CheckpointDirectory::Files> CheckpointDirectory::read_files(int64_t step) const {
  Files files;
  ASSIGN_OR_RETURN(files.manifest,
                   storage_->read_file(step_path(step) + "/MANIFEST", kManifestLimit));
  ASSIGN_OR_RETURN(files.pages,
                   storage_->read_file(step_path(step) + "/pages.bin", kManifestLimit));
  return files;
}

Result<RunCheckpoint> CheckpointDirectory::load(int64_t step) const {
  ASSIGN_OR_RETURN(const Files files, read_files(step));
  return verify(step, files);
}

Result<RunCheckpoint> CheckpointDirectory::verify(int64_t step, const Files& files) const {
  const std::string manifest_path = step_path(step) + "/MANIFEST";
  const json manifest = json::parse(verified_line(files.manifest), nullptr, false);
  if (!manifest.is_object()) {
    return Status(Exit::kIoError, strf("%s is damaged or incomplete: its checksum does not match; "
                                       "this checkpoint is not used", manifest_path.c_str()));
  }
  int64_t format = 0, bytes = 0;
  if (!read(manifest, "format", format) || format != kFormat) {
    return Status(Exit::kMismatch, strf("%s has format %lld, this build reads %d; use the version "
                                        "that wrote it", manifest_path.c_str(), (long long)format,
                                        kFormat));
  }
  RunCheckpoint checkpoint;
  std::string pages_hash;
  if (!decode_manifest(manifest, checkpoint, pages_hash, bytes)) {
    return Status(Exit::kIoError, strf("%s lacks a field; this checkpoint is not used",
                                       manifest_path.c_str()));
  }
  if (static_cast<int64_t>(files.pages.size()) != bytes || hash_text(files.pages) != pages_hash) {
    return Status(Exit::kIoError, strf("%s/pages.bin is damaged: its checksum is not the "
                                       "manifest's; this checkpoint is not used",
                                       step_path(step).c_str()));
  }
  if (!names_a_store(checkpoint)) {
    return Status(Exit::kIoError, strf("%s names no store; this checkpoint is not used",
                                       manifest_path.c_str()));
  }
  for (std::string& directory : checkpoint.directories) {
    directory = outside(run_folder(path_), directory);
  }
  if (checkpoint.step != step) {
    return Status(Exit::kIoError, strf("%s is that of step %lld; this checkpoint is not used",
                                       manifest_path.c_str(), (long long)checkpoint.step));
  }
  checkpoint.pages = decode_pages(files.pages);
  return checkpoint;
}

Result<RunCheckpoint> CheckpointDirectory::newest() const {
  ASSIGN_OR_RETURN(const std::vector<int64_t> all, steps());
  for (auto step = all.rbegin(); step != all.rend(); ++step) {
    const auto files = read_files(*step);
    if (!files.ok() && files.status().code() == Exit::kIoError) return files.status();
    auto checkpoint = files.ok() ? verify(*step, files.value()) : files.status();
    if (checkpoint.ok()) return checkpoint;
    log_warn(checkpoint.status().message());
  }
  return Status(Exit::kNoCheckpoint,
                strf("no valid checkpoint in %s; it takes a new run, in a new train.output_dir and "
                     "with train.save_steps above 0",
                     path_.c_str()));
}

}  // namespace pagoda
