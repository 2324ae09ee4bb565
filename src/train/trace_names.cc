#include "train/trace_names.h"

#include "plan/step/task_table.h"

namespace pagoda {

namespace {

std::string layer_and_expert(int64_t layer, int64_t expert) {
  std::string text;
  if (layer >= 0) text += strf(" L%lld", (long long)layer);
  if (expert >= 0) text += strf(" E%lld", (long long)expert);
  return text;
}

std::string record_name(const RunShape& shape, int64_t record) {
  if (record == shape.embedding()) return " embedding";
  if (record == shape.head()) return " head";
  return layer_and_expert(shape.records[record].layer, shape.records[record].expert);
}

std::string activation_name(const RunShape& shape, const PageTable& pages, PageId page) {
  for (int64_t l = 1; l < shape.num_layers; ++l) {
    if (!shape.leaves_stage(l - 1)) continue;
    const int64_t b = int64_t{page} - pages.leaving_input(l, 0);
    if (b >= 0 && b < shape.microbatches) {
      return strf("leaving input L%lld b%lld", (long long)l, (long long)b);
    }
  }
  const bool middle = page >= pages.middle(0, 0);
  const int64_t i = page - (middle ? pages.middle(0, 0) : pages.layer_input(0, 0));
  return strf("%s L%lld b%lld", middle ? "middle" : "input", (long long)(i / shape.microbatches),
              (long long)(i % shape.microbatches));
}

std::string layer_buffers_name(const RunShape& shape, const PageTable& pages, PageId page) {
  constexpr const char* kNames[] = {"normed", "sum", "dresidual"};
  const int set = pages.is_normed(page) ? 0 : pages.is_sum(page) ? 1 : 2;
  const int64_t i = page - pages.normed(0, 0);
  return strf("%s b%lld", kNames[set], (long long)(i % shape.microbatches));
}

}  // namespace

TraceLabel task_label(const Task& task) {
  TraceLabel label;
  label.name = task_row(task.kind).name + layer_and_expert(task.layer, task.expert);
  if (task.layer >= 0) label.add("layer", task.layer);
  if (task.expert >= 0) label.add("expert", task.expert);
  if (task.microbatch >= 0 && task.microbatches == 1) {
    label.name += strf(" b%d", task.microbatch);
    label.add("microbatch", task.microbatch);
  }
  if (task.rows > 0) label.add("rows", task.rows);
  if (task.padding > 0) label.add("padding", task.padding);
  return label;
}

std::string page_name(const RunShape& shape, const PageTable& pages, PageId page) {
  const PageTable::Page& p = pages.pages[page];
  switch (pages.classes[p.slot_class].kind) {
    case PageKind::kWeights: return "weights" + record_name(shape, p.record);
    case PageKind::kState: return "state" + record_name(shape, p.record);
    case PageKind::kGradient: return "gradient" + record_name(shape, p.record);
    case PageKind::kActivation: return activation_name(shape, pages, page);
    case PageKind::kLayerBuffer:
      return layer_buffers_name(shape, pages, page);
    case PageKind::kInbound:
      return strf("inbound %d", (page - pages.inbound(0, 0)) / 2);
    case PageKind::kOutbound:
      return strf("outbound %d", (page - pages.outbound(0, 0)) / 2);
    case PageKind::kKeptRows:
      return "rows that stay";
    case PageKind::kExpertSum: return "expert sum";
    case PageKind::kGuestWeights:
      return "weights of a guest";
    case PageKind::kGradientSum:
      return strf("sum %lld", (long long)(page - pages.num_stored()));
  }
  return "page";
}

}  // namespace pagoda
