#include "plan/step/pages.h"

#include <algorithm>
#include <numeric>

#include "plan/sums/sum_plan.h"

namespace pagoda {
namespace {

// Pages that a wave's parcels between two devices take. Without padding, a device that attends
// alone sends whole groups.
int64_t parcel_pages(const RunShape& shape) {
  return shape.attending_devices().size() > 1 || shape.options.padded_experts ? 4 : 2;
}

// Sets of pages for sums of layers: where a layer's shared expert is summed before attention of the
// layer above is, these have two.
int64_t layer_sets(const RunShape& shape) {
  if (shape.stages.chunk_by_chunk()) return shape.stages.most_layers(shape.num_layers);
  const bool shared = std::any_of(shape.records.begin(), shape.records.end(),
                                  [](const RecordShape& r) { return r.shared_elements > 0; });
  return shared ? 2 : 1;
}

// [device] the most experts that have their home or a copy there: of a layer, or of all whose sums
// wait side by side.
std::vector<int64_t> experts_there(const RunShape& shape) {
  std::vector<int64_t> most(static_cast<size_t>(shape.devices), 0), count = most;
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    if (!shape.stages.chunk_by_chunk()) std::fill(count.begin(), count.end(), 0);
    for (int64_t e = 0; e < (shape.is_moe[l] ? shape.num_experts : 0); ++e) {
      for (int copy = 0; copy < shape.copies.count; ++copy) {
        const auto device = static_cast<size_t>(shape.seat_of(shape.expert(l, e), copy));
        most[device] = std::max(most[device], ++count[device]);
      }
    }
  }
  return most;
}

// Devices with sums of dense gradients that are no layer's, or of any: by chunks, layers have their
// own.
std::vector<int> devices_with_sums(const RunShape& shape) {
  std::vector<int> devices = shape.attending_devices();
  if (shape.rounds() == 1) return devices;
  std::erase_if(devices, [&](int d) {
    return !shape.computes_with(d, shape.embedding()) && !shape.computes_with(d, shape.head());
  });
  return devices;
}

int64_t layer_sums(const RunShape& shape) {
  if (shape.rounds() == 1 || !shape.training) return 0;
  return layer_sets(shape) * std::ssize(shape.attending_devices()) * PageTable::sum_pages(shape);
}

// Whether rows of tokens that one device attends to may be computed by the other.
bool exchange(const RunShape& shape, int from, int seat) {
  return from != seat && shape.stages.of_device(from) == shape.stages.of_device(seat) &&
         shape.copies.of_device(from) == shape.copies.of_device(seat);
}

int64_t exchanging_pairs(const RunShape& shape) {
  int64_t count = 0;
  for (const int from : shape.attending_devices()) {
    for (int seat = 0; seat < shape.devices; ++seat) count += exchange(shape, from, seat);
  }
  return count;
}

// The messages of HALO that a wave may have: its way, a device and another node, of the same copy.
struct Message {
  RowsWay way = RowsWay::kToExperts;
  int from = 0, node = 0;
};

std::vector<Message> messages(const RunShape& shape) {
  if (shape.exchange != ExchangeOrder::kHalo) return {};
  const ExchangeNodes nodes = shape.exchange_nodes();
  std::vector<Message> messages;
  for (const RowsWay way : {RowsWay::kToExperts, RowsWay::kBack}) {
    for (int from = 0; from < shape.devices; ++from) {
      std::vector<uint8_t> goes(static_cast<size_t>(nodes.count()), 0);
      for (int to = 0; to < shape.devices; ++to) {
        const int owner = way == RowsWay::kToExperts ? from : to;
        const int seat = way == RowsWay::kToExperts ? to : from;
        const bool leaves = nodes.node(from) != nodes.node(to);
        if (leaves && shape.attends(owner) && exchange(shape, owner, seat)) {
          goes[static_cast<size_t>(nodes.node(to))] = 1;
        }
      }
      for (int node = 0; node < nodes.count(); ++node) {
        if (goes[static_cast<size_t>(node)] != 0) messages.push_back({way, from, node});
      }
    }
  }
  return messages;
}

// Elements of the largest expert.
int64_t largest_expert(const RunShape& shape) {
  int64_t elements = 0;
  for (const RecordShape& record : shape.records) {
    if (record.expert >= 0) elements = std::max(elements, record.num_elements);
  }
  return elements;
}

// [device] pages of rows that stay until their backward
std::vector<int64_t> kept_pages(const RunShape& shape) {
  std::vector<int64_t> pages = PageTable::kept_actions(shape);
  for (int64_t& of_device : pages) of_device *= shape.kept_waves();
  return pages;
}

// [device] sums of experts' gradients that are pages
std::vector<int64_t> expert_sums(const RunShape& shape) {
  std::vector<int64_t> count = experts_there(shape);
  const int64_t least = PageTable::expert_sum_pages(shape);
  for (int d = 0; d < shape.devices; ++d) {
    int64_t& pages = count[static_cast<size_t>(d)];
    const bool computes = pages > 0 || shape.may_compute_any(d);
    pages = shape.rounds() > 1 ? pages * least : computes ? least : 0;
    if (!shape.pages_expert_sums()) pages = 0;
  }
  return count;
}

}  // namespace

PageTable::PageTable(const RunShape& shape)
    : num_records_(static_cast<int64_t>(shape.records.size())),
      microbatches_(shape.microbatches),
      devices_(shape.devices) {
  for (int64_t r = 0; r < num_records_; ++r) {
    const RecordShape& record = shape.records[r];
    const auto id = static_cast<uint32_t>(r);
    const bool expert = record.expert >= 0;
    const bool at_home = shape.is_home(r), trains = shape.trains(r);
    add(PageKind::kWeights, record.num_elements * shape.dtype_bytes, id, at_home, expert);
    add(PageKind::kState, trains ? record.state_bytes : kIoAlign, id, trains && at_home, expert);
  }
  for (int64_t r = 0; r < num_records_; ++r) {
    const RecordShape& record = shape.records[r];
    const int64_t elements = shape.trains(r) ? record.trained_elements() : 0;
    add(PageKind::kGradient, std::max(kIoAlign, elements * shape.dtype_bytes),
        static_cast<uint32_t>(r), false, record.expert >= 0);
  }
  add_activations(shape);
  add_of_stages(shape);
  first_exchange_ = static_cast<int64_t>(pages.size());
  add_exchange(shape);
  add_messages(shape);
  add_guests(shape);
  add_kept_rows(shape);
  first_sum_ = static_cast<int64_t>(pages.size());
  add_sums(shape);
  CHECK(static_cast<int64_t>(pages.size()) == count(shape), "%zu pages", pages.size());
}

int64_t PageTable::count(const RunShape& shape) {
  const int64_t of_microbatch =
      (shape.num_layers + 1) + shape.num_layers + shape.boundaries() + 3 * shape.stages.count;
  const int64_t parcels =
      exchanging_pairs(shape) * parcel_pages(shape) + 2 * std::ssize(messages(shape));
  const int64_t of_tables = std::ssize(devices_with_sums(shape)) * sum_pages(shape);
  const int64_t sums = shape.training ? of_tables + std::ssize(shape.whole_sums()) : 0;
  const std::vector<int64_t> of_experts = expert_sums(shape);
  int64_t guests = 0;
  for (const int d : shape.attending_devices()) guests += guest_pages(shape, shape.rank_of(d));
  const std::vector<int64_t> kept = kept_pages(shape);
  return 3 * static_cast<int64_t>(shape.records.size()) + shape.microbatches * of_microbatch +
         guests + std::accumulate(kept.begin(), kept.end(), int64_t{0}) +
         waves_in_flight(shape) * (2 * shape.devices + parcels) + sums + layer_sums(shape) +
         std::accumulate(of_experts.begin(), of_experts.end(), int64_t{0});
}

int64_t PageTable::expert_sum_pages(const RunShape& shape) {
  const bool guests = shape.has_guests();
  const int64_t of_expert = expert_sum_buffers(shape.sums, guests);
  if (shape.rounds() > 1) return std::max(shape.least_expert_sums, of_expert);
  // Each row block of a group adds to a sum of its own, and only the group's first expert has
  // others besides, of shards in groups before. Those of a guest may wait for other devices while
  // the group has none of its blocks.
  const int64_t sums = shape.num_experts * shape.sums.expert_shards;
  const int64_t besides = guests ? of_expert : of_expert - 1;
  return std::max(shape.least_expert_sums, std::min(shape.group_blocks, sums) + besides);
}

std::vector<int64_t> PageTable::kept_actions(const RunShape& shape) {
  std::vector<int64_t> actions = shape.least_kept_actions;
  actions.resize(static_cast<size_t>(shape.devices), 0);
  for (int d = 0; d < shape.devices && shape.kept_waves() > 0; ++d) {
    int64_t layers = 0;
    for (int64_t l = 0; l < shape.num_layers; ++l) layers += shape.keeps_rows(l, d);
    int64_t& of_device = actions[static_cast<size_t>(d)];
    of_device = std::max(of_device, layers * shape.rounds());
  }
  return actions;
}

int64_t PageTable::sum_pages(const RunShape& shape) {
  int64_t most = shape.least_sums;
  for (int stage = 0; stage < shape.stages.count; ++stage) {
    for (const int home : shape.dense_homes(stage)) {
      const SumPlan plan = plan_sums(shape.sums, shape.shards_of(stage), shape.microbatches, home,
                                     shape.rounds() > 1);
      most = std::max(most, plan.buffers);
    }
  }
  return most;
}

void PageTable::add_exchange(const RunShape& shape) {
  const int64_t waves = waves_in_flight(shape), rows = shape.group_rows();
  const int64_t row = shape.hidden_size * shape.dtype_bytes;
  const auto add_inbound = [&](int64_t device) {
    add_on(device, PageKind::kInbound, rows * (2 * row + 4));
  };
  const auto add_outbound = [&](int64_t device) {
    add_on(device, PageKind::kOutbound, rows * (row + 4));
  };
  for (int64_t i = 0; i < waves; ++i) {
    for (int64_t d = 0; d < devices_; ++d) {
      add_inbound(d);
      add_outbound(d);
    }
  }
  const std::vector<int> attending = shape.attending_devices();
  parcel_pages_ = parcel_pages(shape);
  pairs_.assign(static_cast<size_t>(devices_ * devices_), -1);
  first_parcel_ = static_cast<int64_t>(pages.size());
  for (int64_t i = 0; i < waves; ++i) {
    num_pairs_ = 0;
    for (const int from : attending) {
      for (int64_t seat = 0; seat < devices_; ++seat) {
        if (!exchange(shape, from, static_cast<int>(seat))) continue;
        pairs_[static_cast<size_t>(from * devices_ + seat)] = static_cast<int32_t>(num_pairs_++);
        add_inbound(from);
        add_outbound(from);
        if (parcel_pages_ == 2) continue;
        add_inbound(seat);
        add_outbound(seat);
      }
    }
  }
}

// A message has room for whole groups of all of its node's devices.
void PageTable::add_messages(const RunShape& shape) {
  first_message_ = static_cast<int64_t>(pages.size());
  const std::vector<Message> all = messages(shape);
  if (all.empty()) return;
  const ExchangeNodes nodes = shape.exchange_nodes();
  nodes_ = nodes.count();
  num_messages_ = std::ssize(all);
  messages_.assign(static_cast<size_t>(2 * devices_ * nodes_), -1);
  const int64_t row = shape.hidden_size * shape.dtype_bytes;
  for (int64_t i = 0; i < waves_in_flight(shape); ++i) {
    int32_t number = 0;
    for (const Message& of : all) {
      const bool back = of.way == RowsWay::kBack;
      const int64_t at = (static_cast<int64_t>(of.way) * devices_ + of.from) * nodes_ + of.node;
      messages_[static_cast<size_t>(at)] = number++;
      const int64_t of_group =
          align_up(shape.group_rows() * ((back ? 1 : 2) * row + 4), kGatheredAlign);
      const PageKind kind = back ? PageKind::kOutbound : PageKind::kInbound;
      add_on(of.from, kind, nodes.devices(of.node) * of_group);
      add_on(nodes.counterpart(of.from, of.node), kind, nodes.devices(of.node) * of_group);
    }
  }
}

int64_t PageTable::guest_pages(const RunShape& shape, int rank) {
  if (!shape.has_far_guests()) return 0;
  if (shape.guest_layers > 0) return shape.guest_layers * shape.far_experts(rank);
  return waves_in_flight(shape) * std::min(shape.group_blocks, shape.num_experts);
}

void PageTable::add_guests(const RunShape& shape) {
  first_guest_ = static_cast<int64_t>(pages.size());
  guest_place_.assign(static_cast<size_t>(devices_), 0);
  guest_of_.resize(static_cast<size_t>(devices_));
  for (const int d : shape.attending_devices()) {
    guest_place_[static_cast<size_t>(d)] = static_cast<int64_t>(pages.size()) - first_guest_;
    for (int64_t i = guest_pages(shape, shape.rank_of(d)); i > 0; --i) {
      add_on(d, PageKind::kGuestWeights, largest_expert(shape) * shape.dtype_bytes);
    }
    guest_of_[static_cast<size_t>(d)] = shape.guest_places(shape.rank_of(d));
  }
}

void PageTable::add_sums(const RunShape& shape) {
  if (!shape.training) return;
  const int64_t sums = sum_pages(shape);
  const int64_t bytes = shape.sum_elements() * static_cast<int64_t>(sizeof(float));
  sum_place_.assign(static_cast<size_t>(devices_), 0);
  for (const int d : devices_with_sums(shape)) {
    sum_place_[static_cast<size_t>(d)] = static_cast<int64_t>(pages.size()) - first_sum_;
    for (int64_t i = 0; i < sums; ++i) add_on(d, PageKind::kGradientSum, bytes);
  }
  if (shape.rounds() > 1) add_layer_sums(shape);
  if (shape.pages_expert_sums()) add_expert_sums(shape);
  for (const int64_t table : shape.whole_sums()) {
    whole_sum_[table == 0 ? 0 : 1] = static_cast<PageId>(pages.size());
    add_on(shape.whole_sum_device(table), PageKind::kGradientSum, bytes);
  }
}

void PageTable::add_layer_sums(const RunShape& shape) {
  int64_t largest = 0;
  for (const RecordShape& record : shape.records) {
    const bool of_layer = record.expert < 0 && record.layer >= 0;
    if (of_layer) largest = std::max(largest, record.num_elements);
  }
  sums_of_device_ = sum_pages(shape);
  layer_sets_ = layer_sets(shape);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    layer_set_.push_back(static_cast<int32_t>(shape.stages.ordinal(l) % layer_sets_));
  }
  first_layer_sum_ = static_cast<int64_t>(pages.size());
  layer_sum_place_.assign(static_cast<size_t>(devices_), 0);
  for (const int d : shape.attending_devices()) {
    layer_sum_place_[static_cast<size_t>(d)] =
        static_cast<int64_t>(pages.size()) - first_layer_sum_;
    for (int64_t i = 0; i < layer_sets_ * sums_of_device_; ++i) {
      add_on(d, PageKind::kGradientSum, largest * static_cast<int64_t>(sizeof(float)));
    }
  }
}

void PageTable::add_expert_sums(const RunShape& shape) {
  const int64_t elements = largest_expert(shape);
  first_expert_sum_ = static_cast<int64_t>(pages.size());
  const std::vector<int64_t> sums = expert_sums(shape);
  for (int d = 0; d < shape.devices; ++d) {
    expert_sum_place_.push_back(static_cast<int64_t>(pages.size()) - first_expert_sum_);
    for (int64_t i = 0; i < sums[static_cast<size_t>(d)]; ++i) {
      add_on(d, PageKind::kExpertSum, elements * static_cast<int64_t>(sizeof(float)));
    }
  }
  if (shape.rounds() == 1) return;
  expert_place_.assign(static_cast<size_t>(shape.copies.count) * shape.records.size(), -1);
  std::vector<int64_t> next(static_cast<size_t>(shape.devices), 0);
  const int64_t of_expert = expert_sum_pages(shape);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    if (!shape.stages.chunk_by_chunk()) std::fill(next.begin(), next.end(), 0);
    for (int64_t e = 0; e < (shape.is_moe[l] ? shape.num_experts : 0); ++e) {
      const int64_t record = shape.expert(l, e);
      for (int copy = 0; copy < shape.copies.count; ++copy) {
        int64_t& place = next[static_cast<size_t>(shape.seat_of(record, copy))];
        expert_place_[static_cast<size_t>(copy * num_records_ + record)] = place;
        place += of_expert;
      }
    }
  }
}

// They share slots, so they share a size.
void PageTable::add_activation(int64_t layer, const RunShape& shape) {
  const int64_t row =
      shape.hidden_size * shape.dtype_bytes + shape.experts_per_token / shape.expert_parts * 4;
  for (int64_t b = 0; b < microbatches_; ++b) {
    add_on(shape.attending(layer, b), PageKind::kActivation, shape.microbatch_tokens * row);
  }
}

void PageTable::add_activations(const RunShape& shape) {
  first_activation_ = static_cast<int64_t>(pages.size());
  for (int64_t l = 0; l <= shape.num_layers; ++l) add_activation(l, shape);
  first_middle_ = static_cast<int64_t>(pages.size());
  for (int64_t l = 0; l < shape.num_layers; ++l) add_activation(l, shape);
  first_layer_buffer_ = static_cast<int64_t>(pages.size());
  add_layer_buffers(0, shape);
}

// Adds what more than one stage needs.
void PageTable::add_of_stages(const RunShape& shape) {
  first_of_stages_ = first_leaving_ = static_cast<int64_t>(pages.size());
  boundary_.assign(static_cast<size_t>(shape.num_layers), -1);
  int32_t boundaries = 0;
  for (int64_t l = 1; l < shape.num_layers; ++l) {
    if (!shape.leaves_stage(l - 1)) continue;
    boundary_[static_cast<size_t>(l)] = boundaries++;
    add_activation(l - 1, shape);
  }
  first_stage_buffer_ = static_cast<int64_t>(pages.size());
  for (int stage = 1; stage < shape.stages.count; ++stage) add_layer_buffers(stage, shape);
}

void PageTable::add_layer_buffers(int stage, const RunShape& shape) {
  const int64_t t = shape.microbatch_tokens, d = shape.hidden_size;
  const int64_t rows = t * d * shape.dtype_bytes;
  const int64_t probabilities = shape.num_experts * shape.ep_degree / shape.expert_parts;
  const std::vector<int> shards = shape.shards_of(stage);
  // The bytes of normed(), sum() and dresidual().
  for (const int64_t bytes :
       {rows + t * (1 + probabilities) * 4, t * d * 4, shape.training ? rows : int64_t{kIoAlign}}) {
    for (int64_t b = 0; b < microbatches_; ++b) {
      add_on(device_of_shard(shards, shape.sums.shard(b, microbatches_)), PageKind::kLayerBuffer,
             bytes);
    }
  }
}

void PageTable::add_on(int64_t device, PageKind kind, int64_t bytes) {
  const bool exchange =
      kind == PageKind::kInbound || kind == PageKind::kOutbound || kind == PageKind::kKeptRows;
  add(kind, bytes, static_cast<uint32_t>(num_records_), false, exchange);
  pages.back().device = static_cast<int16_t>(device);
}

void PageTable::add_kept_rows(const RunShape& shape) {
  first_kept_ = static_cast<int64_t>(pages.size());
  kept_waves_ = shape.kept_waves();
  kept_place_.assign(static_cast<size_t>(shape.num_layers * devices_), -1);
  const std::vector<int64_t> count = kept_pages(shape);
  for (int d = 0; d < shape.devices; ++d) {
    int64_t next = static_cast<int64_t>(pages.size()) - first_kept_;
    for (int64_t l = 0; l < shape.num_layers; ++l) {
      if (!shape.keeps_rows(l, d)) continue;
      kept_place_[static_cast<size_t>(l * devices_ + d)] = next;
      next += shape.rounds() * kept_waves_;
    }
    for (int64_t i = 0; i < count[static_cast<size_t>(d)]; ++i) {
      add_on(d, PageKind::kKeptRows, shape.group_rows() * shape.hidden_size * shape.dtype_bytes);
    }
  }
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
  pages.push_back({page_bytes, record, durable, c, -1});
}

bool is_durable(const RunShape& shape, PageId page) {
  return page % 2 == 0 || shape.trains(static_cast<int64_t>(page / 2));
}

std::vector<int64_t> pages_here(const RunShape& shape, const PageTable& pages) {
  std::vector<int64_t> count(pages.classes.size(), 0);
  for (const uint16_t c : slot_classes_here(shape, pages)) {
    if (c != kNoSlotClass) ++count[c];
  }
  return count;
}

std::vector<uint16_t> slot_classes_here(const RunShape& shape, const PageTable& pages) {
  const auto is_here = [&](const PageTable::Page& page) {
    if (page.device >= 0) return shape.rank_of(page.device) == shape.rank;
    const PageTable::Class& of = pages.classes[page.slot_class];
    const bool of_training = of.kind == PageKind::kState || of.kind == PageKind::kGradient;
    if (of_training && shape.training && !shape.trains(page.record)) return false;
    const bool copied = of.kind == PageKind::kWeights && shape.is_copied(page.record);
    return shape.is_home(page.record) ||
           (copied && shape.rank_computes_with(shape.rank, page.record));
  };
  std::vector<uint16_t> classes;
  for (const PageTable::Page& page : pages.pages) {
    classes.push_back(is_here(page) ? page.slot_class : kNoSlotClass);
  }
  return classes;
}

std::vector<int64_t> pages_on_device(const RunShape& shape, const PageTable& pages, int device,
                                     bool updates) {
  const bool takes_any = shape.may_compute_any(device);
  std::vector<int64_t> count(pages.classes.size(), 0);
  for (const PageTable::Page& page : pages.pages) {
    const PageTable::Class& info = pages.classes[page.slot_class];
    const bool weights = info.kind == PageKind::kWeights;
    const bool alone = page.device >= 0;
    const int home = alone ? page.device : shape.records[page.record].device;
    int64_t& of_class = count[page.slot_class];
    if (!alone && weights && shape.is_copied(page.record)) {
      of_class += shape.computes_with(device, page.record) || (updates && home == device);
    } else {
      const bool guest = weights && takes_any;
      const bool any_seat = !alone && info.expert && (guest || !shape.seat_speeds.empty());
      of_class += home == device || (any_seat && shape.rank_of(home) == shape.rank_of(device));
    }
  }
  return count;
}

}  // namespace pagoda
