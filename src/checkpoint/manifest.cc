#include "checkpoint/manifest.h"

#include <xxhash.h>

#include <cstring>

#include "base/dtype.h"
#include "base/file.h"
#include "model/json.h"

namespace pagoda {
namespace {

// In the older one a page's own extents were counted, from 0.
constexpr int kFormat = 5, kSlotsFormat = 4;
constexpr int64_t kVersionBytes = 20;

// No run has more; see the ranges of its options.
constexpr int64_t kMostSteps = int64_t{1} << 40, kMostStepTokens = int64_t{1} << 31;
constexpr int64_t kMostRows = kMostSteps * (kMostStepTokens >> 10);
constexpr int64_t kPageSlots = 2;  // of runs with checkpoints
constexpr int64_t kMostDirectories = 4096;
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

std::string encode_pages(const std::vector<PageVersion>& pages) {
  std::string out;
  out.reserve(pages.size() * kVersionBytes);
  for (const PageVersion& v : pages) {
    put(out, v.page);
    put(out, v.extent);
    put(out, v.generation);
    put(out, v.checksum);
  }
  return out;
}

// False if a number is none that a run writes; which pages there are, the page file tells.
bool decode_pages(const std::string& bytes, std::vector<PageVersion>& pages) {
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

std::string encode_manifest(const RunCheckpoint& c, const std::string& pages,
                            const std::string& run) {
  std::vector<std::string> directories;
  for (const std::string& directory : c.directories) {
    directories.push_back(inside(run, directory));
  }
  const Json manifest = {
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
      {"dtype", c.dtype},
      {"state_format", c.state_format},
      {"record_steps", c.record_steps},
      {"pages", c.pages.size()},
      {"pages_bytes", pages.size()},
      {"pages_xxh3", hash_text(pages)},
  };
  const std::string line = manifest.dump(-1, ' ', false, Json::error_handler_t::replace);
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

// Where the page file is: in folders, and no path by itself.
void read_place(Fields& f, RunCheckpoint& c) {
  f.texts("directories", c.directories);
  const auto count = static_cast<int64_t>(c.directories.size());
  f.require("directories", count >= 1 && count <= kMostDirectories);
  for (const std::string& directory : c.directories) {
    f.require("directories", !directory.empty() && directory.find('\0') == std::string::npos);
  }
  f.text("file_name", c.file_name);
  f.require("file_name",
            c.file_name.starts_with("pages") &&
                c.file_name.find_first_of(std::string("/\0", 2)) == std::string::npos);
  f.text("store_id", c.store_id);
  f.require("store_id", is_hex(c.store_id, 32));
  f.integer("page_slots", kPageSlots, kPageSlots, c.page_slots);
}

void read_fields(Fields& f, RunCheckpoint& c) {
  read_place(f, c);
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
  std::string pages = encode_pages(checkpoint.pages);
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
  const bool slots = format != manifest.end() && *format == Json(kSlotsFormat);
  if (format == manifest.end() || (!slots && *format != Json(kFormat))) {
    return Status(Exit::kMismatch, strf("%s is not of format %d or %d, which this build reads; use "
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
  if (fields.bad() != nullptr) {
    return unusable(path,
                    strf("lacks \"%s\", or has a value for it that no run writes", fields.bad()));
  }
  if (static_cast<int64_t>(files.pages.size()) != pages_bytes ||
      hash_text(files.pages) != pages_hash || !decode_pages(files.pages, checkpoint.pages) ||
      (slots && !number_extents(checkpoint.pages))) {
    return unusable(folder + "/pages.bin", "is damaged: it does not match the manifest");
  }
  if (checkpoint.step != step) {
    return unusable(path, strf("is that of step %lld", (long long)checkpoint.step));
  }
  for (std::string& directory : checkpoint.directories) directory = outside(run, directory);
  return checkpoint;
}

}  // namespace pagoda
