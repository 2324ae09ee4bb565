#include "tools/bench/exchange/simulated_exchange.h"

#include <map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "plan/forecast/simulated_network.h"
#include "plan/rounds/card_lanes.h"

namespace pagoda {

double simulated_exchange_s(std::span<const ExchangeLeg> legs, const ExchangeNodes& nodes,
                            const Cost& within, std::span<const Cost> between) {
  using Work = Timeline::Work;
  Timeline timeline;
  SimulatedNetwork inside(&timeline), outside(&timeline);
  std::vector<int> out, in;  // streams: [device]; [device, lane]
  for (size_t d = 0; d < between.size(); ++d) {
    inside.add_device(inside.add_card(within), strf("node's card of %zu", d));
    const bool alike = nodes.card_rates().empty();
    outside.add_device(outside.add_card(between[d]), strf("card of %zu", d),
                       alike ? 1 : card_lanes(nodes.card_rates()).count[d]);
    out.push_back(timeline.add_stream(strf("out %zu", d)));
    for (int lane = 0; lane < kMostCardLanes; ++lane) {
      in.push_back(timeline.add_stream(strf("in %zu lane %d", d, lane)));
    }
  }
  const auto instant = [&](int stream, Work after) {
    return timeline.add(stream, Timeline::kNone, 0, 0, {&after, 1});
  };
  std::map<std::pair<int, int>, Work> arrived;  // [to, from] messages that are gathered
  for (const ExchangeLeg& leg : legs) {
    if (leg.from == leg.to) continue;  // it is there
    const bool passed_on = leg.kind == ExchangeLeg::Kind::kPassedOn;
    const Work before = passed_on ? arrived.at({leg.from, leg.sender}) : Timeline::kNothing;
    const Work sent = instant(out[static_cast<size_t>(leg.from)], before);
    SimulatedNetwork& network = nodes.node(leg.from) == nodes.node(leg.to) ? inside : outside;
    const SimulatedNetwork::Message message = network.between(leg.from, leg.to, leg.bytes, sent);
    const int lane = in[static_cast<size_t>(leg.to * kMostCardLanes + leg.lane)];
    const Work received = instant(lane, network.expect(message, timeline.last(lane)));
    if (leg.kind == ExchangeLeg::Kind::kGathered) arrived[{leg.to, leg.from}] = received;
  }
  timeline.run();
  return timeline.end_s();
}

double simulated_exchange_s(std::span<const ExchangeLeg> legs, const CardNetwork& network) {
  const Cost within = {network.within_s, 1 / network.within_bytes_per_s, 0};
  const Cost between = {network.between_s, 1 / network.between_bytes_per_s, 0};
  return simulated_exchange_s(legs, network.exchange_nodes(), within,
                              std::vector<Cost>(static_cast<size_t>(network.devices()), between));
}

EvenExchange simulate_even_exchange(const CardNetwork& network, ExchangeOrder order,
                                    int64_t parcel_bytes) {
  std::vector<ParcelBytes> parcels;
  for (int to = 0; to < network.devices(); ++to) {
    for (int from = 0; from < network.devices(); ++from) {
      if (from != to) parcels.push_back({from, to, parcel_bytes});
    }
  }
  const std::vector<ExchangeLeg> legs = exchange_legs(parcels, order, network.exchange_nodes());
  EvenExchange exchange{simulated_exchange_s(legs, network)};
  for (const ExchangeLeg& leg : legs) {
    if (leg.from != 0 || leg.to == 0) continue;  // all devices send alike
    const bool within = network.same_node(leg.from, leg.to);
    const double rate = within ? network.within_bytes_per_s : network.between_bytes_per_s;
    (within ? exchange.within : exchange.between) +=
        static_cast<double>(leg.bytes) / rate / exchange.seconds;
  }
  return exchange;
}

}  // namespace pagoda
