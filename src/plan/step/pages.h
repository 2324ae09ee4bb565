// The pages of a run: which pages there are, how large they are, and which of them share slots.
//
//   weights(r), state(r)   of record r: durable; two extents of one record on disk
//   gradient(r)            of record r, rounded to the compute dtype; lives until its Adam
//   layer_input(l, b)      (T, d): residual stream entering layer l for microbatch b; l =
//   num_layers
//                          is what the head reads
//   middle(l, b)           (T, d) residual after attention, then (T, k) int32 chosen experts
// In-layer buffers, which hold what all tokens of a step need inside the layer at work:
//   normed(b)              (T, d) rows that router and experts read, then fp32 (T) 1 / rms of each
//                          and (T, E) probabilities
//   sum(b)                 (T, d) fp32: sum over experts, or its gradient with respect to normed
//   dresidual(b)           (T, d) gradient of the residual stream; from the head to the embedding
// Between devices:
//   inbound(d, i)          rows for the experts of device d: (B, d) input, (B, d) output gradient
//                          (backward), (B) fp32 routing weights; B = group_rows()
//   outbound(d, i)         rows that these give: (B, d), (B) fp32 routing weight gradients
//   leaving(d, i)          inbound(d, i) on device 0, before it is sent
//   arriving(d, i)         outbound(d, i) on device 0, after it was received
// A group of n rows has its arrays behind one another without gaps, so that exactly n rows travel.
// These pages stay where they are made: they have slots of their own, and none in host or page
// file.
// Everything but weights and state is scratch: its content ends with the process.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "offload/residency.h"
#include "plan/step/run_shape.h"

namespace pagoda {

enum class PageKind : uint8_t {
  kWeights,
  kState,
  kGradient,
  kActivation,
  kLayerBuffer,
  kInbound,
  kOutbound,
};

// Waves in flight: with several devices a wave's combine is issued behind the next one's dispatch,
// so that devices overlap; with one device it is combined at once.
constexpr int64_t waves_in_flight(int devices) { return devices > 1 ? 2 : 1; }

// A larger table, with what is held for each page beside it, would fill most of a machine's memory.
inline constexpr int64_t kMostPages = int64_t{1} << 21;

struct PageTable {
  // REQUIRES: count(shape) <= kMostPages.
  explicit PageTable(const RunShape& shape);
  static int64_t count(const RunShape& shape);

  struct Page {
    int64_t bytes = 0;
    uint32_t record = 0;
    bool durable = false;
    uint16_t slot_class = 0;
  };
  // A set of pages of one kind and size, which share slots.
  struct Class {
    PageKind kind = PageKind::kWeights;
    int64_t page_bytes = 0;
    int64_t num_pages = 0;
    bool expert = false;  // pages of experts, not of dense records
    int64_t total_bytes() const { return page_bytes * num_pages; }
    bool only_device_0() const {
      return kind == PageKind::kActivation || kind == PageKind::kLayerBuffer;
    }
    bool is_exchange() const { return kind == PageKind::kInbound || kind == PageKind::kOutbound; }
  };

  std::vector<Page> pages;
  std::vector<Class> classes;

  PageId weights(int64_t record) const { return static_cast<PageId>(2 * record); }
  PageId state(int64_t record) const { return static_cast<PageId>(2 * record + 1); }
  PageId gradient(int64_t record) const {
    return static_cast<PageId>(2 * num_records_ + record);
  }
  // The microbatches of one layer are neighbours: layer_input(l, b) = layer_input(l, 0) + b.
  PageId layer_input(int64_t layer, int64_t microbatch) const {
    return static_cast<PageId>(first_activation_ + layer * microbatches_ + microbatch);
  }
  PageId middle(int64_t layer, int64_t microbatch) const {
    return static_cast<PageId>(first_middle_ + layer * microbatches_ + microbatch);
  }
  PageId normed(int64_t microbatch) const { return layer_buffers(0, microbatch); }
  PageId sum(int64_t microbatch) const { return layer_buffers(1, microbatch); }
  PageId dresidual(int64_t microbatch) const { return layer_buffers(2, microbatch); }
  PageId inbound(int64_t device, int64_t i) const {
    return static_cast<PageId>(first_exchange_ + 2 * (i * devices_ + device));
  }
  PageId outbound(int64_t device, int64_t i) const { return inbound(device, i) + 1; }
  // REQUIRES of both: another device than 0.
  PageId leaving(int64_t device, int64_t i) const {
    return static_cast<PageId>(first_leaving_ + 2 * (i * (devices_ - 1) + device - 1));
  }
  PageId arriving(int64_t device, int64_t i) const { return leaving(device, i) + 1; }
  // Pages between devices come last; the others have room in the page file.
  int64_t num_stored() const { return first_exchange_; }
  int exchange_device(PageId page) const;

 private:
  uint16_t class_of(PageKind kind, int64_t bytes, bool expert);
  void add(PageKind kind, int64_t bytes, uint32_t record, bool durable, bool expert);
  void add_scratch(PageKind kind, int64_t bytes, int64_t count);
  PageId layer_buffers(int64_t which, int64_t microbatch) const {
    return static_cast<PageId>(first_layer_buffer_ + which * microbatches_ + microbatch);
  }

  int64_t num_records_, microbatches_, devices_;
  int64_t first_activation_ = 0, first_middle_ = 0, first_layer_buffer_ = 0, first_exchange_ = 0,
          first_leaving_ = 0;
};

}  // namespace pagoda
