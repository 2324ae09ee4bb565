// The two files of a checkpoint, as text and bytes.
//
//   pages.bin   PageVersion of every durable page, store by store, 20 bytes each, little endian:
//               u32 page, u32 extent, u64 generation, u32 checksum
//   MANIFEST    JSON, one line; then a line "xxh3 " + 32 hex digits over it
//
// A checksum finds accidents only, since whoever makes a manifest can make its checksum too. So
// every number is checked against a run's limits before anything is computed from it.
#pragma once

#include <string>

#include "checkpoint/run_checkpoint.h"

namespace pagoda {

// `run`: the run's folder. Paths inside it are written without it, since it may move.
CheckpointFiles encode_checkpoint(const RunCheckpoint& checkpoint, const std::string& run);

// kIoError, naming the file in `folder`, if one is damaged or has values that no run writes;
// kMismatch if another version wrote it.
Result<RunCheckpoint> decode_checkpoint(const CheckpointFiles& files, int64_t step,
                                        const std::string& folder, const std::string& run);

// A rank's store as text, for the rank that writes the manifest. Decoding returns kIoError for what
// no rank writes.
std::string encode_store(const CheckpointStore& store);
Result<CheckpointStore> decode_store(const std::string& text);

}  // namespace pagoda
