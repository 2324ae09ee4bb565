#include "preview/routed_forecast.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/si_units.h"
#include "plan/exchange/expert_migration.h"
#include "plan/exchange/home_moves.h"
#include "plan/exchange/routed_traffic.h"
#include "plan/exchange/sending_order.h"
#include "plan/memory/memory_plan.h"
#include "plan/rounds/traffic.h"
#include "plan/step/expert_seats.h"
#include "preview/row_speeds.h"

namespace pagoda {
namespace {

constexpr int64_t kMostTried = 2;  // steps that are simulated, for each choice of homes

Status refuse(const std::string& what) { return Status(Exit::kUsage, "--routing: " + what); }

Status check_trace(const RunShape& shape, const RoutingTrace& trace) {
  const RoutedShape run = routed_shape(shape);
  const RoutedShape& of = trace.shape;
  if (of.num_experts != run.num_experts || of.experts_per_token != run.experts_per_token ||
      of.is_moe != run.is_moe) {
    return refuse(
        strf("it was recorded of another model, of %zu layers, %lld experts and top %lld; plan the "
             "run that recorded it",
             of.is_moe.size(), (long long)of.num_experts, (long long)of.experts_per_token));
  }
  if (of.microbatches != run.microbatches) {
    return refuse(
        strf("its steps have %lld microbatches and the run's %lld; plan the run that was "
             "recorded",
             (long long)of.microbatches, (long long)run.microbatches));
  }
  if (shape.devices == 1) {
    return refuse(
        "the run has one device, where all experts are; name several in train.devices, "
        "or ranks with --cluster");
  }
  if (shape.expert_parts > 1) {
    return refuse("every device has a part of each expert, whatever is routed; plan whole experts");
  }
  if (shape.zebra) return refuse("zebra chooses homes itself; plan the layout of experts");
  if (shape.stages.several() || shape.copies.several()) {
    return refuse("experts stay with their stage and copy; plan the layout of experts");
  }
  if (trace.steps.empty()) {
    return Status(Exit::kBadData, "--routing: it has no whole step; record at least one");
  }
  const int64_t most = shape.microbatch_tokens * shape.experts_per_token;
  for (const RoutedStep& step : trace.steps) {
    for (const auto& layers : step.routing) {
      for (const std::vector<int64_t>& tokens : layers) {
        if (std::accumulate(tokens.begin(), tokens.end(), int64_t{0}) <= most) continue;
        return refuse(
            strf("in step %lld a microbatch has more than the run's %lld tokens; plan the "
                 "run that was recorded",
                 (long long)step.step, (long long)shape.microbatch_tokens));
      }
    }
  }
  return Status();
}

// [layer][expert] the device; empty for a layer without experts.
using Homes = std::vector<std::vector<int>>;

Homes homes_of(const RunShape& shape) {
  Homes homes(static_cast<size_t>(shape.num_layers));
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    for (int64_t e = 0; e < (shape.is_moe[l] ? shape.num_experts : 0); ++e) {
      homes[static_cast<size_t>(l)].push_back(shape.records[shape.expert(l, e)].device);
    }
  }
  return homes;
}

void move_to(const Homes& homes, RunShape& shape) {
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    const std::vector<int>& of_layer = homes[static_cast<size_t>(l)];
    for (size_t e = 0; e < of_layer.size(); ++e) {
      shape.records[shape.expert(l, static_cast<int64_t>(e))].device = of_layer[e];
    }
  }
}

class RoutedRun {
 public:
  RoutedRun(const ModelSizes& model, std::vector<PlannedRank> ranks, const RoutedLink& link,
            const RoutingTrace& trace)
      : model_(model),
        ranks_(std::move(ranks)),
        link_(link),
        trace_(trace),
        shape_(ranks_.front().run.shape) {
    speeds_.assign(static_cast<size_t>(shape_.devices), 1);
    if (shape_.num_experts > 0) speeds_ = row_speeds(model.shape, ranks_);
  }

  Result<RoutedForecast> forecast();

 private:
  void learn();
  Homes by_swaps(SwapPartner partner) const;
  Homes longest_first() const;
  Status add(const std::string& name, const Homes& homes);
  double imbalance(const RunShape& moved, const RoutedStep& step) const;
  Status count_moves(const Homes& homes, RoutedHomes& to) const;
  // What sends and takes the rows of all-to-alls (RoutedExchange).
  struct Ends {
    std::vector<int> of_device;  // [device] its end
    std::vector<int> node;       // [end] between two of a node nothing takes time
    std::vector<double> rates;   // [end] in bytes a second
  };
  Ends exchange_ends() const;
  SquareMatrix<double> sent_again(int64_t layer, const LayerRouting& routing,
                                  const LayerSeats& seats, const Ends& ends) const;
  Status time_exchanges(const RoutedStep& step);

  const ModelSizes& model_;
  std::vector<PlannedRank> ranks_;
  const RoutedLink link_;
  const RoutingTrace& trace_;
  RunShape shape_;              // the run's, as its experts are computed
  std::vector<double> speeds_;  // [device] row_speeds()
  RowMeans learnt_{1};          // of the steps that homes follow from
  std::vector<const RoutedStep*> tried_;
  RoutedForecast forecast_;
};

void RoutedRun::learn() {
  learnt_ = RowMeans(forecast_.learnt_steps);
  for (int64_t i = 0; i < forecast_.learnt_steps; ++i) {
    learnt_.add(home_loads(shape_, trace_.steps[static_cast<size_t>(i)].routing));
  }
}

// Swaps by a run's rule (plan/exchange/home_moves.h), whatever they cost. It goes by the times that
// rows are measured to take, whatever parallel.shares says.
Homes RoutedRun::by_swaps(SwapPartner partner) const {
  std::vector<double> row_s;
  for (const double speed : speeds_) row_s.push_back(1 / speed);
  RunShape moved = shape_;
  for (int64_t l = 0; l < shape_.num_layers; ++l) {
    for (const HomeSwap& swap : balancing_swaps(shape_, l, learnt_, row_s, partner)) {
      std::swap(moved.records[static_cast<size_t>(swap.a)].device,
                moved.records[static_cast<size_t>(swap.b)].device);
    }
  }
  return homes_of(moved);
}

Homes RoutedRun::longest_first() const {
  Homes homes = homes_of(shape_);
  const auto steps = static_cast<double>(learnt_.steps());
  for (size_t l = 0; l < homes.size(); ++l) {
    std::vector<int64_t> learnt;
    int64_t all = 0;
    for (const double mean : learnt_.of_layer(static_cast<int64_t>(l))) {
      all += learnt.emplace_back(std::llround(mean * steps));
    }
    if (all > 0) homes[l] = place_balanced(learnt, speeds_);
  }
  return homes;
}

double RoutedRun::imbalance(const RunShape& moved, const RoutedStep& step) const {
  const double speed = std::accumulate(speeds_.begin(), speeds_.end(), 0.0);
  double sum = 0;
  int64_t layers = 0;
  for (int64_t l = 0; l < moved.num_layers; ++l) {
    if (!moved.is_moe[static_cast<size_t>(l)]) continue;
    const LayerRouting routing = layer_routing(step.routing, l);
    const LayerSeats seats = layer_seats(moved, l, all_microbatches(moved), routing);
    std::vector<int64_t> rows;  // of each microbatch and expert
    std::vector<int> devices;
    for (int64_t b = 0; b < moved.microbatches; ++b) {
      const int64_t cell = moved.sums.cell(b, moved.microbatches);
      for (int64_t e = 0; e < moved.num_experts; ++e) {
        rows.push_back(routing[static_cast<size_t>(b)][static_cast<size_t>(e)]);
        devices.push_back(seats.device_of(e, cell, moved.sums.expert_shards));
      }
    }
    const double end = busiest_device(rows, devices, speeds_);
    const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    sum += all == 0 ? 1 : end * speed / static_cast<double>(all);
    ++layers;
  }
  return layers == 0 ? 1 : sum / static_cast<double>(layers);
}

Status RoutedRun::count_moves(const Homes& homes, RoutedHomes& to) const {
  const Homes own = homes_of(shape_);
  for (size_t l = 0; l < homes.size(); ++l) {
    ExpertDevices before, after;
    int64_t bytes = 0;  // of the largest that leaves its rank
    for (size_t e = 0; e < homes[l].size(); ++e) {
      to.moved_experts += homes[l][e] != own[l][e];
      before.push_back(shape_.rank_of(own[l][e]));
      after.push_back(shape_.rank_of(homes[l][e]));
      if (before.back() == after.back()) continue;
      const int64_t record = shape_.expert(static_cast<int64_t>(l), static_cast<int64_t>(e));
      bytes = std::max(bytes, moved_bytes(shape_, record));
    }
    if (bytes == 0) continue;
    ASSIGN_OR_RETURN(const MigrationCost cost,
                     migration_cost(before, after, shape_.ranks(), bytes, link_.bytes_per_s));
    to.move_s += cost.seconds;
  }
  return Status();
}

Status RoutedRun::add(const std::string& name, const Homes& homes) {
  const bool own = forecast_.homes.empty();
  RoutedHomes& added = forecast_.homes.emplace_back();
  added.name = name;
  RETURN_IF_ERROR(count_moves(homes, added));
  std::vector<PlannedRank> moved = ranks_;
  for (PlannedRank& rank : moved) move_to(homes, rank.run.shape);
  const auto steps = static_cast<double>(tried_.size());
  for (const RoutedStep* step : tried_) {
    for (PlannedRank& rank : moved) rank.run.routing = &step->routing;
    ASSIGN_OR_RETURN(const StepForecast timed,
                     forecast_step(moved, link_.network, model_.shape, kFinePlan));
    if (own && timed.state_on_device) shape_ = settled(std::move(shape_), timed.weights_travel);
    added.step_s += timed.step_s() / steps;
    RunShape moved_shape = shape_;
    move_to(homes, moved_shape);
    added.imbalance += imbalance(moved_shape, *step) / steps;
  }
  return Status();
}

RoutedRun::Ends RoutedRun::exchange_ends() const {
  const bool several = shape_.ranks() > 1, by_rank = several && shape_.shares_cards;
  Ends ends;
  for (int d = 0; d < shape_.devices; ++d) {
    const int rank = shape_.rank_of(d);
    ends.of_device.push_back(by_rank ? rank : d);
    if (ends.of_device.back() < std::ssize(ends.node)) continue;  // another device's, too
    ends.node.push_back(several ? rank : d);
    const double own_gb_s = ranks_[static_cast<size_t>(rank)].sheet->network.gb_s;
    ends.rates.push_back(several && own_gb_s > 0 ? own_gb_s * kGiga : link_.bytes_per_s);
  }
  return ends;
}

// The rows that come to experts again for their backward, since they did not stay.
SquareMatrix<double> RoutedRun::sent_again(int64_t layer, const LayerRouting& routing,
                                           const LayerSeats& seats, const Ends& ends) const {
  const auto end_of = [&](size_t device) { return ends.of_device[device]; };
  SquareMatrix<double> rows(static_cast<int>(std::ssize(ends.node)));
  const std::vector<ExpertWave> waves =
      layer_waves(shape_, layer, all_microbatches(shape_), routing, seats);
  for (size_t w = 0; w < waves.size(); ++w) {
    for (size_t d = 0; d < waves[w].size(); ++d) {
      const bool may_stay = static_cast<int64_t>(w) < shape_.kept_waves();
      if (may_stay && shape_.keeps_rows(layer, static_cast<int>(d))) continue;
      for (const ExpertGroup::Parcel& parcel : waves[w][d].parcels) {
        rows.at(end_of(static_cast<size_t>(parcel.device)), end_of(d)) +=
            static_cast<double>(parcel.rows);
      }
    }
  }
  return rows;
}

// The four all-to-alls of each layer: rows to the experts' seats and back, in both phases.
Status RoutedRun::time_exchanges(const RoutedStep& step) {
  const Ends all = exchange_ends();
  const auto ends = static_cast<int>(std::ssize(all.node));
  const auto end_of = [&](int device) { return all.of_device[static_cast<size_t>(device)]; };
  std::vector<int32_t> attends;
  for (int64_t b = 0; b < shape_.microbatches; ++b)
    attends.push_back(end_of(shape_.attending(0, b)));
  SendingOrder in_order(static_cast<size_t>(ends), std::vector<int>(static_cast<size_t>(ends)));
  for (std::vector<int>& receivers : in_order) std::iota(receivers.begin(), receivers.end(), 0);
  const auto row = static_cast<double>(shape_.hidden_size * shape_.dtype_bytes);
  constexpr double kWeight = sizeof(float);  // of routing, or its gradient
  RoutedExchange& times = forecast_.exchange;
  const auto steps = static_cast<double>(tried_.size());
  const Microbatches microbatches = all_microbatches(shape_);
  for (int64_t l = 0; l < shape_.num_layers; ++l) {
    if (!shape_.is_moe[static_cast<size_t>(l)]) continue;
    const LayerRouting routing = layer_routing(step.routing, l);
    const LayerSeats seats = layer_seats(shape_, l, microbatches, routing);
    ExpertDevices at;
    for (int64_t e = 0; e < shape_.num_experts; ++e) at.push_back(end_of(seats.seat(e)));
    ASSIGN_OR_RETURN(
        const SquareMatrix<double> rows,
        routed_traffic(routing_to_seats(shape_, microbatches, seats, routing), at, ends, attends));
    const SquareMatrix<double> again = sent_again(l, routing, seats, all);
    for (const bool there : {true, false}) {
      const SquareMatrix<double> way = there ? rows : reversed(rows);
      for (int phase = 0; phase < (shape_.training ? 2 : 1); ++phase) {
        SquareMatrix<double> bytes(ends);
        for (int i = 0; i < ends; ++i) {
          for (int j = 0; j < ends; ++j) {
            const auto node = [&](int end) { return all.node[static_cast<size_t>(end)]; };
            if (node(i) == node(j)) continue;
            bytes.at(i, j) = way.at(i, j) * (row + (phase == 1 ? kWeight : 0));
            if (there && phase == 1) bytes.at(i, j) += again.at(i, j) * row;
          }
        }
        ASSIGN_OR_RETURN(const double flat, queued_seconds(bytes, all.rates, in_order));
        ASSIGN_OR_RETURN(const double shortest,
                         queued_seconds(bytes, all.rates, shortest_first(bytes)));
        ASSIGN_OR_RETURN(const SquareMatrix<double> seconds, link_seconds(bytes, all.rates));
        times.in_order_s += flat / steps;
        times.shortest_first_s += shortest / steps;
        times.rounds_s += line_bound(seconds) / steps;
      }
    }
  }
  return Status();
}

Result<RoutedForecast> RoutedRun::forecast() {
  forecast_.recorded_steps = std::ssize(trace_.steps);
  forecast_.learnt_steps = std::max<int64_t>(1, forecast_.recorded_steps / 2);
  // The last ones, which homes do not follow from, unless there is only one.
  const int64_t others = std::max<int64_t>(1, forecast_.recorded_steps - forecast_.learnt_steps);
  for (int64_t i = std::min(kMostTried, others); i > 0; --i) {
    tried_.push_back(&trace_.steps[static_cast<size_t>(forecast_.recorded_steps - i)]);
    forecast_.tried_steps.push_back(tried_.back()->step);
  }
  RETURN_IF_ERROR(add("as the run has them", homes_of(shape_)));
  forecast_.seats_by_step = !shape_.seat_speeds.empty();
  learn();
  RETURN_IF_ERROR(add("swaps with the emptiest device", by_swaps(SwapPartner::kEmptiest)));
  RETURN_IF_ERROR(add("swaps with any device", by_swaps(SwapPartner::kAny)));
  RETURN_IF_ERROR(add("longest first", longest_first()));
  for (const RoutedStep* step : tried_) RETURN_IF_ERROR(time_exchanges(*step));
  return std::move(forecast_);
}

}  // namespace

int64_t RoutedForecast::pays_after(const RoutedHomes& to) const {
  const double gain_s = homes.front().step_s - to.step_s;
  if (gain_s <= 0) return -1;
  return static_cast<int64_t>(std::ceil(to.move_s / gain_s));
}

Result<RoutedForecast> forecast_routed(const ModelSizes& model, std::vector<PlannedRank> ranks,
                                       const RoutedLink& link, const RoutingTrace& trace) {
  RETURN_IF_ERROR(check_trace(ranks.front().run.shape, trace));
  return RoutedRun(model, std::move(ranks), link, trace).forecast();
}

}  // namespace pagoda
