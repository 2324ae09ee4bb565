// The numbers of one run that planning needs, and nothing else: no model code, no device, no clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/rounds/exchange_order.h"
#include "plan/step/assignment.h"
#include "plan/step/lags.h"
#include "plan/step/stages.h"
#include "plan/sums/sum_shape.h"

namespace pagoda {

// The most row blocks that experts of a group have (plan/step/expert_blocks.h).
inline constexpr int64_t kMostGroupBlocks = 128;
// Several devices have so many waves in flight; in zebra they have the least.
inline constexpr int64_t kLeastWaves = 2, kMostWaves = 8;

// Switches that change the order of a step, to measure what each part of it is worth. None changes
// a bit of the result.
struct PlanOptions {
  // false: a page is uploaded when the task that wants it is next to compute, and not before.
  bool prefetch = true;
  // true: a step ends with all its optimizer updates, and the next begins after them.
  bool optimizer_at_end = false;
  // true: all experts of a layer are uploaded before the first of them computes, even those that no
  // token chose.
  bool whole_layers = false;
  // true: the forward takes one microbatch after the other through all layers, so that weights are
  // read once for each. The backward stays as it is: an expert's gradient is a sum over blocks of
  // rows of all microbatches, and other blocks would be other bits.
  bool microbatch_major = false;
  // true: every expert of a layer computes as many rows as the busiest one, even without tokens.
  // Systems that multiply all experts at once do so (ES-MoE 2.2, HEXA-MoE 2.2). The rows beyond an
  // expert's own are zeros, go nowhere and make no gradient.
  bool padded_experts = false;
  // How many row blocks of experts are computed together (RunShape::group_blocks). 0: one on a CPU
  // alone, and on a GPU or on several devices as many as their memory has room for.
  int64_t group_blocks = 0;
  // RunShape::waves_in_flight. 0: as many as the devices' memory has room for. Zebra ignores it.
  int64_t waves_in_flight = 0;
  // false: experts read copies of their rows, also of those that are on their own device
  // (RunShape::in_place).
  bool in_place = true;
  // false: weights leave for guests of other ranks when their layer is due, and not a layer ahead
  // (RunShape::guest_layers). Without prefetch they do so in any case.
  bool send_ahead = true;

  // Whether the backward of an expert takes exactly the blocks of rows that its forward took.
  bool same_blocks() const { return !microbatch_major && !padded_experts; }
};

// One record (model/tensors.h) as planning sees it.
struct RecordShape {
  int64_t num_elements = 0;
  int64_t layer = -1;   // dense part of a layer, or an expert of it; -1: embedding or head
  int64_t expert = -1;  // -1: dense
  // The home: where an expert is computed unless its seat follows from its rows; where a dense
  // record's gradient is finished and its update made, one of those that attend in its stage. That
  // of a table, which is the embedding or the head, may be away (RunShape::is_away).
  int device = 0;
  int64_t state_bytes = 0;  // of its optimizer state, when training
  int64_t shared_elements = 0;  // of a layer's dense record: its last elements, the shared expert
  int64_t frozen_elements = 0;  // its last ones, which have no state and no gradient

  int64_t trained_elements() const { return num_elements - frozen_elements; }
  bool trains() const { return trained_elements() > 0; }
};

struct Action;

struct RunShape {
  int64_t num_layers = 0;
  std::vector<uint8_t> is_moe;  // (num_layers)
  // Where experts have parts (HiddenParts), a part counts as an expert in both of these, and in all
  // that planning says of experts.
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;  // k
  int64_t expert_parts = 1;
  int64_t hidden_size = 0;  // d
  bool tied_embeddings = false;
  bool training = true;           // false: forward only, no state and no gradients
  int64_t dtype_bytes = 2;        // of weights, activations and gradients

  // Records: embedding first, then for each layer its dense part and its experts, head last.
  std::vector<RecordShape> records;
  std::vector<int64_t> layer_record;  // (num_layers); expert e of a MoE layer is + 1 + e

  int64_t microbatches = 0;        // per step
  // Whether chunks of microbatches follow each other through the layers, in both phases, so that
  // attention of one goes beside experts of another (plan/step/zebra_actions.h).
  bool zebra = false;
  Lags lags = {};
  // A training step takes these actions in place of its generator's, to study other orders of the
  // same actions (join_orders); empty: the generator's.
  std::shared_ptr<const std::vector<Action>> order = {};
  SumShape sums = {};
  Stages stages = {};  // of more than one, chunks follow each other through these too
  // REQUIRES of more than one: SumShape::expert_shards above 1 in training and where there are
  // shards, no seat_speeds, Sharing::kRows, and PlanOptions::same_blocks().
  ExpertCopies copies = {};
  // [stage][shard] the device that attends to its microbatches in the stage's layers: it computes
  // everything but their experts. Empty: device 0 attends to all.
  std::vector<int> shard_device = {};
  // Each device has room for so many sums of dense gradients, and of an expert's, at least
  // (plan/step/pages.h).
  int64_t least_sums = 0, least_expert_sums = 0;
  int64_t microbatch_tokens = 0;   // T
  int64_t row_block = 0;           // rows of an expert whose gradients are one sum
  // How many row blocks of one or several experts are computed together
  // (plan/step/expert_blocks.h). The pages they use are there at once. The number changes no bit.
  int64_t group_blocks = 1;
  // For the rows of so many waves (plan/step/expert_blocks.h) several devices have pages: with two
  // of them a wave's rows arrive while the one before is computed. A device whose experts have few
  // rows in some waves goes on with later ones while others are still at these, as far as there are
  // pages. The number changes no bit. REQUIRES in zebra: kLeastWaves.
  int64_t waves_in_flight = kLeastWaves;
  // Rows that come to a device for a layer's experts stay there until their backward, so that only
  // gradients come then: those of the first waves of an action, as many as so many rows fill.
  // Further ones are sent again. The number changes no bit. REQUIRES unless 0:
  // PlanOptions::same_blocks().
  int64_t kept_rows = 0;
  // [device] It has room for the kept rows of so many actions, at least. Empty: of none.
  std::vector<int64_t> least_kept_actions = {};
  int devices = 1;  // of all ranks
  // [device] its rank: the process that drives it, with a host memory and a page file of its own.
  // Ascending from 0, so that a rank's devices are neighbours. Empty: there is one rank.
  std::vector<int> device_rank = {};
  // The rank whose part is planned, run or counted (plan/step/rank_part.h). The tasks of a step do
  // not depend on it.
  int rank = 0;
  // [device] the speeds by which a layer's experts get their seats anew in each step, from its
  // counts of rows (plan/step/expert_seats.h). Empty: experts stay at home.
  std::vector<double> seat_speeds = {};
  ExchangeOrder exchange = ExchangeOrder::kFlat;  // of a wave's rows, there and back
  // [rank] how fast its network is against that of others, in any unit. Empty: all are equally
  // fast. They change no bit.
  std::vector<double> network_rates = {};
  // The devices of a rank share a network card, as those of a CPU; else each has its own.
  bool shares_cards = false;
  // Whether experts may be guests of devices that attend (plan/step/expert_seats.h). REQUIRES
  // unless kRows: in training SumShape::expert_shards above 1, rounds() is 1, and
  // PlanOptions::same_blocks().
  Sharing sharing = Sharing::kRows;
  // Weights that came from another rank stay on a guest's device until those of so many further
  // layers with experts have come; 0: while the waves in flight need them. Then they come a layer
  // ahead of their use where it is known which (plan/step/expert_seats.h), and not again for the
  // backward of so many last layers. The number changes no bit. REQUIRES unless 0: at least two, or
  // one for each layer with experts.
  int64_t guest_layers = 0;
  PlanOptions options;
  // Experts read the rows of microbatches that their own device attends to where attention left
  // them, in the in-layer buffers, through the re-index vector (HEXA-MoE 3.2): nothing is copied
  // into the group. The in-layer buffers that a group reads are there at once, so the memory plan
  // has the last word (seated()). It changes no bit. REQUIRES: no padded experts.
  bool in_place = false;
  // A device computes the experts of a group one after the other, as the CPU's operators do.
  bool experts_in_order = false;
  // An update needs no norm of all gradients (clip = per_expert, none), so a step need not wait for
  // its last gradient to begin it.
  bool eager_adam = false;
  double pinned_share = 0;  // of each layer's experts (plan/step/pinning.h)
  int64_t ep_degree = 1;    // experts in the run for each one here (plan/memory/coarse_run.h)

  // Experts add what they give to the sums of tokens as they compute it, in place as they read
  // rows. On the only device their order is that of the sums, so it changes no bit. Else they write
  // it, and combines add it in that order.
  bool adds_in_place() const { return in_place && experts_in_order && devices == 1; }
  // A record is updated inside the backward, as soon as its gradient is complete.
  bool updates_in_backward() const { return eager_adam && !options.optimizer_at_end; }
  // Groups of microbatches that are taken through a layer's backward one after the other.
  int64_t rounds() const { return zebra || stages.several() ? sums.chunks : 1; }
  int64_t round_microbatches() const { return microbatches / rounds(); }
  int64_t round_of(int64_t microbatch) const { return microbatch / round_microbatches(); }
  // Rows of a round that go through a layer's experts.
  int64_t round_rows() const {
    return round_microbatches() * microbatch_tokens * experts_per_token;
  }
  // Row blocks of a round in a layer on the device that has most experts, at most: it has as many
  // rows as if routing were even, divided between its experts in any way.
  int64_t most_round_blocks() const;
  // Gradients of experts are summed in pages; else in buffers of the group's device, one for each
  // expert of a group, since each is complete when its group is.
  bool pages_expert_sums() const {
    return training && sums.pages_expert_sums(zebra || stages.several());
  }
  // These come to experts' seats from other devices.
  bool expert_sums_travel() const { return pages_expert_sums() && has_guests(); }
  int64_t group_rows() const { return group_blocks * row_block; }
  // The first waves of an action of experts whose rows stay until their backward.
  int64_t kept_waves() const {
    return training ? (kept_rows + group_rows() - 1) / group_rows() : 0;
  }
  // Whether rows that come to the device for experts of the layer may stay.
  bool keeps_rows(int64_t layer, int device) const;
  int64_t embedding() const { return 0; }
  int64_t head() const { return static_cast<int64_t>(records.size()) - 1; }
  int64_t expert(int64_t layer, int64_t e) const { return layer_record[layer] + 1 + e; }
  // The stage of a layer; -1 is the embedding's, which goes with the first, and num_layers the
  // head's, which goes with the last.
  int stage_of(int64_t layer) const {
    return stages.of_layer(std::min(std::max<int64_t>(layer, 0), num_layers - 1));
  }
  // The stage that computes with a dense record; of the table of tied embeddings the first one.
  int stage_of_record(int64_t record) const {
    return stage_of(record == head() ? num_layers : records[static_cast<size_t>(record)].layer);
  }
  // Whether the record's home is none of the devices that attend in its stage. REQUIRES: it is
  // dense.
  bool is_away(int64_t record) const;
  // [stage] the homes that its dense records may have.
  std::vector<int> dense_homes(int stage) const;
  // The device on which the whole sum of a table's gradient has a page of its own: of a tied head
  // the embedding's home, where it waits for that one's; of a table away its home. -1: there is
  // none.
  int whole_sum_device(int64_t table) const;
  std::vector<int64_t> whole_sums() const;  // the tables with such a page
  // What the layer gives goes to another stage.
  bool leaves_stage(int64_t layer) const {
    return layer + 1 < num_layers && stage_of(layer) != stage_of(layer + 1);
  }
  int64_t boundaries() const;  // layers of which that holds
  int attending(int64_t layer, int64_t microbatch) const {
    return device_of_shard(shard_device,
                           stage_of(layer) * sums.shards + sums.shard(microbatch, microbatches));
  }
  // [shard] the devices of a stage.
  std::vector<int> shards_of(int stage) const;
  // In their order; each has a copy of the dense weights that it uses.
  std::vector<int> attending_devices() const;
  std::vector<int> attending_devices(int stage) const;
  // The device that computes an expert in a copy.
  int seat_of(int64_t record, int copy) const {
    return copies.several() ? copies.seats[static_cast<size_t>(copy)][static_cast<size_t>(record)]
                            : records[static_cast<size_t>(record)].device;
  }
  // Whether it has the expert in its copy.
  bool has_seat(int device, int64_t record) const {
    return seat_of(record, copies.of_device(device)) == device;
  }
  // Whether the record has copies of its weights beside its home's: a dense one with each device
  // that computes with it, an expert if there are copies of all.
  bool is_copied(int64_t record) const {
    return records[static_cast<size_t>(record)].expert < 0 || copies.several();
  }
  // Whether the device computes with a record that is copied. A dense one is of its stage, of tied
  // embeddings at both ends.
  bool computes_with(int device, int64_t record) const;
  bool attends(int device) const { return pagoda::attends(shard_device, device); }
  // Experts may be computed where their rows are, beside their seats.
  bool has_guests() const { return weights_travel() || copies.several(); }
  // To rows, in place of these.
  bool weights_travel() const { return sharing != Sharing::kRows; }
  // Guests may be of other ranks than their experts' homes.
  bool has_far_guests() const { return weights_travel() && ranks() > 1; }
  // The most experts of a layer that are at home on other ranks than this.
  int64_t far_experts(int rank) const;
  // [record] where a guest on a device of the rank has its weights, among those of guest_layers;
  // -1: it is at home there. Layers take turns. Empty without guest_layers.
  std::vector<int64_t> guest_places(int rank) const;
  int64_t moe_layers() const { return std::count(is_moe.begin(), is_moe.end(), uint8_t{1}); }
  // Whether weights that came to a guest for the layer's forward are there for its backward.
  bool keeps_guests(int64_t layer) const {
    return std::count(is_moe.begin() + layer, is_moe.end(), uint8_t{1}) <= guest_layers;
  }
  // Whether routing may have the device compute any expert of its rank.
  bool may_compute_any(int device) const {
    return !seat_speeds.empty() || (weights_travel() && attends(device));
  }
  int ranks() const { return device_rank.empty() ? 1 : device_rank.back() + 1; }
  int rank_of(int device) const {
    return device_rank.empty() ? 0 : device_rank[static_cast<size_t>(device)];
  }
  DeviceRange devices_of(int rank) const;
  // Those of a copy of a stage exchange rows, and are on a node those of a rank.
  ExchangeNodes exchange_nodes() const;
  // Whether what experts gave has lanes of its own, on its way and where it arrives: in zebra a
  // device that attends has rows of a chunk to send, and to take for its experts, while it waits
  // for what those of the chunk before gave.
  bool ways_apart() const { return zebra && rounds() > 1; }
  // Lanes (Lane) by which rows of other ranks come to each of the rank's devices, side by side.
  int in_lanes(int rank) const { return lanes_of_card(exchange, network_rates, rank); }
  DeviceRange own_devices() const { return devices_of(rank); }
  // The rank whose page file holds the record.
  int home_rank(int64_t record) const {
    return rank_of(records[static_cast<size_t>(record)].device);
  }
  bool trains(int64_t record) const {
    return training && records[static_cast<size_t>(record)].trains();
  }
  bool is_home(int64_t record) const { return home_rank(record) == rank; }
  // Whether a device of the rank computes with a dense record, so that it needs the weights.
  bool rank_computes_with(int rank, int64_t record) const;
  // Elements of the largest dense record, where the embedding's follow the final norm's.
  int64_t sum_elements() const;
  // Makes it the shape of so many microbatches, whose sums are divided alike as far as they can be.
  // A dense record whose home attended, and does no more, goes to the device of its stage's first
  // shard.
  void set_microbatches(int64_t count);
};

}  // namespace pagoda
