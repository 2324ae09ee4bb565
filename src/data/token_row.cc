#include "data/token_row.h"

#include "base/log.h"
#include "model/json.h"

namespace pagoda {
namespace {

constexpr int64_t kNotTrained = -100;

Status bad_row(const std::string& why) { return Status(Exit::kBadData, why); }

// A list of whole numbers; nullptr if the row has none of this name.
Result<const Json*> list_of(const Json& row, const std::string& name) {
  const auto found = row.is_object() ? row.find(name) : row.end();
  if (found == row.end() || found->is_null()) return nullptr;
  if (!found->is_array()) return bad_row("\"" + printable(name, 60) + "\" is no list");
  for (size_t i = 0; i < found->size(); ++i) {
    const Json& number = (*found)[i];
    if (number.is_number_integer() || number.is_boolean()) continue;
    return bad_row(strf("\"%s\" %zu is no whole number", printable(name, 60).c_str(), i));
  }
  return &*found;
}

int64_t number_at(const Json& list, size_t i) {
  return list[i].is_boolean() ? list[i].get<bool>() : list[i].get<int64_t>();
}

// The row's list of this name, if it has one, as long as the tokens.
Result<const Json*> list_beside(const Json& row, const std::string& name, size_t tokens) {
  ASSIGN_OR_RETURN(const Json* list, list_of(row, name));
  if (list == nullptr || list->size() == tokens) return list;
  return bad_row(strf("\"%s\" has %zu numbers, and the row %zu tokens", printable(name, 60).c_str(),
                      list->size(), tokens));
}

Result<bool> is_set(const Json& mask, size_t i, const std::string& name) {
  const int64_t value = number_at(mask, i);
  if (value == 0 || value == 1) return value == 1;
  return bad_row(
      strf("\"%s\" %zu is %lld and not 0 or 1", printable(name, 60).c_str(), i, (long long)value));
}

Result<bool> is_trained(const Json& labels, size_t i, uint32_t token) {
  const int64_t label = number_at(labels, i);
  if (label == kNotTrained || label == int64_t{token}) return label != kNotTrained;
  return bad_row(
      strf("label %zu is %lld and its token %u: a label is its own token or -100; "
           "shifted labels are not read",
           i, (long long)label, token));
}

}  // namespace

Result<TokenRow> parse_token_row(const Json& row, const RowFields& fields, int64_t vocab_size) {
  const std::string &ids_name = fields[RowField::kInputIds], &mask_name = fields[RowField::kMask];
  const std::string& attention_name = fields[RowField::kAttentionMask];
  ASSIGN_OR_RETURN(const Json* ids, list_of(row, ids_name));
  if (ids == nullptr || ids->empty()) {
    return bad_row("has no tokens in \"" + printable(ids_name, 60) + "\"");
  }
  const size_t n = ids->size();
  ASSIGN_OR_RETURN(const Json* labels, list_beside(row, fields[RowField::kLabels], n));
  ASSIGN_OR_RETURN(const Json* mask, list_beside(row, mask_name, n));
  ASSIGN_OR_RETURN(const Json* attention, list_beside(row, attention_name, n));
  if (labels != nullptr && mask != nullptr) {
    return bad_row("has labels and a mask; keep one");
  }
  TokenRow tokens;
  tokens.is_text = labels == nullptr && mask == nullptr;
  for (size_t i = 0; i < n; ++i) {
    const int64_t id = number_at(*ids, i);
    if (id < 0 || id >= vocab_size) {
      return bad_row(strf("token %zu is %lld, and the tokenizer has tokens from 0 to %lld", i,
                          (long long)id, (long long)vocab_size - 1));
    }
    if (attention != nullptr) {
      ASSIGN_OR_RETURN(const bool seen, is_set(*attention, i, attention_name));
      if (!seen) continue;
    }
    bool trained = true;
    if (mask != nullptr) {
      ASSIGN_OR_RETURN(trained, is_set(*mask, i, mask_name));
    } else if (labels != nullptr) {
      ASSIGN_OR_RETURN(trained, is_trained(*labels, i, static_cast<uint32_t>(id)));
    }
    tokens.tokens.push_back(static_cast<uint32_t>(id));
    tokens.weights.push_back(trained ? 1.0f : 0.0f);
  }
  if (tokens.tokens.empty()) return bad_row("is nothing but padding");
  return tokens;
}

}  // namespace pagoda
