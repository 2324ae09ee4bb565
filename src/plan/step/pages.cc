#include "plan/step/pages.h"

namespace pagoda {

PageTable::PageTable(const RunShape& shape)
    : num_records_(static_cast<int64_t>(shape.records.size())),
      microbatches_(shape.microbatches),
      devices_(shape.devices) {
  for (int64_t r = 0; r < num_records_; ++r) {
    const RecordShape& record = shape.records[r];
    const auto id = static_cast<uint32_t>(r);
    const bool expert = record.expert >= 0;
    add(PageKind::kWeights, record.num_elements * shape.dtype_bytes, id, true, expert);
    add(PageKind::kState, shape.training ? record.state_bytes : kIoAlign, id, shape.training,
        expert);
  }
  for (int64_t r = 0; r < num_records_; ++r) {
    const RecordShape& record = shape.records[r];
    add(PageKind::kGradient, shape.training ? record.num_elements * shape.dtype_bytes : kIoAlign,
        static_cast<uint32_t>(r), false, record.expert >= 0);
  }
  const int64_t t = shape.microbatch_tokens, d = shape.hidden_size;
  const int64_t rows = t * d * shape.dtype_bytes;
  // Inputs and middles share slots, so they share a size.
  const int64_t activation = rows + t * shape.experts_per_token * 4;
  first_activation_ = static_cast<int64_t>(pages.size());
  add_scratch(PageKind::kActivation, activation, (shape.num_layers + 1) * microbatches_);
  first_middle_ = static_cast<int64_t>(pages.size());
  add_scratch(PageKind::kActivation, activation, shape.num_layers * microbatches_);
  first_layer_buffer_ = static_cast<int64_t>(pages.size());
  const int64_t probabilities = shape.num_experts * shape.ep_degree;
  add_scratch(PageKind::kLayerBuffer, rows + t * (1 + probabilities) * 4, microbatches_);
  add_scratch(PageKind::kLayerBuffer, t * d * 4, microbatches_);
  add_scratch(PageKind::kLayerBuffer, shape.training ? rows : kIoAlign, microbatches_);
  first_exchange_ = static_cast<int64_t>(pages.size());
  const int64_t waves = waves_in_flight(shape.devices), rows_of_group = shape.group_rows();
  const auto add_pairs = [&](int64_t pairs) {
    for (int64_t i = 0; i < pairs; ++i) {
      add_scratch(PageKind::kInbound, rows_of_group * (2 * d * shape.dtype_bytes + 4), 1);
      add_scratch(PageKind::kOutbound, rows_of_group * (d * shape.dtype_bytes + 4), 1);
    }
  };
  add_pairs(waves * shape.devices);
  first_leaving_ = static_cast<int64_t>(pages.size());
  add_pairs(waves * (shape.devices - 1));
  CHECK(static_cast<int64_t>(pages.size()) == count(shape), "%zu pages", pages.size());
}

int64_t PageTable::count(const RunShape& shape) {
  const int64_t of_microbatch = (shape.num_layers + 1) + shape.num_layers + 3;
  return 3 * static_cast<int64_t>(shape.records.size()) + shape.microbatches * of_microbatch +
         2 * waves_in_flight(shape.devices) * (2 * shape.devices - 1);
}

void PageTable::add_scratch(PageKind kind, int64_t bytes, int64_t count) {
  const bool exchange = kind == PageKind::kInbound || kind == PageKind::kOutbound;
  for (int64_t i = 0; i < count; ++i) {
    add(kind, bytes, static_cast<uint32_t>(num_records_), false, exchange);
  }
}

int PageTable::exchange_device(PageId page) const {
  CHECK(page >= first_exchange_, "page %u is not between devices", page);
  if (page >= first_leaving_) return 0;
  return static_cast<int>((page - first_exchange_) / 2 % devices_);
}

uint16_t PageTable::class_of(PageKind kind, int64_t bytes, bool expert) {
  for (size_t c = 0; c < classes.size(); ++c) {
    if (classes[c].kind == kind && classes[c].page_bytes == bytes && classes[c].expert == expert) {
      return static_cast<uint16_t>(c);
    }
  }
  classes.push_back({kind, bytes, 0, expert});
  return static_cast<uint16_t>(classes.size() - 1);
}

void PageTable::add(PageKind kind, int64_t bytes, uint32_t record, bool durable, bool expert) {
  const int64_t page_bytes = align_up(bytes, kIoAlign);
  const uint16_t c = class_of(kind, page_bytes, expert);
  ++classes[c].num_pages;
  pages.push_back({page_bytes, record, durable, c});
}

}  // namespace pagoda
