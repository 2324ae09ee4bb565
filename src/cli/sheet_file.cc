#include "cli/sheet_file.h"

#include <filesystem>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/option_file.h"
#include "plan/refusals.h"

namespace pagoda {
namespace {

constexpr int64_t kMostSheetBytes = kMiB;
constexpr int64_t kMostNodes = 4096;

template <typename Sheet>
Result<Sheet> parse_sheet(const std::string& text, const std::string& name) {
  Sheet sheet;
  OptionTable table;
  sheet.declare(table);
  ASSIGN_OR_RETURN(const std::vector<RunFileItem> items, parse_run_file(text, name, table));
  for (const RunFileItem& item : items) {
    RETURN_IF_ERROR(table.find(item.key)->assign(item.texts));
  }
  return sheet;
}

Result<std::string> read_sheet_text(const std::string& path) {
  return read_text_file(path, Links::kFollow, kMostSheetBytes);
}

template <typename Sheet>
Status checked_sheet(const Sheet& sheet, const std::string& path) {
  const Status status = sheet.check();
  return status.ok() ? status : Status(status.code(), printable(path) + ": " + status.message());
}

}  // namespace

Result<MachineSheet> parse_machine_sheet(const std::string& text, const std::string& name) {
  ASSIGN_OR_RETURN(MachineSheet sheet, parse_sheet<MachineSheet>(text, name));
  RETURN_IF_ERROR(checked_sheet(sheet, name));
  return sheet;
}

Result<MachineSheet> read_machine_sheet(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_sheet_text(path));
  return parse_machine_sheet(text, path);
}

Result<ClusterSheet> read_cluster_sheet(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_sheet_text(path));
  ASSIGN_OR_RETURN(ClusterSheet sheet, parse_sheet<ClusterSheet>(text, path));
  // Before each is read.
  RETURN_IF_ERROR(check_integer("the number of cluster.nodes",
                                static_cast<int64_t>(sheet.cluster.nodes.size()), 1, kMostNodes));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const std::string& node : sheet.cluster.nodes) {
    ASSIGN_OR_RETURN(MachineSheet machine, read_machine_sheet((folder / node).string()));
    sheet.nodes.push_back(std::move(machine));
  }
  RETURN_IF_ERROR(checked_sheet(sheet, path));
  return sheet;
}

Result<RoutingTrace> read_routing_trace(const std::string& path) {
  constexpr int64_t kMostBytes = kGiB;
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, Links::kFollow, kMostBytes));
  auto trace = parse_routing_trace(text);
  if (trace.ok()) return trace;
  return Status(trace.status().code(), printable(path) + ": " + trace.status().message());
}

}  // namespace pagoda
