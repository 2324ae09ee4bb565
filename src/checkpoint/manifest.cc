#include "checkpoint/manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/dtype.h"
#include "base/file.h"
#include "model/json.h"

namespace pagoda {
namespace {

// The older ones have one store, whose fields stand beside the others. In the oldest a page's own
// extents were counted, from 0.
constexpr int kFormat = 6, kStoreFormat = 5, kSlotsFormat = 4;
constexpr int64_t kVersionBytes = 20;

// No run has more; see the ranges of its options.
constexpr int64_t kMostSteps = int64_t{1} << 40, kMostStepTokens = int64_t{1} << 31;
constexpr int64_t kMostRows = kMostSteps * (kMostStepTokens >> 10);
constexpr int64_t kPageSlots = 2;  // of runs with checkpoints
constexpr int64_t kMostDirectories = 4096, kMostStores = 4096;
constexpr uint64_t kMostGenerations = uint64_t{1} << 62;

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

void append_pages(const std::vector<PageVersion>& pages, std::string& out) {
  out.reserve(out.size() + pages.size() * kVersionBytes);
  for (const PageVersion& v : pages) {
    put(out, v.page);
    put(out, v.extent);
    put(out, v.generation);
    put(out, v.checksum);
  }
}

// False if a number is none that a run writes; which pages there are, the page file tells.
bool decode_pages(std::string_view bytes, std::vector<PageVersion>& pages) {
  if (bytes.size() % kVersionBytes != 0) return false;
  pages.resize(bytes.size() / kVersionBytes);
  const char* at = bytes.data();
  for (PageVersion& v : pages) {
    v.page = get<uint32_t>(at);
    v.extent = get<uint32_t>(at);
    v.generation = get<uint64_t>(at);
    v.checksum = get<uint32_t>(at);
    if (v.generation > kMostGenerations) return false;
  }
  return true;
}

// From slots of pages to extents: those of durable pages come first, page by page, in the layout
// of the stores that such manifests refer to. False if no run wrote these.
bool number_extents(std::vector<PageVersion>& pages) {
  for (size_t i = 0; i < pages.size(); ++i) {
    const bool in_order = i == 0 || pages[i].page > pages[i - 1].page;
    if (pages[i].extent >= kPageSlots || !in_order) return false;
    pages[i].extent += static_cast<uint32_t>(kPageSlots * i);
  }
  return true;
}

// A run's folder may move with its store in it: paths inside it are kept without it.
std::string inside(const std::string& run, const std::string& path) {
  return path.starts_with(run + "/") ? path.substr(run.size() + 1) : path;
}

std::string outside(const std::string& run, const std::string& path) {
  return path.starts_with("/") ? path : run + "/" + path;
}

// True if no page is in two stores.
bool are_apart(const std::vector<CheckpointStore>& stores) {
  std::vector<PageId> all;
  for (const CheckpointStore& store : stores) {
    for (const PageVersion& v : store.pages) all.push_back(v.page);
  }
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) == all.end();
}

Json store_object(const CheckpointStore& store, std::vector<std::string> directories) {
  return {{"host", store.host},
          {"directories", std::move(directories)},
          {"file_name", store.file_name},
          {"store_id", store.store_id},
          {"kernel_set", store.kernel_set},
          {"pages", store.pages.size()}};
}

std::string line_of(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string encode_manifest(const RunCheckpoint& c, const std::string& pages,
                            const std::string& run) {
  Json stores = Json::array();
  for (const CheckpointStore& store : c.stores) {
    std::vector<std::string> directories;
    for (const std::string& directory : store.directories) {
      directories.push_back(inside(run, directory));
    }
    stores.push_back(store_object(store, std::move(directories)));
  }
  const Json manifest = {
      {"format", kFormat},
      {"step", c.step},
      {"updates", c.updates},
      {"rows_consumed", c.rows_consumed},
      {"config_hash", c.config_hash},
      {"resolved_config", c.resolved_config},
      {"model_json", c.model_json},
      {"run_folder", absolute_path(run)},
      {"model_path", c.model_path},
      {"tokenizer", c.tokenizer},
      {"data_fingerprint", c.data_fingerprint},
      {"build", c.build},
      {"kernel_set", c.kernel_set},
      {"stores", stores},
      {"page_slots", c.page_slots},
      {"microbatches", c.microbatches},
      {"microbatch_tokens", c.microbatch_tokens},
      {"dtype", c.dtype},
      {"state_format", c.state_format},
      {"record_steps", c.record_steps},
      {"pages_bytes", pages.size()},
      {"pages_xxh3", hash_text(pages)},
  };
  const std::string line = line_of(manifest);
  return line + "\nxxh3 " + hash_text(line) + "\n";
}

// Fields of a manifest, read one by one; the first that is missing or impossible is kept.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  const char* bad() const { return bad_; }  // nullptr: none
  void require(const char* key, bool good) {
    if (!good && bad_ == nullptr) bad_ = key;
  }
  void integer(const char* key, int64_t low, int64_t high, int64_t& value) {
    read_integer(key, find(key), low, high, value);
  }
  void text(const char* key, std::string& value) { read_text(key, find(key), value); }
  // Reads a field that older manifests lack; without it `value` is left as it is.
  void text_if_there(const char* key, std::string& value) {
    if (object_.contains(key)) text(key, value);
  }
  void integers(const char* key, int64_t low, int64_t high, std::vector<int64_t>& values) {
    const Json* list = find(key);
    if (list == nullptr || !list->is_array()) return require(key, false);
    values.resize(list->size());
    for (size_t i = 0; i < values.size(); ++i) {
      read_integer(key, &(*list)[i], low, high, values[i]);
    }
  }
  void texts(const char* key, std::vector<std::string>& values) {
    const Json* list = find(key);
    if (list == nullptr || !list->is_array()) return require(key, false);
    values.resize(list->size());
    for (size_t i = 0; i < values.size(); ++i) {
      read_text(key, &(*list)[i], values[i]);
    }
  }

 private:
  const Json* find(const char* key) const {
    const auto at = object_.find(key);
    return at == object_.end() ? nullptr : &*at;
  }
  void read_integer(const char* key, const Json* at, int64_t low, int64_t high, int64_t& value) {
    // An unsigned value beyond int64 turns negative here and is refused as well.
    value = at != nullptr && at->is_number_integer() ? at->get<int64_t>() : low - 1;
    require(key, value >= low && value <= high);
  }
  void read_text(const char* key, const Json* at, std::string& value) {
    if (at == nullptr || !at->is_string()) return require(key, false);
    value = at->get<std::string>();
  }

  const Json& object_;
  const char* bad_ = nullptr;
};

bool is_hex(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Where a page file is: in folders, and no path by itself. `pages` have not been read yet; its
// store takes as many as it has.
void read_store(Fields& f, std::string_view& pages, CheckpointStore& store) {
  f.text_if_there("host", store.host);
  f.text_if_there("kernel_set", store.kernel_set);
  f.texts("directories", store.directories);
  const auto count = static_cast<int64_t>(store.directories.size());
  f.require("directories", count >= 1 && count <= kMostDirectories);
  for (const std::string& directory : store.directories) {
    f.require("directories", !directory.empty() && directory.find('\0') == std::string::npos);
  }
  f.text("file_name", store.file_name);
  f.require("file_name",
            store.file_name.starts_with("pages") &&
                store.file_name.find_first_of(std::string("/\0", 2)) == std::string::npos);
  f.text("store_id", store.store_id);
  f.require("store_id", is_hex(store.store_id, 32));
  int64_t count_of_pages = 0;
  f.integer("pages", 0, static_cast<int64_t>(pages.size()) / kVersionBytes, count_of_pages);
  if (f.bad() != nullptr) return;
  const auto bytes = static_cast<size_t>(count_of_pages * kVersionBytes);
  f.require("pages", decode_pages(pages.substr(0, bytes), store.pages));
  pages.remove_prefix(bytes);
}

void read_stores(const Json& manifest, Fields& f, std::string_view pages, RunCheckpoint& c) {
  const auto list = manifest.find("stores");
  const size_t count = list != manifest.end() && list->is_array() ? list->size() : 0;
  f.require("stores", count >= 1 && count <= kMostStores);
  if (f.bad() != nullptr) return;
  for (const Json& object : *list) {
    Fields of_store(object);
    read_store(of_store, pages, c.stores.emplace_back());
    if (of_store.bad() != nullptr) return f.require(of_store.bad(), false);
  }
  f.require("pages", pages.empty() && are_apart(c.stores));
}

void read_fields(Fields& f, RunCheckpoint& c) {
  f.integer("page_slots", kPageSlots, kPageSlots, c.page_slots);
  f.integer("step", 0, kMostSteps, c.step);
  f.integer("updates", 0, c.step, c.updates);
  f.integer("rows_consumed", 0, kMostRows, c.rows_consumed);
  f.integers("record_steps", 0, kMostSteps, c.record_steps);
  f.integer("microbatches", 1, kMostStepTokens, c.microbatches);
  f.integer("microbatch_tokens", 1, kMostStepTokens, c.microbatch_tokens);
  f.require("microbatches",
            c.microbatch_tokens >= 1 && c.microbatches <= kMostStepTokens / c.microbatch_tokens);
  f.text("dtype", c.dtype);
  f.require("dtype", c.dtype == dtype_name(DType::kF32) || c.dtype == dtype_name(DType::kBF16));
  f.text("state_format", c.state_format);
  f.text("config_hash", c.config_hash);
  f.text("resolved_config", c.resolved_config);
  f.text("model_json", c.model_json);
  f.text("model_path", c.model_path);
  f.text("run_folder", c.run_folder);
  f.text("tokenizer", c.tokenizer);
  f.text("data_fingerprint", c.data_fingerprint);
  f.text("build", c.build);
  f.text_if_there("kernel_set", c.kernel_set);
}

// The first line of a manifest, if the second confirms it; empty otherwise.
std::string verified_line(const std::string& text) {
  const size_t end = text.find('\n');
  if (end == std::string::npos) return "";
  const std::string line = text.substr(0, end);
  return text.substr(end) == "\nxxh3 " + hash_text(line) + "\n" ? line : "";
}

Status unusable(const std::string& path, const std::string& why) {
  return Status(Exit::kIoError, path + " " + why + "; this checkpoint is not used");
}

}  // namespace

CheckpointFiles encode_checkpoint(const RunCheckpoint& checkpoint, const std::string& run) {
  std::string pages;
  for (const CheckpointStore& store : checkpoint.stores) append_pages(store.pages, pages);
  std::string manifest = encode_manifest(checkpoint, pages, run);
  return {std::move(manifest), std::move(pages)};
}

Result<RunCheckpoint> decode_checkpoint(const CheckpointFiles& files, int64_t step,
                                        const std::string& folder, const std::string& run) {
  const std::string path = folder + "/MANIFEST";
  const auto size = static_cast<int64_t>(files.manifest.size());
  JsonLimits limits;
  limits.max_bytes = limits.max_string_bytes = size;  // is bounded where it is read
  const auto parsed = parse_json(verified_line(files.manifest), path, limits);
  if (!parsed.ok() || !parsed.value().is_object()) {
    return unusable(path, "is damaged or incomplete: its checksum does not match, or it is no JSON "
                          "object");
  }
  const Json& manifest = parsed.value();
  const auto format = manifest.find("format");
  const auto is_of = [&](int number) {
    return format != manifest.end() && *format == Json(number);
  };
  const bool one_store = is_of(kStoreFormat) || is_of(kSlotsFormat);
  if (!one_store && !is_of(kFormat)) {
    return Status(Exit::kMismatch, strf("%s is not of format %d to %d, which this build reads; use "
                                        "the version that wrote it",
                                        path.c_str(), kSlotsFormat, kFormat));
  }
  Fields fields(manifest);
  RunCheckpoint checkpoint;
  read_fields(fields, checkpoint);
  std::string pages_hash;
  int64_t pages_bytes = 0;
  fields.integer("pages_bytes", 0, INT64_MAX, pages_bytes);
  fields.text("pages_xxh3", pages_hash);
  const bool whole = static_cast<int64_t>(files.pages.size()) == pages_bytes &&
                     hash_text(files.pages) == pages_hash;
  if (fields.bad() == nullptr && !whole) {
    return unusable(folder + "/pages.bin", "is damaged: it does not match the manifest");
  }
  if (one_store) {
    std::string_view pages = files.pages;
    read_store(fields, pages, checkpoint.stores.emplace_back());
    fields.require("pages", pages.empty());
  } else {
    read_stores(manifest, fields, files.pages, checkpoint);
  }
  if (is_of(kSlotsFormat) && fields.bad() == nullptr) {
    fields.require("pages", number_extents(checkpoint.stores[0].pages));
  }
  if (fields.bad() != nullptr) {
    return unusable(path,
                    strf("lacks \"%s\", or has a value for it that no run writes", fields.bad()));
  }
  if (checkpoint.step != step) {
    return unusable(path, strf("is that of step %lld", (long long)checkpoint.step));
  }
  for (CheckpointStore& store : checkpoint.stores) {
    for (std::string& directory : store.directories) directory = outside(run, directory);
  }
  return checkpoint;
}

std::string encode_store(const CheckpointStore& store) {
  std::string text = line_of(store_object(store, store.directories)) + "\n";
  append_pages(store.pages, text);
  return text;
}

Result<CheckpointStore> decode_store(const std::string& text) {
  const Status none(Exit::kIoError,
                    "a rank sent a list of pages that no rank writes; the last "
                    "checkpoint is intact: see that all ranks run the same "
                    "program, and resume");
  const size_t end = text.find('\n');
  if (end == std::string::npos) return none;
  const auto parsed = parse_json(text.substr(0, end), "a rank's list of pages");
  if (!parsed.ok() || !parsed.value().is_object()) return none;
  Fields fields(parsed.value());
  CheckpointStore store;
  std::string_view pages = std::string_view(text).substr(end + 1);
  read_store(fields, pages, store);
  if (fields.bad() != nullptr || !pages.empty()) return none;
  return store;
}

}  // namespace pagoda
