// The bytes that one MoE layer, one stage and one step send if experts are divided among the EP
// devices of a group: Piper, section III-B, with its slips corrected. Tokens are assumed to choose
// all experts equally often, so that (EP - 1) / EP of a device's rows leave it. Values are two
// bytes. Pure; every function is O(1).
//
// With sequences by rank (kRank) a device has b s k rows of 2 d bytes; by group (kGroup) it has an
// EP-th of them. kPaper gives the printed formulas, in which a device also sends its own rows; its
// totals are those of kRank.
#pragma once

#include "base/status.h"
#include "plan/machine/model_cost.h"
#include "plan/mesh/cluster.h"
#include "plan/mesh/stage_memory.h"

namespace pagoda {

// Bytes of one direction (dispatch or combine) of one layer and microbatch.
struct ExchangeTraffic {
  double pair_bytes = 0;   // from one device to one other
  double sent_bytes = 0;   // by one device: (EP - 1) pairs (kPaper: EP)
  double group_bytes = 0;  // by all EP devices: 2 (EP - 1) b s k d with kRank and kPaper
};

// kUsage: sizes that are not positive, the errors of check_batch.
Result<ExchangeTraffic> exchange_traffic(int64_t hidden_size, int64_t experts_per_token,
                                     const PipelineBatch& batch, const Mesh& mesh);

// The bytes of one microbatch from a device of a stage to its counterpart in the next one: 2 b s d
// (over EP with kGroup). All devices of a stage send EP times that (III-B2).
Result<double> stage_send_bytes(int64_t hidden_size, const PipelineBatch& batch, const Mesh& mesh);

}  // namespace pagoda
