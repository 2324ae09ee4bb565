// Rows that are tokens already, as Hugging Face's tools write them:
//   {"input_ids": [...], "labels": [...], "attention_mask": [...]}
// A label is the token at its own place, or -100 where that is not trained; in place of labels
// there may be a mask of 0 and 1 ("completion_mask", or another name by data.fields). Without
// either, all tokens are trained. Tokens whose attention_mask is 0 are padding and left out.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "data/row.h"
#include "model/json_type.h"

namespace pagoda {

struct TokenRow {
  std::vector<uint32_t> tokens;
  std::vector<float> weights;  // 1: trained
  bool is_text = false;        // it has neither labels nor a mask
};

// kBadData, without the place: what is no token of a vocabulary of this size, lists of other
// lengths, a label that is neither its token nor -100 (as shifted labels are), a mask of other
// numbers, no tokens, or more than 2^31.
Result<TokenRow> parse_token_row(const Json& row, const RowFields& fields, int64_t vocab_size);

}  // namespace pagoda
