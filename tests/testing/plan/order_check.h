// Whether tasks come after what they read, as far as that lies in working memory and not in pages:
// the account of what a step has computed so far. Part of the validator.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/step/pages.h"
#include "plan/step/run_shape.h"
#include "plan/step/task.h"
#include "tests/testing/plan/plan_fault.h"

namespace pagoda {

class OrderCheck {
 public:
  // Nothing is owned.
  OrderCheck(const RunShape* shape, const PageTable* pages, PlanFaults* faults);

  // What was computed before is forgotten.
  void begin_step();
  void check(const Task& task);
  // Records whose gradient the step has computed.
  const std::set<int64_t>& computed_gradients() const { return computed_; }

 private:
  // Rows of one layer that go through its experts, of microbatches that are taken together.
  struct Rows {
    int64_t first_microbatch = 0, microbatches = 0;
    int64_t dispatched = 0, combined = 0;
    std::map<int64_t, int64_t> computed_rows;  // [first row of the layer] how many from there on
    std::map<int64_t, std::pair<int64_t, int64_t>> newest;  // [microbatch] wave and expert combined
    int64_t newest_added = -1;  // the expert that has added to sums last
  };
  // Rows that an exchange page holds, of a wave's group on one device or a parcel of it.
  struct Group {
    Phase phase = Phase::kForward;
    int64_t layer = -1, wave = -1, rows = 0;
    bool whole = false;                   // all of its experts have computed
    int64_t sent_bytes = 0;
    int to = -1;                          // the device that a parcel goes to
    std::set<int64_t> microbatches = {};  // handed out
    std::map<int, int64_t> rows_of = {};  // [device that attends]
    bool is_of(const Task& task) const {
      return phase == task.phase && layer == task.layer && wave == task.wave;
    }
  };
  struct Done {
    TaskKind kind;
    Phase phase;
    int64_t layer, microbatch;
    auto operator<=>(const Done&) const = default;
  };

  void fault(const Task& task, const char* what);
  bool done(TaskKind kind, Phase phase, int64_t layer, int64_t microbatch) const;
  bool all_done(TaskKind kind, Phase phase, int64_t layer) const;
  bool experts_over(const Task& task) const;
  bool begun_backward(const Task& task) const;
  void check_dense(const Task& task);
  bool possible_height(const Task& task) const;
  void check_dispatch(const Task& task, Rows& rows);
  void check_read_rows(const Task& task, Rows& rows);
  Group input_of(const Task& task);
  Group& output_of(const Task& task, Rows& rows);
  void check_seat(const Task& task);
  void check_copy(const Task& task);
  void check_expert(const Task& task, Rows& rows);
  void check_send(const Task& task);
  void check_receive(const Task& task);
  void check_lane(const Task& task);
  void check_place(const Task& task);
  void check_pack(const Task& task);
  // Parcels of a message, by where they begin.
  using Parcels = std::map<int64_t, Group>;
  Group& begin_group(const Task& task);
  int64_t parcel_bytes(const Task& task, const Group& parcel) const;
  bool has_inputs(const Task& task, int device) const;
  bool is_kind(PageId page, PageKind kind) const;
  void check_kept_rows(const Task& task, const PageUse& use, int64_t copied_rows);
  void check_gathered(const Task& task);
  void check_passed_on(const Task& task);
  void check_take(const Task& task);
  struct Sent {
    Group group;
    std::string sum;  // or of dense gradients, or of an expert's
    int64_t first_byte = 0, bytes = 0;
    bool ends = true;       // all of a parcel is sent
    bool boundary = false;  // between stages
    int64_t layer = -1, microbatch = -1;
    Parcels parcels = {};  // of a message of several
    int64_t expert_record = -1;  // whose sum it is
  };
  bool is_sum(PageId page) const;
  bool is_expert_sum(PageId page) const;
  void send_expert_sum(const Task& task, std::deque<Sent>& channel);
  bool between_stages(const Task& task) const;
  void check_boundary(const Task& task);
  void check_combine(const Task& task, Rows& rows);
  void check_group(const Task& task);
  void check_expert_sum(const Task& task);
  void add_expert_sums(const Task& task);
  std::string expected_expert_sum(int64_t record) const;
  void check_gradient(const Task& task);
  void note_sum(const Task& task);
  void add_sums(const Task& task);
  void check_sum(const Task& task);
  bool shared_part(const Task& task) const;
  void check_elements(const Task& task);
  bool is_indexed(const Task& task) const;
  std::string expected_sum() const;

  const RunShape& shape_;
  const PageTable& pages_;
  PlanFaults& faults_;
  std::set<Done> done_;
  // Each by its phase, layer and first microbatch, from its kIndex on.
  std::map<std::tuple<Phase, int64_t, int64_t>, Rows> rows_;
  std::map<PageId, Group> exchange_;
  // (layer, first microbatch, wave, device) whose inputs stay in kept rows
  std::set<std::tuple<int64_t, int64_t, int64_t, int>> stayed_;
  std::optional<Lane> given_comes_by_;  // what experts gave, in zebra
  std::map<PageId, Parcels> messages_;
  std::map<int, Group> held_;  // [device] rows that its next group reads in place
  Group added_;                // rows that experts in work have added to sums in place
  std::set<Done> arrived_;  // kSend: of a microbatch that goes on to the layer, or back from it
  std::map<std::pair<int, int>, std::deque<Sent>> sent_;  // [from, to] and not received yet
  std::set<int64_t> computed_;
  // [record, shard] the device that computes the expert's rows in this step, and [record, -1] the
  // one that computes those of other devices.
  std::map<std::pair<int64_t, int64_t>, int> seats_;
  std::map<int, Task> indexed_;   // [device] its newest kIndex
  // What a page holds of a sum of dense gradients, written out as one of microbatches: "(0+1,2+3)".
  // A layer's shared expert has sums of its own: [page, whether it is those].
  std::map<std::pair<PageId, bool>, std::string> sums_;
  // What a page holds of an expert's gradient, written out as sums_ are, of cells. Record -1:
  // nothing that is wanted.
  struct ExpertSum {
    int64_t record = -1, newest_cell = -1;
    std::string text = {};
  };
  std::map<PageId, ExpertSum> expert_sums_;
  std::map<int64_t, std::set<int64_t>> cells_;  // [record of an expert] that it has rows in
  std::set<int64_t> finished_;                  // records of experts
};

}  // namespace pagoda
