#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "model/json.h"

namespace pagoda {

namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100000000;
constexpr size_t kMaxTensors = 1000000;
constexpr size_t kMaxDimensions = 8;
constexpr size_t kMaxNameBytes = 512;

// Bits of one element, or 0 for an unknown name.
int64_t dtype_bits(const std::string& name) {
  static constexpr struct {
    const char* name;
    int64_t bits;
  } kTypes[] = {{"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"I16", 16},
                {"U16", 16},    {"I32", 32},        {"U32", 32},        {"I64", 64},
                {"U64", 64},    {"F16", 16},        {"BF16", 16},       {"F32", 32},
                {"F64", 64},    {"C64", 64},        {"F8_E4M3", 8},     {"F8_E5M2", 8},
                {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},
                {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  for (const auto& type : kTypes) {
    if (name == type.name) return type.bits;
  }
  return 0;
}

Status bad(const std::string& path, const std::string& why) {
  return Status(Exit::kBadData, strf("%s: %s; the file is damaged or not safetensors, get it again",
                                     printable(path).c_str(), why.c_str()));
}

Status bad_tensor(const std::string& path, const std::string& name, const std::string& why) {
  return bad(path, "tensor \"" + printable(name, 120) + "\": " + why);
}

// A JSON number as a non-negative int64, or -1.
int64_t non_negative(const Json& value) {
  if (!value.is_number_unsigned()) return -1;
  const uint64_t n = value.get<uint64_t>();
  return n <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ? static_cast<int64_t>(n)
                                                                         : -1;
}

Status parse_shape(const std::string& path, const std::string& name, const Json& value,
                   std::vector<int64_t>* shape) {
  if (!value.is_array() || value.size() > kMaxDimensions) {
    return bad_tensor(path, name,
                      strf("\"shape\" is not a list of at most %zu sizes", kMaxDimensions));
  }
  for (const Json& dim : value) {
    shape->push_back(non_negative(dim));
    if (shape->back() < 0) return bad_tensor(path, name, "a dimension is not a size");
  }
  return Status();
}

// Data bytes of a shape, or -1 when they overflow or do not fill whole bytes.
int64_t data_bytes(const std::vector<int64_t>& shape, int64_t bits) {
  int64_t total = bits;
  for (int64_t dim : shape) total = checked_mul(total, dim);
  return total < 0 || total % 8 != 0 ? -1 : total / 8;
}

// Entry of one tensor; its offset is still relative to the data.
Result<SafetensorsEntry> parse_entry(const std::string& path, const std::string& name,
                                     const Json& value) {
  if (name.size() > kMaxNameBytes) return bad_tensor(path, name, "name longer than 512 bytes");
  const auto dtype = value.find("dtype"), shape = value.find("shape"),
             offsets = value.find("data_offsets");
  if (!value.is_object() || value.size() != 3 || dtype == value.end() || shape == value.end() ||
      offsets == value.end()) {
    return bad_tensor(path, name, "must have exactly dtype, shape and data_offsets");
  }
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = dtype->is_string() ? dtype->get<std::string>() : "";
  const int64_t bits = dtype_bits(entry.dtype);
  if (bits == 0) {
    return bad_tensor(path, name, "unknown dtype \"" + printable(entry.dtype, 40) + "\"");
  }
  RETURN_IF_ERROR(parse_shape(path, name, *shape, &entry.shape));
  if (!offsets->is_array() || offsets->size() != 2) {
    return bad_tensor(path, name, "\"data_offsets\" is not [begin, end]");
  }
  const int64_t begin = non_negative((*offsets)[0]), end = non_negative((*offsets)[1]);
  if (begin < 0 || end < begin) return bad_tensor(path, name, "\"data_offsets\" run backwards");
  entry.offset = begin;
  entry.bytes = end - begin;
  const int64_t expected = data_bytes(entry.shape, bits);
  if (expected != entry.bytes) {
    return bad_tensor(
        path, name,
        strf("%s of %s does not make the %lld bytes of its data_offsets",
             shape_text(entry.shape).c_str(), entry.dtype.c_str(), (long long)entry.bytes));
  }
  return entry;
}

Status check_metadata(const std::string& path, const Json& metadata) {
  if (!metadata.is_object()) return bad(path, "\"__metadata__\" is not an object");
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return bad(path, "\"__metadata__\" holds something that is not text under \"" +
                           printable(key, 60) + "\"");
    }
  }
  return Status();
}

// Sorts by place in the file and checks that the tensors cover [0, data_bytes) exactly.
Status check_cover(const std::string& path, int64_t data_bytes,
                   std::vector<SafetensorsEntry>* entries) {
  std::sort(entries->begin(), entries->end(), [](const auto& a, const auto& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  int64_t end = 0;
  for (const SafetensorsEntry& entry : *entries) {
    if (entry.offset != end) {
      return bad_tensor(path, entry.name,
                        strf("its data begins at %lld, but the data before ends at %lld",
                             (long long)entry.offset, (long long)end));
    }
    end += entry.bytes;
  }
  if (end == data_bytes) return Status();
  return bad(path, strf("the tensors need %lld bytes of data, the file has %lld", (long long)end,
                        (long long)data_bytes));
}

Result<std::vector<SafetensorsEntry>> parse_header(const std::string& path,
                                                   const std::string& header, int64_t data_bytes) {
  ASSIGN_OR_RETURN(const Json root, parse_json(header, path,
                                               {.max_bytes = kMaxHeaderBytes,
                                                .max_values = int64_t{16} * kMaxTensors}));
  if (root.size() > kMaxTensors) return bad(path, "more than 1000000 tensors");
  std::vector<SafetensorsEntry> entries;
  entries.reserve(root.size());
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(check_metadata(path, value));
      continue;
    }
    ASSIGN_OR_RETURN(SafetensorsEntry entry, parse_entry(path, name, value));
    entries.push_back(std::move(entry));
  }
  RETURN_IF_ERROR(check_cover(path, data_bytes, &entries));
  return entries;
}

Result<std::string> read_header(const InputFile& file) {
  if (file.bytes() < kLengthBytes) return bad(file.path(), "shorter than 8 bytes");
  uint64_t length = 0;
  RETURN_IF_ERROR(file.read(0, &length, kLengthBytes));
  if (length > static_cast<uint64_t>(kMaxHeaderBytes) ||
      static_cast<int64_t>(length) > file.bytes() - kLengthBytes) {
    return bad(file.path(), strf("says its header has %llu bytes, the file has %lld",
                                 (unsigned long long)length, (long long)file.bytes()));
  }
  std::string header(length, '\0');
  RETURN_IF_ERROR(file.read(kLengthBytes, header.data(), static_cast<int64_t>(length)));
  if (!header.starts_with('{')) return bad(file.path(), "the header does not begin with '{'");
  return header;
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += strf("%s%lld", i == 0 ? "" : ", ", (long long)shape[i]);
  }
  return text + ")";
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  ASSIGN_OR_RETURN(InputFile input, InputFile::open(path, Links::kFollow));
  SafetensorsFile file(std::move(input));
  ASSIGN_OR_RETURN(const std::string header, read_header(file.file_));
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(header.size());
  ASSIGN_OR_RETURN(file.entries_, parse_header(path, header, file.file_.bytes() - data_begin));
  file.by_name_.reserve(file.entries_.size());
  for (size_t i = 0; i < file.entries_.size(); ++i) {
    file.entries_[i].offset += data_begin;
    file.by_name_.emplace(file.entries_[i].name, i);
  }
  return file;
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &entries_[at->second];
}

Status SafetensorsFile::read(const SafetensorsEntry& entry, int64_t first, void* out,
                             int64_t bytes) const {
  CHECK(first >= 0 && bytes >= 0 && first <= entry.bytes && bytes <= entry.bytes - first);
  return file_.read(entry.offset + first, out, bytes);
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    const std::vector<Tensor>& tensors) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  int64_t data_end = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t begin = data_end;
    const int64_t bytes = data_bytes(tensor.shape, 8 * stored_bytes(tensor.dtype));
    CHECK(bytes >= 0);
    data_end += bytes;
    const Json entry = {{"dtype", safetensors_name(tensor.dtype)},
                        {"shape", tensor.shape},
                        {"data_offsets", {begin, data_end}}};
    text.append(",").append(Json(tensor.name).dump()).append(":").append(entry.dump());
  }
  text += "}";
  const int64_t data_begin = align_up(kLengthBytes + static_cast<int64_t>(text.size()), kIoAlign);
  CHECK(data_begin - kLengthBytes <= kMaxHeaderBytes, "header of %zu bytes", text.size());
  text.resize(static_cast<size_t>(data_begin - kLengthBytes), ' ');
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  const uint64_t length = text.size();
  RETURN_IF_ERROR(file.append(&length, kLengthBytes));
  RETURN_IF_ERROR(file.append(text.data(), static_cast<int64_t>(text.size())));
  return SafetensorsWriter(std::move(file), data_begin + data_end);
}

Status SafetensorsWriter::append(const void* data, int64_t bytes) {
  CHECK(bytes <= end_bytes_ - file_.bytes(), "more data than announced for %s",
        file_.path().c_str());
  return file_.append(data, bytes);
}

Status SafetensorsWriter::finish() {
  CHECK(file_.bytes() == end_bytes_, "%s lacks %lld bytes", file_.path().c_str(),
        (long long)(end_bytes_ - file_.bytes()));
  return file_.commit();
}

}  // namespace pagoda
