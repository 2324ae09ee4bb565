#include "checkpoint/hf_writer.h"

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "base/output_file.h"
#include "base/stop_signal.h"
#include "model/json.h"

namespace pagoda {

namespace {

constexpr int64_t kWrittenElements = int64_t{1} << 18;
constexpr int64_t kMaxCompanionBytes = int64_t{1} << 28;
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "tokenizer.model",
                                           "vocab.json",
                                           "vocab.txt",
                                           "merges.txt",
                                           "chat_template.jinja"};

Status copy_if_present(const std::string& from, NewFolder& to, const std::string& name) {
  const std::string path = from + "/" + name;
  std::error_code error;
  if (std::filesystem::symlink_status(path, error).type() ==
      std::filesystem::file_type::not_found) {
    return Status();
  }
  ASSIGN_OR_RETURN(const std::string content,
                   read_text_file(path, Links::kFollow, kMaxCompanionBytes));
  return write_text_file(to.file(name), content);
}

}  // namespace

Status copy_tokenizer_files(const std::string& from, NewFolder& to) {
  for (const char* name : kTokenizerFiles) RETURN_IF_ERROR(copy_if_present(from, to, name));
  return Status();
}

Result<std::string> config_with_dtype(const std::string& config_json, StoredDType dtype,
                                      const std::string& where) {
  ASSIGN_OR_RETURN(const Json checked, parse_json(config_json, where));
  auto config = nlohmann::ordered_json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!checked.is_object() || !config.is_object()) {
    return Status(Exit::kBadData, printable(where) + ": must be a JSON object");
  }
  // Transformers 4 writes torch_dtype, 5 writes dtype; both read either.
  const bool has_new = config.contains("dtype"), has_old = config.contains("torch_dtype");
  const auto before = config;
  if (has_new) config["dtype"] = torch_name(dtype);
  if (has_old || !has_new) config["torch_dtype"] = torch_name(dtype);
  if (config == before) return config_json;
  return config.dump(2) + "\n";
}

std::string config_unquantised(const std::string& config_json) {
  auto config = nlohmann::ordered_json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  CHECK(config.is_object(), "a config that was parsed is no object");
  config.erase("quantization_config");
  return config.dump(2) + "\n";
}

Result<HfWriter::Options> HfWriter::options_for(const std::string& directory,
                                                const HfFolder& source,
                                                std::optional<DType> dtype) {
  Options options;
  options.directory = directory;
  options.config_json = source.config().json;
  options.layout = source.layout();
  if (source.config().quantised()) {
    if (source.config().mxfp4) options.layout = usual_layout(*source.config().family);
    options.config_json = config_unquantised(options.config_json);
  }
  options.dtypes = source.dtypes();
  options.companions_directory = source.directory();
  options.kept_of = &source;
  if (!dtype) return options;
  const StoredDType stored = stored_dtype_of(*dtype);
  for (size_t t = 0; t < options.dtypes.size(); ++t) {
    if (!source.table().tensors[t].is_correction()) options.dtypes[t] = stored;
  }
  if (options.dtypes != source.dtypes()) {
    ASSIGN_OR_RETURN(options.config_json, config_with_dtype(options.config_json, stored,
                                                            source.directory() + "/config.json"));
  }
  return options;
}

Result<HfWriter> HfWriter::create(Options options, const TensorTable& table) {
  CHECK(options.dtypes.size() == table.tensors.size() && options.shard_bytes > 0);
  HfWriter writer(std::move(options), table);
  writer.plan_shards();
  ASSIGN_OR_RETURN(NewFolder folder,
                   NewFolder::create(writer.options_.directory, writer.needed_bytes()));
  writer.folder_.emplace(std::move(folder));
  RETURN_IF_ERROR(writer.begin_shard());
  return writer;
}

int64_t HfWriter::needed_bytes(Options options, const TensorTable& table) {
  HfWriter writer(std::move(options), table);
  writer.plan_shards();
  return writer.needed_bytes();
}

int64_t HfWriter::bytes_of(const StoredTensor& stored) const {
  int64_t bytes = 0;
  for (const int64_t part : stored.parts) {
    CHECK(options_.dtypes[part] == options_.dtypes[stored.parts[0]]);
    bytes += table_->tensors[part].stored_elements() * stored_bytes(options_.dtypes[part]);
  }
  return bytes;
}

void HfWriter::plan_shards() {
  int64_t shard_bytes = 0;
  shards_.push_back({});
  const auto shard_of = [&](int64_t bytes) -> Shard& {
    if (shard_bytes > 0 && shard_bytes + bytes > options_.shard_bytes) {
      shards_.push_back({});
      shard_bytes = 0;
    }
    shard_bytes += bytes;
    total_bytes_ += bytes;
    return shards_.back();
  };
  for (StoredTensor& stored : stored_tensors(*table_, options_.layout)) {
    shard_of(bytes_of(stored)).tensors.push_back(std::move(stored));
  }
  if (options_.kept_of != nullptr) {
    for (const KeptTensor& kept : options_.kept_of->kept()) {
      shard_of(kept.bytes).kept.push_back(kept);
    }
  }
  for (Shard& shard : shards_) {
    std::stable_partition(shard.tensors.begin(), shard.tensors.end(), [&](const auto& stored) {
      return bytes_of(stored) % kIoAlign == 0;
    });
    for (const StoredTensor& stored : shard.tensors) {
      for (size_t p = 0; p < stored.parts.size(); ++p) {
        const int64_t part = stored.parts[p];
        order_.push_back(part);
        turns_.emplace_back();
        if (!stored.in_order()) turns_.back() = block_order(stored, p, table_->tensors[part]);
      }
    }
    shard.end = order_.size();
  }
}

// The bytes of the weights with their headers. Other files that are copied are small.
int64_t HfWriter::needed_bytes() const {
  constexpr int64_t kEntryBytes = 192;
  int64_t bytes = total_bytes_;
  for (const Shard& shard : shards_) {
    bytes += kIoAlign + kEntryBytes * std::ssize(shard.tensors);
    for (const KeptTensor& kept : shard.kept) bytes += kEntryBytes + std::ssize(kept.name);
  }
  return bytes;
}

std::string HfWriter::shard_name(size_t shard) const {
  if (shards_.size() == 1) return "model.safetensors";
  return strf("model-%05zu-of-%05zu.safetensors", shard + 1, shards_.size());
}

Status HfWriter::begin_shard() {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const StoredTensor& stored : shards_[shard_].tensors) {
    tensors.push_back({stored.name, options_.dtypes[stored.parts[0]], stored.shape});
  }
  for (const KeptTensor& kept : shards_[shard_].kept) {
    tensors.push_back({kept.name, kept.dtype, kept.shape});
  }
  ASSIGN_OR_RETURN(file_,
                   SafetensorsWriter::create(folder_->file(shard_name(shard_)), tensors));
  return Status();
}

Status HfWriter::append(int64_t tensor, const float* values, int64_t count) {
  CHECK(file_.has_value() && tensor == order_[next_], "tensor %lld out of order",
        (long long)tensor);
  const TensorSpec& spec = table_->tensors[tensor];
  CHECK(count <= spec.num_elements() - next_element_);
  if (spec.is_correction()) {
    CHECK(count == spec.num_elements(), "a correction comes whole");
    std::vector<float> whole(static_cast<size_t>(spec.stored_elements()));
    join_correction(values, spec.stored_elements(), whole.data());
    RETURN_IF_ERROR(append_stored(tensor, whole.data(), spec.stored_elements(), 0));
  } else if (turns_[next_].has_value()) {
    RETURN_IF_ERROR(append_turn(tensor, values, count));
  } else {
    RETURN_IF_ERROR(append_stored(tensor, values, count, next_element_));
  }
  next_element_ += count;
  return next_element_ == spec.num_elements() ? end_tensor() : Status();
}

Status HfWriter::append_turn(int64_t tensor, const float* values, int64_t count) {
  const BlockOrder& o = *turns_[next_];
  block_.resize(static_cast<size_t>(o.turns * o.rows * o.columns));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t element = next_element_ + i;
    block_[static_cast<size_t>(o.at(element / o.columns, element % o.columns))] = values[i];
  }
  const bool complete = next_element_ + count == o.rows * o.columns && o.turn == o.turns - 1;
  return complete ? append_stored(tensor, block_.data(), std::ssize(block_), 0) : Status();
}

Status HfWriter::append_stored(int64_t tensor, const float* values, int64_t count, int64_t at) {
  const TensorSpec& spec = table_->tensors[tensor];
  const StoredDType dtype = options_.dtypes[tensor];
  std::vector<std::byte> raw(
      static_cast<size_t>(std::min(count, kWrittenElements) * stored_bytes(dtype)));
  std::vector<float> back(static_cast<size_t>(std::min(count, kWrittenElements)));
  for (int64_t first = 0; first < count; first += kWrittenElements) {
    RETURN_IF_ERROR(stop_status("writing the model's folder"));
    const int64_t piece = std::min(kWrittenElements, count - first);
    float_to_stored(dtype, values + first, piece, raw.data());
    // What was written is checked, not what came: rounding can overflow.
    stored_to_float(dtype, raw.data(), piece, back.data());
    if (const int64_t bad = first_non_finite(back.data(), piece); bad >= 0) {
      return Status(Exit::kDiverged,
                    strf("%s: tensor \"%s\" has no finite value as %s at element %lld; the folder "
                         "was removed, the run's checkpoints are as they were",
                         printable(options_.directory).c_str(), spec.name.c_str(),
                         safetensors_name(dtype), (long long)(at + first + bad)));
    }
    RETURN_IF_ERROR(file_->append(raw.data(), piece * stored_bytes(dtype)));
  }
  return Status();
}

// The bytes of the shard's kept tensors.
Status HfWriter::copy_kept() {
  std::vector<std::byte> raw;
  for (const KeptTensor& kept : shards_[shard_].kept) {
    for (int64_t first = 0; first < kept.bytes; first += kWrittenElements) {
      RETURN_IF_ERROR(stop_status("writing the model's folder"));
      const int64_t piece = std::min(kWrittenElements, kept.bytes - first);
      raw.resize(static_cast<size_t>(piece));
      RETURN_IF_ERROR(options_.kept_of->read_kept(kept, first, raw.data(), piece));
      RETURN_IF_ERROR(file_->append(raw.data(), piece));
    }
  }
  return Status();
}

Status HfWriter::end_tensor() {
  ++next_;
  next_element_ = 0;
  // Shards of kept tensors alone follow the others.
  while (shard_ < shards_.size() && next_ == shards_[shard_].end) {
    RETURN_IF_ERROR(copy_kept());
    RETURN_IF_ERROR(file_->finish());
    file_.reset();
    if (++shard_ < shards_.size()) RETURN_IF_ERROR(begin_shard());
  }
  return Status();
}

Status HfWriter::write_index() {
  Json map = Json::object();
  for (size_t s = 0; s < shards_.size(); ++s) {
    for (const StoredTensor& stored : shards_[s].tensors) map[stored.name] = shard_name(s);
    for (const KeptTensor& kept : shards_[s].kept) map[kept.name] = shard_name(s);
  }
  const Json index = {{"metadata", {{"total_size", total_bytes_}}}, {"weight_map", map}};
  return write_text_file(folder_->file("model.safetensors.index.json"), index.dump(2) + "\n");
}

Status HfWriter::copy_companions() {
  const std::string& from = options_.companions_directory;
  if (from.empty()) return Status();
  RETURN_IF_ERROR(copy_if_present(from, *folder_, "generation_config.json"));
  return copy_tokenizer_files(from, *folder_);
}

Status HfWriter::finish() {
  CHECK(next_ == order_.size(), "tensor %s was not written",
        table_->tensors[order_[next_]].name.c_str());
  if (shards_.size() > 1) RETURN_IF_ERROR(write_index());
  RETURN_IF_ERROR(copy_companions());
  RETURN_IF_ERROR(write_text_file(folder_->file("config.json"), options_.config_json));
  folder_->keep();
  return Status();
}

}  // namespace pagoda
