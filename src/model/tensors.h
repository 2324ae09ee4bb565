// The one table of tensors, with their names, their shapes and the records they belong to.
// Allocation, byte counts, checkpoint reading and writing, initialisation and the optimizer all
// walk this table.
//
// A record is the unit of paging: one expert, or a part of one (HiddenParts), or the dense part of
// one layer, or the embedding, or the head. Its tensors lie behind each other, in table order and
// without gaps, in each of its pages:
//   weights   num_elements of the compute dtype       (what devices multiply with)
//   state     fp32 master, m, v: 3 x num_elements     (what the optimizer updates)
//   gradient  num_elements of the compute dtype
//
// A router's correction is an fp32 number for each expert, and near-ties are decided by its last
// bits. So that weights of bf16 lose none of them it lies in its record as three parts, whose sum
// it is and which bf16 holds exactly (split_correction). Nothing trains it: its gradient stays
// zero. The q, k and v projections (or those to latents) are neighbours, as are their biases, and
// as are gate and up and theirs: each group is computed with as one matrix or vector.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "model/model_config.h"

namespace pagoda {

enum class TensorInit : uint8_t { kNormal, kOnes, kZeros };

// What a tensor is for, whatever its family calls it. A layer's kGate, kUp and kDown belong to its
// dense MLP or its shared expert; an expert has its own.
enum class TensorRole : uint8_t {
  kEmbedding,
  kInputNorm,
  kQuery,        // latent attention: of the latent of queries, if they have one
  kLatent,       // of keys' and values' latent, and of the part of keys that is rotated
  kQueryHeads,   // from the latent of queries
  kLatentHeads,  // from the latent of keys and values
  kKey,
  kValue,
  kQueryBias,
  kKeyBias,
  kValueBias,
  kQueryNorm,
  kKeyNorm,
  kConvInput,  // of a convolution's b, c and x
  kConvTaps,
  kSinks,
  kOutput,
  kOutputBias,
  kPostAttentionNorm,
  kRouter,
  kRouterBias,
  kCorrection,
  kSharedGate,
  kGate,
  kUp,
  kDown,
  kGateBias,
  kUpBias,
  kDownBias,
  kFinalNorm,
  kHead
};

struct TensorSpec {
  // Name on the hub, with one tensor for each expert. The parts of an expert have the same names.
  std::string name;
  TensorRole role = TensorRole::kEmbedding;
  std::vector<int64_t> shape;
  int64_t record = 0;          // index into TensorTable::records
  int64_t offset = 0;          // elements from the start of the record
  bool decay = true;           // weight decay applies (not to norms and biases)
  TensorInit init = TensorInit::kNormal;
  int64_t num_elements() const;
  bool is_correction() const { return role == TensorRole::kCorrection; }
  // What files have: a correction's three parts are one there.
  std::vector<int64_t> stored_shape() const;
  int64_t stored_elements() const;
};

// The parts (3, n) of corrections (n), and back. Exact for 0 and magnitudes from 2^-100 up to the
// largest; smaller ones lose bits below 2^-126.
void split_correction(const float* correction, int64_t n, float* parts);
void join_correction(const float* parts, int64_t n, float* correction);

struct RecordSpec {
  RecordKind kind = RecordKind::kExpert;
  int64_t layer = -1;   // kLayer, kExpert
  int64_t expert = -1;  // kExpert; its place, where experts have parts (HiddenParts)
  int64_t first_tensor = 0, num_tensors = 0;
  int64_t num_elements = 0;
  int64_t parts = 1;         // of an expert
  std::string name() const;  // "layer 3, expert 17", or "layer 3, expert 17, part 1"
};

// How many roles there are; a record has at most one tensor of each.
inline constexpr int64_t kTensorRoles = static_cast<int64_t>(TensorRole::kHead) + 1;

struct TensorTable {
  std::vector<TensorSpec> tensors;
  std::vector<RecordSpec> records;  // in the order of model_records()
  const FamilySpec* family = nullptr;

  static TensorTable make(const ModelConfig& config);

  int64_t embedding() const { return 0; }
  int64_t head() const { return static_cast<int64_t>(records.size()) - 1; }
  int64_t layer(int64_t layer) const { return layer_record_[layer]; }
  // REQUIRES: a MoE layer. expert: the place, where experts have parts.
  int64_t expert(int64_t layer, int64_t expert) const { return layer_record_[layer] + 1 + expert; }
  // The tensor of this role in a record, or -1.
  int64_t find(int64_t record, TensorRole role) const;
  // Its offset in elements inside the record, or -1.
  int64_t offset(int64_t record, TensorRole role) const;

  int64_t total_parameters() const;
  // The total without the experts that a token does not visit.
  int64_t active_parameters(const ModelConfig& config) const;

 private:
  std::vector<int64_t> layer_record_;
};

// How a folder's files hold experts: as tensors of their own, or stacked into two tensors a layer
// (and their biases into two more) with the names that Transformers has for them or with the
// family's own, or stacked as MXFP4 (OCP Microscaling Formats 1.0).
enum class ExpertLayout : uint8_t { kPerExpert, kFused, kStacked, kMxfp4 };

// What a folder has that Pagoda writes, unless one was read that has another. Others of the family
// may be kFused, too, or kMxfp4 where experts are limited.
ExpertLayout usual_layout(const FamilySpec& family);

// A tensor of a file. It holds the table's tensors `parts` behind each other. Only fused experts
// have more than one part: gate and up of expert 0, of expert 1, ...; and down of expert 0, 1, ...
// Parts may also take turns: then a block of the file holds the matrices of `turns` parts, of equal
// shape, as one matrix in which row r of part p is row r * turns + p; and it may be transposed.
struct StoredTensor {
  std::string name;
  std::vector<int64_t> shape = {};
  std::vector<int64_t> parts = {};
  int64_t turns = 1;
  bool transposed = false;
  // The MXFP4 scales of the numbers that are in `name`, two in a byte; "": it is no MXFP4.
  std::string scales = {};

  bool in_order() const { return turns == 1 && !transposed; }
};

// Where the elements of a part lie in its block: `columns` are 1 for a vector.
struct BlockOrder {
  int64_t rows = 0, columns = 1, turns = 1, turn = 0;
  bool transposed = false;

  // The file's order: lines of `line` elements.
  int64_t lines() const { return transposed ? columns : rows * turns; }
  int64_t line() const { return transposed ? rows * turns : columns; }
  int64_t at(int64_t row, int64_t column) const {
    const int64_t turned = row * turns + turn;
    return transposed ? column * rows * turns + turned : turned * columns + column;
  }
};
BlockOrder block_order(const StoredTensor& stored, size_t part, const TensorSpec& tensor);

// An MXFP4 scale is of as many numbers.
inline constexpr int64_t kMxfp4Block = 32;

// Every tensor of a folder in this layout, in table order.
std::vector<StoredTensor> stored_tensors(const TensorTable& table, ExpertLayout layout);

}  // namespace pagoda
