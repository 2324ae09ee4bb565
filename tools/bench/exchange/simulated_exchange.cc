#include "tools/bench/exchange/simulated_exchange.h"

#include <map>
#include <utility>

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

}  // namespace pagoda
