// Reads the bytes of a data file, in the format that its name tells:
//   NAME.txt    plain text, one document
//   NAME.jsonl  a JSON object a line
//   NAME.json   a JSON array of objects
// each also packed, as NAME.txt.gz or NAME.txt.zst.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/decompress.h"

namespace pagoda {

enum class TextFormat : uint8_t { kPlain, kJsonLines, kJsonArray };

// From the name alone; another name is kBadData.
Result<TextFormat> text_format(const std::string& path);

// Hands the unpacked bytes over in blocks of at most a MiB, without a byte order mark that begins
// them.
Status read_blocks(const std::string& path, const BlockVisitor& visit);

// 32 hex digits that depend on the number and order of the files, on their formats and their bytes,
// not on their folders. Reads them once.
Result<std::string> fingerprint_of_files(const std::vector<std::string>& paths);

}  // namespace pagoda
