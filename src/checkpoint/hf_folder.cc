#include "checkpoint/hf_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "base/log.h"
#include "model/json.h"

namespace pagoda {

namespace {

constexpr int64_t kMaxIndexBytes = 100000000;
constexpr size_t kMaxShards = 10000;
constexpr int64_t kReadElements = int64_t{1} << 18;
constexpr const char* kFp8Name = "F8_E4M3";
constexpr const char* kFp8Scales = "_scale_inv";  // behind the name of the tensor that they are of

Status bad_folder(const std::string& path, const std::string& why) {
  return Status(Exit::kBadData, printable(path) + ": " + why);
}

// True also for a link that leads nowhere, so that it is reported rather than overlooked.
bool entry_exists(const std::string& path) {
  struct stat st;
  return lstat(path.c_str(), &st) == 0;
}

// A plain file name of this directory: nothing in it can lead anywhere else.
bool is_base_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         name.find('/') == std::string::npos &&
         std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20; });
}

// File name of each tensor, from model.safetensors.index.json.
using WeightMap = std::map<std::string, std::string>;

Result<WeightMap> parse_weight_map(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, Links::kFollow, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const Json root,
                   parse_json(text, path, {.max_bytes = kMaxIndexBytes, .max_values = 2000000}));
  const auto map = root.find("weight_map");
  if (map == root.end() || !map->is_object())
    return bad_folder(path, "has no \"weight_map\" object");
  WeightMap result;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_base_name(file.get_ref<const std::string&>())) {
      return bad_folder(path, "tensor \"" + printable(tensor) +
                                  "\" is not in a plain file of this folder; nothing was read");
    }
    result.emplace(tensor, file.get<std::string>());
  }
  return result;
}

// Reports that `count` tensors, the first of them `name`, are wrong in the same way.
Status several(const std::string& path, size_t count, const std::string& name,
               const std::string& why) {
  const std::string more = count > 1 ? strf(" (and %zu more tensors)", count - 1) : "";
  return bad_folder(path, "tensor \"" + printable(name) + "\" " + why + more);
}

}  // namespace

Result<HfFolder> HfFolder::open(const std::string& directory, ModelKind kind) {
  HfFolder folder;
  folder.directory_ = directory;
  const std::string path = directory + "/config.json";
  ASSIGN_OR_RETURN(const std::string text,
                   read_text_file(path, Links::kFollow, JsonLimits().max_bytes));
  ASSIGN_OR_RETURN(folder.config_, ModelConfig::parse(text, path, kind));
  folder.table_ = TensorTable::make(folder.config_);
  RETURN_IF_ERROR(folder.open_shards());
  RETURN_IF_ERROR(folder.choose_layout());
  RETURN_IF_ERROR(folder.match_table());
  return folder;
}

Status HfFolder::open_shards() {
  const std::string single = directory_ + "/model.safetensors";
  const std::string index = single + ".index.json";
  const bool has_single = entry_exists(single), has_index = entry_exists(index);
  if (has_single && has_index) {
    return bad_folder(directory_,
                      "holds both model.safetensors and model.safetensors.index.json; remove "
                      "the one that does not belong");
  }
  if (has_index) return open_index(index);
  if (!has_single) {
    return Status(Exit::kNoInput, strf("%s: holds neither model.safetensors nor "
                                       "model.safetensors.index.json; give a model folder in "
                                       "safetensors format",
                                       printable(directory_).c_str()));
  }
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(single));
  shards_.push_back(std::move(file));
  return Status();
}

Status HfFolder::open_index(const std::string& index_path) {
  ASSIGN_OR_RETURN(const WeightMap map, parse_weight_map(index_path));
  std::map<std::string, size_t> shard_of;
  for (const auto& [tensor, file] : map) shard_of.emplace(file, 0);
  if (shard_of.size() > kMaxShards) return bad_folder(index_path, "names more than 10000 files");
  for (auto& [name, shard] : shard_of) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(directory_ + "/" + name));
    for (const SafetensorsEntry& entry : file.entries()) {
      const auto at = map.find(entry.name);
      if (at == map.end() || at->second != name) {
        return bad_folder(file.path(), "tensor \"" + printable(entry.name) +
                                           "\" is here, but not according to " +
                                           printable(index_path));
      }
    }
    shard = shards_.size();
    shards_.push_back(std::move(file));
  }
  for (const auto& [tensor, file] : map) {
    if (shards_[shard_of[file]].find(tensor) == nullptr) {
      return bad_folder(index_path, "tensor \"" + printable(tensor) + "\" is not in " +
                                        printable(file) + ", where the index puts it");
    }
  }
  return Status();
}

// Fused if the files hold a tensor that only fused files have. What belongs to neither layout is
// left to match_table.
Status HfFolder::choose_layout() {
  if (config_.family->limited_experts) {
    layout_ = config_.mxfp4 ? ExpertLayout::kMxfp4 : ExpertLayout::kFused;
    return Status();
  }
  layout_ = usual_layout(*config_.family);
  std::unordered_set<std::string> names[2];
  for (const bool fused : {false, true}) {
    for (StoredTensor& stored : stored_tensors(table_, fused ? ExpertLayout::kFused : layout_)) {
      names[fused].insert(std::move(stored.name));
    }
  }
  const std::string* found[2] = {nullptr, nullptr};  // a tensor of one layout alone
  for (const SafetensorsFile& shard : shards_) {
    for (const SafetensorsEntry& entry : shard.entries()) {
      const bool of[2] = {names[0].contains(entry.name), names[1].contains(entry.name)};
      if (of[0] != of[1]) found[of[1]] = &entry.name;
    }
  }
  if (found[0] != nullptr && found[1] != nullptr) {
    return bad_folder(directory_, "mixes two layouts of experts: \"" + printable(*found[0]) +
                                      "\" and \"" + printable(*found[1]) +
                                      "\"; convert it to one of them");
  }
  if (found[1] != nullptr) layout_ = ExpertLayout::kFused;
  return Status();
}

Status HfFolder::match_table() {
  const std::vector<StoredTensor> stored = stored_tensors(table_, layout_);
  struct Wanted {
    std::string name;
    size_t tensor = 0;  // index into `stored`
    bool scales = false, found = false;
    Where where = {};
  };
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < stored.size(); ++i) {
    wanted.push_back({stored[i].name, i});
    if (!stored[i].scales.empty()) wanted.push_back({stored[i].scales, i, true});
  }
  std::unordered_map<std::string, size_t> index;
  for (size_t w = 0; w < wanted.size(); ++w) index.emplace(wanted[w].name, w);
  places_.resize(table_.tensors.size());
  dtypes_.resize(table_.tensors.size());
  std::vector<Other> others;
  for (size_t s = 0; s < shards_.size(); ++s) {
    for (size_t e = 0; e < shards_[s].entries().size(); ++e) {
      const SafetensorsEntry& entry = shards_[s].entries()[e];
      const auto at = index.find(entry.name);
      if (at == index.end()) {
        others.push_back({s, &entry});
        continue;
      }
      Wanted& one = wanted[at->second];
      RETURN_IF_ERROR(match_tensor(stored[one.tensor], one.scales, {s, e}));
      one.found = true;
      one.where = {s, e};
    }
  }
  const auto is_missing = [](const Wanted& one) { return !one.found; };
  const auto missing = std::find_if(wanted.begin(), wanted.end(), is_missing);
  if (missing != wanted.end()) {
    return several(directory_, std::count_if(wanted.begin(), wanted.end(), is_missing),
                   missing->name, "is missing, but config.json asks for it");
  }
  for (size_t w = 0; w < wanted.size(); ++w) {
    if (wanted[w].scales) continue;
    const StoredTensor& tensor = stored[wanted[w].tensor];
    place_parts(tensor, wanted[w].where, tensor.scales.empty() ? Where() : wanted[w + 1].where);
  }
  if (config_.fp8()) RETURN_IF_ERROR(match_fp8(others));
  return check_others(others);
}

// "model.layers.N." of a layer behind the last one.
bool HfFolder::is_of_next_token_layer(const std::string& name) const {
  for (int64_t l = 0; l < config_.next_token_layers; ++l) {
    if (name.starts_with(strf("model.layers.%lld.", (long long)(config_.num_layers + l)))) {
      return true;
    }
  }
  return false;
}

Status HfFolder::keep(const Other& other) {
  const SafetensorsEntry& entry = *other.entry;
  const auto dtype = stored_dtype_of(entry.dtype);
  if (!dtype) {
    return several(shards_[other.shard].path(), 1, entry.name,
                   strf("is %s; only F32, BF16 and F16 are read", printable(entry.dtype).c_str()));
  }
  kept_.push_back({entry.name, *dtype, entry.shape, entry.bytes, other.shard});
  return Status();
}

Status HfFolder::read_kept(const KeptTensor& kept, int64_t first, void* out, int64_t bytes) const {
  const SafetensorsFile& file = shards_[kept.shard];
  return file.read(*file.find(kept.name), first, out, bytes);
}

Status HfFolder::check_others(const std::vector<Other>& others) {
  const Other* first = nullptr;
  size_t count = 0;
  for (const Other& other : others) {
    if (is_of_next_token_layer(other.entry->name)) {
      if (!config_.fp8()) RETURN_IF_ERROR(keep(other));  // an export is not quantised
      continue;
    }
    ASSIGN_OR_RETURN(const bool redundant, is_redundant(shards_[other.shard], *other.entry));
    if (!redundant && count++ == 0) first = &other;
  }
  if (first == nullptr) return Status();
  return several(shards_[first->shard].path(), count, first->entry->name,
                 "is not part of the model that config.json describes");
}

Result<bool> HfFolder::is_redundant(const SafetensorsFile& file,
                                    const SafetensorsEntry& entry) const {
  if (entry.name.ends_with(".rotary_emb.inv_freq")) return true;
  if (!config_.tie_word_embeddings || entry.name != "lm_head.weight") return false;
  const auto embedding = table_.records[static_cast<size_t>(table_.embedding())].first_tensor;
  const Place& place = places_[static_cast<size_t>(embedding)];
  const SafetensorsEntry& other = entry_at(place.where);
  if (entry.shape != other.shape || entry.dtype != other.dtype) return false;
  std::string mine, others;
  for (int64_t at = 0; at < entry.bytes; at += kReadElements) {
    const int64_t bytes = std::min(kReadElements, entry.bytes - at);
    mine.resize(static_cast<size_t>(bytes));
    others.resize(static_cast<size_t>(bytes));
    RETURN_IF_ERROR(file.read(entry, at, mine.data(), bytes));
    RETURN_IF_ERROR(shards_[place.where.shard].read(other, at, others.data(), bytes));
    if (mine != others) return false;
  }
  return true;
}

// Checks shape and dtype, and notes the dtype of every part. scales: of the tensor's scales.
Status HfFolder::match_tensor(const StoredTensor& stored, bool scales, Where where) {
  const SafetensorsEntry& entry = entry_at(where);
  const std::string& path = shards_[where.shard].path();
  std::vector<int64_t> shape = stored.shape;
  if (scales) shape.pop_back();
  if (entry.shape != shape) {
    return several(path, 1, entry.name,
                   strf("has shape %s, but config.json makes it %s",
                        shape_text(entry.shape).c_str(), shape_text(shape).c_str()));
  }
  const bool mxfp4 = !stored.scales.empty();
  if (mxfp4 && entry.dtype != "U8") {
    return several(path, 1, entry.name,
                   strf("is %s; MXFP4 is read as U8", printable(entry.dtype).c_str()));
  }
  const bool fp8 = config_.fp8() && stored.in_order() && entry.dtype == kFp8Name;
  const auto dtype = mxfp4 || fp8 ? StoredDType::kBF16 : stored_dtype_of(entry.dtype);
  if (!dtype) {
    return several(path, 1, entry.name,
                   strf("is %s; only F32, BF16 and F16 are read", printable(entry.dtype).c_str()));
  }
  for (const int64_t part : stored.parts) dtypes_[static_cast<size_t>(part)] = *dtype;
  return Status();
}

void HfFolder::place_parts(const StoredTensor& stored, Where where, Where scales) {
  int64_t first = 0;
  for (size_t p = 0; p < stored.parts.size(); ++p) {
    const auto part = static_cast<size_t>(stored.parts[p]);
    const TensorSpec& tensor = table_.tensors[part];
    Place& place = places_[part];
    const bool mxfp4 = !stored.scales.empty();  // read by whole lines, since scales are of many
    const bool fp8 = config_.fp8() && entry_at(where).dtype == kFp8Name;
    place = {where, first, stored.in_order() && !mxfp4, {}, mxfp4, fp8, scales};
    if (!place.in_order) place.order = block_order(stored, p, tensor);
    // A block begins behind the last part of the one before.
    const bool ends = static_cast<int64_t>(p) % stored.turns == stored.turns - 1;
    if (ends) first += stored.turns * tensor.stored_elements();
  }
}

Status HfFolder::read_values(int64_t tensor, int64_t first, int64_t count, float* out) const {
  const TensorSpec& spec = table_.tensors[static_cast<size_t>(tensor)];
  CHECK(first >= 0 && count >= 0 && first + count <= spec.num_elements());
  if (!spec.is_correction()) return read_stored(tensor, first, count, out);
  const int64_t experts = spec.stored_elements();
  std::vector<float> whole(static_cast<size_t>(experts)), parts;
  RETURN_IF_ERROR(read_stored(tensor, 0, experts, whole.data()));
  parts.resize(static_cast<size_t>(spec.num_elements()));
  split_correction(whole.data(), experts, parts.data());
  std::copy_n(parts.begin() + first, count, out);
  return Status();
}

Status HfFolder::match_fp8(std::vector<Other>& others) {
  std::unordered_map<std::string, Where> scales;
  std::vector<Other> rest;
  for (const Other& other : others) {
    const SafetensorsFile& shard = shards_[other.shard];
    if (other.entry->name.ends_with(kFp8Scales) && !is_of_next_token_layer(other.entry->name)) {
      scales[other.entry->name] = {other.shard,
                                   static_cast<size_t>(other.entry - shard.entries().data())};
    } else {
      rest.push_back(other);
    }
  }
  others = std::move(rest);
  for (size_t t = 0; t < places_.size(); ++t) {
    Place& place = places_[t];
    if (!place.fp8) continue;
    const TensorSpec& spec = table_.tensors[t];
    const std::string& name = entry_at(place.where).name;
    const std::string& path = shards_[place.where.shard].path();
    const auto found = scales.find(name + kFp8Scales);
    if (spec.shape.size() != 2 || found == scales.end()) {
      return several(path, 1, name, strf("is fp8 and has no \"%s\"", kFp8Scales));
    }
    const SafetensorsEntry& entry = entry_at(found->second);
    const std::vector<int64_t> shape = {div_ceil(spec.shape[0], config_.fp8_rows),
                                        div_ceil(spec.shape[1], config_.fp8_columns)};
    if (entry.shape != shape || entry.dtype != "F32") {
      return several(shards_[found->second.shard].path(), 1, entry.name,
                     strf("is %s of shape %s, and must be F32 of %s",
                          printable(entry.dtype).c_str(), shape_text(entry.shape).c_str(),
                          shape_text(shape).c_str()));
    }
    place.scales = found->second;
    scales.erase(found);
  }
  if (scales.empty()) return Status();
  return several(shards_[scales.begin()->second.shard].path(), scales.size(),
                 scales.begin()->first, "has no tensor in fp8");
}

// Whole rows of scales are read for the rows that the elements are of.
Status HfFolder::read_fp8(int64_t tensor, int64_t first, int64_t count, float* out) const {
  const Place& place = places_[static_cast<size_t>(tensor)];
  const int64_t columns = table_.tensors[static_cast<size_t>(tensor)].shape[1];
  const int64_t block = div_ceil(columns, config_.fp8_columns);  // scales of a row of blocks
  std::vector<uint8_t> raw(static_cast<size_t>(count));
  RETURN_IF_ERROR(shards_[place.where.shard].read(entry_at(place.where), first, raw.data(), count));
  std::vector<float> scales(static_cast<size_t>(block));
  int64_t held = -1;  // the row of blocks in `scales`
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = (first + i) / columns, column = (first + i) % columns;
    if (row / config_.fp8_rows != held) {
      held = row / config_.fp8_rows;
      const int64_t bytes = block * int64_t{sizeof(float)};
      RETURN_IF_ERROR(shards_[place.scales.shard].read(entry_at(place.scales), held * bytes,
                                                       scales.data(), bytes));
    }
    const float scale = scales[static_cast<size_t>(column / config_.fp8_columns)];
    out[i] = to_float(bf16_round(fp8_to_float(raw[static_cast<size_t>(i)]) * scale));
  }
  return Status();
}

Status HfFolder::read_entry(int64_t tensor, int64_t first, int64_t count, float* out) const {
  const auto t = static_cast<size_t>(tensor);
  const Place& place = places_[t];
  const SafetensorsFile& file = shards_[place.where.shard];
  const SafetensorsEntry& entry = entry_at(place.where);
  if (place.mxfp4) {
    std::vector<uint8_t> numbers(static_cast<size_t>(count / 2));
    std::vector<uint8_t> scales(static_cast<size_t>(count / kMxfp4Block));
    RETURN_IF_ERROR(file.read(entry, first / 2, numbers.data(), count / 2));
    RETURN_IF_ERROR(shards_[place.scales.shard].read(entry_at(place.scales), first / kMxfp4Block,
                                                     scales.data(), count / kMxfp4Block));
    mxfp4_to_float(numbers.data(), scales.data(), count, out);
  } else if (place.fp8) {
    RETURN_IF_ERROR(read_fp8(tensor, first, count, out));
  } else {
    const int64_t bytes = stored_bytes(dtypes_[t]);
    const auto raw = std::make_unique<std::byte[]>(static_cast<size_t>(count * bytes));
    RETURN_IF_ERROR(file.read(entry, first * bytes, raw.get(), count * bytes));
    stored_to_float(dtypes_[t], raw.get(), count, out);
  }
  const int64_t non_finite = first_non_finite(out, count);
  if (non_finite < 0) return Status();
  return several(file.path(), 1, entry.name,
                 strf("holds a NaN or an infinity at element %lld; the model is damaged or "
                      "diverged, use another one",
                      (long long)(first + non_finite)));
}

Status HfFolder::read_stored(int64_t tensor, int64_t first, int64_t count, float* out) const {
  const Place& place = places_[static_cast<size_t>(tensor)];
  if (!place.in_order) return read_turns(tensor, first, count, out);
  for (int64_t done = 0; done < count; done += kReadElements) {
    const int64_t piece = std::min(kReadElements, count - done);
    RETURN_IF_ERROR(read_entry(tensor, place.first + first + done, piece, out + done));
  }
  return Status();
}

// Reads lines of the tensor's block, its own and the others', and picks its elements from them.
Status HfFolder::read_turns(int64_t tensor, int64_t first, int64_t count, float* out) const {
  const Place& place = places_[static_cast<size_t>(tensor)];
  const BlockOrder& o = place.order;
  const int64_t most = std::min(o.lines(), std::max<int64_t>(1, kReadElements / o.line()));
  std::vector<float> lines(static_cast<size_t>(most * o.line()));
  // Its rows among the first lines, where rows are lines.
  const auto rows_before = [&](int64_t line) { return (line + o.turns - 1 - o.turn) / o.turns; };
  for (int64_t from = 0; from < o.lines(); from += most) {
    const int64_t begin = from * o.line(), taken = std::min(most, o.lines() - from);
    RETURN_IF_ERROR(read_entry(tensor, place.first + begin, taken * o.line(), lines.data()));
    const int64_t row = o.transposed ? 0 : rows_before(from);
    const int64_t row_end = o.transposed ? o.rows : rows_before(from + taken);
    const int64_t column = o.transposed ? from : 0;
    const int64_t column_end = o.transposed ? from + taken : o.columns;
    for (int64_t r = row; r < row_end; ++r) {
      for (int64_t c = column; c < column_end; ++c) {
        const int64_t element = r * o.columns + c - first;
        if (element < 0 || element >= count) continue;
        out[element] = lines[static_cast<size_t>(o.at(r, c) - begin)];
      }
    }
  }
  return Status();
}

Status HfFolder::read_tensor(int64_t tensor, float* out) const {
  return read_values(tensor, 0, table_.tensors[static_cast<size_t>(tensor)].num_elements(), out);
}

}  // namespace pagoda
