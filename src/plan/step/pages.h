// The pages of a run: which pages there are, how large they are, and which of them share slots.
//
//   weights(r), state(r)   of record r: durable at its home; two extents of one record on disk
//   gradient(r)            of record r, rounded to the compute dtype; lives until its Adam
//                          state and gradient end with the last element that trains; of a record
//                          without any, no rank uses them
//   layer_input(l, b)      (T, d): residual stream entering layer l for microbatch b; what the head
//                          reads is that of l = num_layers
//   middle(l, b)           (T, d) residual after attention, then (T, k) int32 chosen experts
//   leaving_input(l, b)    (T, d) on the devices of the stage below: layer_input(l, b) before it is
//                          sent, where the layer begins a stage's work
// In-layer buffers, which hold what all tokens of a step need inside the layer at work; each stage
// s has its own:
//   normed(s, b)           (T, d) rows that router and experts read, then fp32 (T) 1 / rms of each
//                          and (T, E) probabilities
//   sum(s, b)              (T, d) fp32: sum over experts, or its gradient with respect to normed
//   dresidual(s, b)        (T, d) gradient of the residual stream; from the head to the embedding
// Of a wave's group, B = group_rows(); s is the device that computes it, a another that attends to
// tokens of it, whose rows in the group are a parcel (plan/step/expert_blocks.h):
//   inbound(s, i)          rows for the experts of s: (B, d) input, (B, d) output gradient
//                          (backward), (B) fp32 routing weights; those that are read in place
//                          (RunShape::in_place) are left out
//   outbound(s, i)         rows that these give: (B, d), (B) fp32 routing weight gradients
//   leaving(a, s, i)       on a: its parcel of inbound(s, i), before it is sent
//   landing(a, s, i)       on s: the same, before its rows are placed among others'
//   returning(a, s, i)     on s: a's parcel of outbound(s, i), before it is sent
//   arriving(a, s, i)      on a: the same, after it was received
// Rows that stay on s from the forward to the backward (RunShape::kept_rows), of a wave, which take
// the place of inbound in the forward; in the backward inbound then has gradients and weights only:
//   kept_rows(s, w)        (B, d) input
// By HALO (plan/rounds/exchange_order.h), where parcels go from a device d to several of another
// node n as one message; there: those on their way to the experts, or else back:
//   gathered(w, d, n, i)   on d: what it sends to the devices of n, before it is sent
//   passing(w, d, n, i)    on d's counterpart in n: the same, before it is passed on
//   guest(d, i)            on d, which attends: weights of an expert whose home is another rank
//                          (plan/step/expert_seats.h); the experts of an action take them by turns,
//                          or those of RunShape::guest_layers have one each, guest_of(d, r)
// A group of n rows has its arrays behind one another without gaps, so that exactly n rows travel.
// Sums of dense gradients (plan/sums/sum_plan.h), in training:
//   gradient_sum(d, i)     fp32 elements of the largest dense record. A record's begin at 0, but
//   for
//                          the embedding's, which have the place of the head's table: the final
//                          norm's d elements stand before them
//   whole_sum(r)           of the embedding or the head, where RunShape::whole_sum_device() has one
// Where a layer's backward goes by chunks (RunShape::rounds), the sums of several records go on
// side by side:
//   layer_sum(d, l, i)     fp32 elements of the largest layer's dense record; neighbouring layers
//                          have pages of their own if shared experts are summed ahead of the rest,
//                          and all layers of a stage if it works chunk by chunk
// Where these go by chunks, or the sum of an expert by shards (SumShape::expert_shards):
//   expert_sum(d, i)       fp32 elements of an expert, on each device that computes it; all layers
//                          share them, but not in a stage that works chunk by chunk. By chunks each
//                          expert has its own, first_expert_sum(r, c) in copy c and those behind it
// Exchange pages and sums stay on the device that makes them: they have slots of their own, and
// none in host or page file. Everything but weights and state is scratch: its content ends with the
// process.
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
  kGradientSum,
  kExpertSum,
  kGuestWeights,
  kKeptRows,
};

// How many waves have pages for their rows. On one device a wave is combined at once.
inline int64_t waves_in_flight(const RunShape& shape) {
  return shape.devices > 1 ? shape.waves_in_flight : 1;
}

// A larger table, with what is held for each page beside it, would fill most of a machine's memory.
inline constexpr int64_t kMostPages = int64_t{1} << 21;

// The ways of rows that go through experts on another device.
enum class RowsWay : uint8_t { kToExperts, kBack };

// All ranks have the same pages. What is said of a page file is said of that of RunShape::rank.
struct PageTable {
  // REQUIRES: count(shape) <= kMostPages.
  explicit PageTable(const RunShape& shape);
  static int64_t count(const RunShape& shape);
  // Sums of dense gradients that each device has room for: what the largest of them needs.
  static int64_t sum_pages(const RunShape& shape);
  // Weights of other ranks' experts that a device of the rank has room for if it attends: those of
  // RunShape::guest_layers, or of the waves in flight.
  static int64_t guest_pages(const RunShape& shape, int rank);
  // The most sums of an expert at a time; not by chunks: of a device's experts.
  static int64_t expert_sum_pages(const RunShape& shape);
  // [device] the actions of experts in a pass whose rows stay there.
  static std::vector<int64_t> kept_actions(const RunShape& shape);

  struct Page {
    int64_t bytes = 0;
    uint32_t record = 0;
    bool durable = false;  // the rank's page file keeps its content: of records at home there
    uint16_t slot_class = 0;
    int16_t device = -1;  // the only one that uses it, if it is a microbatch's or stays
  };
  // A set of pages of one kind and size, which share slots.
  struct Class {
    PageKind kind = PageKind::kWeights;
    int64_t page_bytes = 0;
    int64_t num_pages = 0;
    bool expert = false;  // pages of experts, not of dense records
    int64_t total_bytes() const { return page_bytes * num_pages; }
    // Each of its pages is of one microbatch, and so for the device that attends to it.
    bool of_microbatches() const {
      return kind == PageKind::kActivation || kind == PageKind::kLayerBuffer;
    }
    // Its pages stay on the device that makes them.
    bool stays() const { return kind >= PageKind::kInbound; }
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
  // REQUIRES: the layer below leaves its stage.
  PageId leaving_input(int64_t layer, int64_t microbatch) const {
    return static_cast<PageId>(first_leaving_ +
                               boundary_[static_cast<size_t>(layer)] * microbatches_ + microbatch);
  }
  PageId normed(int stage, int64_t b) const { return layer_buffer({stage, 0, b}); }
  PageId sum(int stage, int64_t b) const { return layer_buffer({stage, 1, b}); }
  PageId dresidual(int stage, int64_t b) const { return layer_buffer({stage, 2, b}); }
  // Tell which of these an in-layer buffer is.
  bool is_normed(PageId page) const { return buffer_set(page) == 0; }
  bool is_sum(PageId page) const { return buffer_set(page) == 1; }
  bool is_dresidual(PageId page) const { return buffer_set(page) == 2; }
  PageId inbound(int64_t device, int64_t i) const {
    return static_cast<PageId>(first_exchange_ + 2 * (i * devices_ + device));
  }
  PageId outbound(int64_t device, int64_t i) const { return inbound(device, i) + 1; }
  // A wave of a chunk's action of experts.
  struct ChunkWave {
    int64_t layer = 0, chunk = 0, wave = 0;
  };
  // Whether the rows that come to the device for the wave stay until their backward.
  bool keeps_rows(int64_t device, const ChunkWave& of) const {
    return of.wave < kept_waves_ && kept_place(device, of.layer) >= 0;
  }
  // REQUIRES: keeps_rows(device, of).
  PageId kept_rows(int64_t device, const ChunkWave& of) const {
    return static_cast<PageId>(first_kept_ + kept_place(device, of.layer) + of.chunk * kept_waves_ +
                               of.wave);
  }
  // REQUIRES: from attends, and is not `seat`.
  PageId leaving(int64_t from, int64_t seat, int64_t i) const { return parcel(from, seat, i); }
  PageId arriving(int64_t from, int64_t seat, int64_t i) const { return parcel(from, seat, i) + 1; }
  // REQUIRES also: several devices attend, or groups have padding; else whole groups travel.
  PageId landing(int64_t from, int64_t seat, int64_t i) const { return parcel(from, seat, i) + 2; }
  PageId returning(int64_t from, int64_t seat, int64_t i) const {
    return parcel(from, seat, i) + 3;
  }
  // REQUIRES: exchange by HALO, of the stage of both; kToExperts: from attends; kBack: some device
  // of the node does.
  PageId gathered(RowsWay way, int64_t from, int64_t node, int64_t i) const {
    const auto pair = static_cast<size_t>((static_cast<int64_t>(way) * devices_ + from) * nodes_);
    const int64_t message = messages_[pair + static_cast<size_t>(node)];
    return static_cast<PageId>(first_message_ + 2 * (i * num_messages_ + message));
  }
  PageId passing(RowsWay way, int64_t from, int64_t node, int64_t i) const {
    return gathered(way, from, node, i) + 1;
  }
  // Whether it is one of the latter two.
  bool is_message(PageId page) const { return page >= first_message_ && page < first_guest_; }
  // REQUIRES: the device attends, i < guest_pages(shape, its rank).
  PageId guest(int64_t device, int64_t i) const {
    return static_cast<PageId>(first_guest_ + guest_place_[static_cast<size_t>(device)] + i);
  }
  // REQUIRES: the device attends, the record is an expert at home on another rank, and
  // RunShape::guest_layers is above 0.
  PageId guest_of(int64_t device, int64_t record) const {
    return guest(device, guest_of_[static_cast<size_t>(device)][static_cast<size_t>(record)]);
  }
  // REQUIRES: the device attends; by chunks, in the stage of the embedding or of the head.
  PageId gradient_sum(int64_t device, int64_t i) const {
    return static_cast<PageId>(first_sum_ + sum_place_[static_cast<size_t>(device)] + i);
  }
  // REQUIRES: training by chunks.
  PageId layer_sum(int64_t device, int64_t layer, int64_t i) const {
    const int64_t set = layer_set_[static_cast<size_t>(layer)];
    return static_cast<PageId>(first_layer_sum_ + layer_sum_place_[static_cast<size_t>(device)] +
                               set * sums_of_device_ + i);
  }
  // REQUIRES: shape.pages_expert_sums().
  PageId expert_sum(int64_t device, int64_t i) const {
    return static_cast<PageId>(first_expert_sum_ + expert_sum_place_[static_cast<size_t>(device)] +
                               i);
  }
  // On the device that has it in the copy. REQUIRES: training by chunks.
  int64_t first_expert_sum(int64_t record, int copy) const {
    return expert_place_[static_cast<size_t>(copy * num_records_ + record)];
  }
  // REQUIRES: training; the table is one of RunShape::whole_sums().
  PageId whole_sum(int64_t table) const { return whole_sum_[table == 0 ? 0 : 1]; }
  // The first pages are those of every run with this model and these microbatches, on whatever
  // devices and stages.
  int64_t num_common() const { return first_of_stages_; }
  // These and what further stages need have room in the page file; pages that stay come last.
  int64_t num_stored() const { return first_exchange_; }

 private:
  uint16_t class_of(PageKind kind, int64_t bytes, bool expert);
  void add(PageKind kind, int64_t bytes, uint32_t record, bool durable, bool expert);
  void add_on(int64_t device, PageKind kind, int64_t bytes);
  void add_activation(int64_t layer, const RunShape& shape);
  void add_activations(const RunShape& shape);
  void add_of_stages(const RunShape& shape);
  void add_layer_buffers(int stage, const RunShape& shape);
  void add_exchange(const RunShape& shape);
  void add_messages(const RunShape& shape);
  void add_guests(const RunShape& shape);
  void add_kept_rows(const RunShape& shape);
  int64_t kept_place(int64_t device, int64_t layer) const {
    return kept_place_[static_cast<size_t>(layer * devices_ + device)];
  }
  PageId parcel(int64_t from, int64_t seat, int64_t i) const {
    const int64_t pair = pairs_[static_cast<size_t>(from * devices_ + seat)];
    return static_cast<PageId>(first_parcel_ + (i * num_pairs_ + pair) * parcel_pages_);
  }
  void add_sums(const RunShape& shape);
  void add_layer_sums(const RunShape& shape);
  void add_expert_sums(const RunShape& shape);
  static constexpr int64_t kBufferSets = 3;
  struct LayerBuffer {
    int64_t stage = 0, set = 0, microbatch = 0;
  };
  PageId layer_buffer(const LayerBuffer& at) const {
    const int64_t first = at.stage == 0
                              ? first_layer_buffer_
                              : first_stage_buffer_ + (at.stage - 1) * kBufferSets * microbatches_;
    return static_cast<PageId>(first + at.set * microbatches_ + at.microbatch);
  }
  // -1: it is none.
  int64_t buffer_set(PageId page) const {
    const bool of_first = page >= first_layer_buffer_ && page < first_of_stages_;
    const bool of_other = page >= first_stage_buffer_ && page < first_exchange_;
    if (!of_first && !of_other) return -1;
    return (page - (of_first ? first_layer_buffer_ : first_stage_buffer_)) / microbatches_ %
           kBufferSets;
  }

  int64_t num_records_, microbatches_, devices_;
  std::vector<int32_t> boundary_;   // [layer] how many before it begin a stage's work; -1: not it
  std::vector<int32_t> layer_set_;  // [layer] of layer_sets_, by chunks
  std::vector<int32_t> pairs_;  // [from * devices + seat] its number; -1: there is none
  int64_t num_pairs_ = 0, parcel_pages_ = 0;
  std::vector<int32_t> messages_;  // [way][from][node] its number; -1: there is none
  int64_t num_messages_ = 0, nodes_ = 0;
  std::vector<int64_t> guest_place_;                  // [device] its first guest() among all
  std::vector<std::vector<int64_t>> guest_of_;        // [device][record] RunShape::guest_places
  // [layer * devices + device] its first kept_rows() among all; -1: it keeps none
  std::vector<int64_t> kept_place_;
  int64_t kept_waves_ = 0;
  std::vector<int64_t> sum_place_, layer_sum_place_;  // [device] its first sum among all
  int64_t sums_of_device_ = 0, layer_sets_ = 0;
  PageId whole_sum_[2] = {};               // of the embedding, and of the head
  std::vector<int64_t> expert_sum_place_;  // [device] its first expert_sum among all
  std::vector<int64_t> expert_place_;      // [copy][record] first_expert_sum; -1: it has none
  int64_t first_activation_ = 0, first_middle_ = 0, first_layer_buffer_ = 0, first_of_stages_ = 0,
          first_leaving_ = 0, first_stage_buffer_ = 0, first_exchange_ = 0, first_parcel_ = 0,
          first_message_ = 0, first_guest_ = 0, first_kept_ = 0, first_sum_ = 0,
          first_layer_sum_ = 0, first_expert_sum_ = 0;
};

// Whether the page file of its home keeps the page: weights, and state of what trains.
// REQUIRES: page < 2 * records.
bool is_durable(const RunShape& shape, PageId page);

// [page] its class; kNoSlotClass: RunShape::rank never uses it. The rank uses pages of records at
// home there, copies of dense weights that one of its devices computes with, and pages that one of
// its devices has alone.
std::vector<uint16_t> slot_classes_here(const RunShape& shape, const PageTable& pages);
// How many pages of each class the rank uses. [class]
std::vector<int64_t> pages_here(const RunShape& shape, const PageTable& pages);

// [class] how many of its pages a device may use: those of experts that may have their seat there,
// of the dense weights that it computes with, of those that it has at home if it `updates` them
// there, and those that no other device uses.
std::vector<int64_t> pages_on_device(const RunShape& shape, const PageTable& pages, int device,
                                     bool updates = false);

}  // namespace pagoda
