// The messages and tools of a row as a chat template gets them.
#pragma once

#include <vector>

#include "data/row.h"
#include "data/template_values.h"

namespace pagoda {

// A dictionary for each turn: its role by our name, its content as one text, and the message's
// other fields but those of training. REQUIRES: `json` is the row that `row` was parsed from.
std::vector<jinja::Value> template_messages(const Row& row, const OrderedJson& json,
                                            const RowFields& fields);
// None where the row has none.
jinja::Value template_tools(const OrderedJson& json, const RowFields& fields);

}  // namespace pagoda
