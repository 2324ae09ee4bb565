#include "cli/sheet_file.h"

#include <filesystem>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/run_file.h"

namespace pagoda {
namespace {

constexpr int64_t kMostSheetBytes = kMiB;

template <typename Sheet>
Result<Sheet> read_sheet(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, Links::kFollow, kMostSheetBytes));
  Sheet sheet;
  OptionTable table;
  sheet.declare(table);
  ASSIGN_OR_RETURN(const std::vector<RunFileItem> items, parse_run_file(text, path, table));
  for (const RunFileItem& item : items) {
    RETURN_IF_ERROR(table.find(item.key)->assign(item.texts));
  }
  return sheet;
}

template <typename Sheet>
Status checked_sheet(const Sheet& sheet, const std::string& path) {
  const Status status = sheet.check();
  return status.ok() ? status : Status(status.code(), printable(path) + ": " + status.message());
}

}  // namespace

Result<MachineSheet> read_machine_sheet(const std::string& path) {
  ASSIGN_OR_RETURN(MachineSheet sheet, read_sheet<MachineSheet>(path));
  RETURN_IF_ERROR(checked_sheet(sheet, path));
  return sheet;
}

Result<ClusterSheet> read_cluster_sheet(const std::string& path) {
  ASSIGN_OR_RETURN(ClusterSheet sheet, read_sheet<ClusterSheet>(path));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const std::string& node : sheet.cluster.nodes) {
    ASSIGN_OR_RETURN(MachineSheet machine, read_machine_sheet((folder / node).string()));
    sheet.nodes.push_back(std::move(machine));
  }
  RETURN_IF_ERROR(checked_sheet(sheet, path));
  return sheet;
}

}  // namespace pagoda
