// One row for each kind of task: its name, when its tasks run, what their time is proportional to
// and how they are drawn. The trace, the costs, the pages of a plan and the checks read it. To add
// a kind, add its row here and run it in one place (train/executor.cc).
#pragma once

#include <array>
#include <cstdint>

#include "plan/step/task.h"

namespace pagoda {

// What a task's time is proportional to (plan/machine/machine_profile.h counts it).
enum class TaskUnit : uint8_t {
  kNothing,          // it takes no time
  kTokens,           // tokens of its microbatch
  kChoices,          // tokens x experts per token, of its microbatch or of all
  kRows,             // rows of experts
  kComputedRows,     // rows of experts, and the padding behind them
  kElements,         // elements of its record that train
  kSummedElements,   // Task::elements
  kBytes,            // Task::bytes
  kUpdatedElements,  // these x updates it applies
};

enum class TaskColour : uint8_t { kOther, kAttention, kExperts, kHead, kUpdates };

struct TaskRow {
  TaskKind kind;
  const char* name;
  std::array<bool, kPhases> phases;  // by Task::phase: whether its tasks may run in it
  TaskUnit unit;
  TaskColour colour;

  bool runs_in(Phase phase) const { return phases[static_cast<size_t>(phase)]; }
};

inline constexpr std::array<bool, kPhases> kInForward{true, false, false};
inline constexpr std::array<bool, kPhases> kInBackward{false, true, false};
inline constexpr std::array<bool, kPhases> kInBoth{true, true, false};
inline constexpr std::array<bool, kPhases> kInOptimize{false, false, true};
inline constexpr std::array<bool, kPhases> kInAll{true, true, true};
inline constexpr std::array<bool, kPhases> kAheadOfUse{true, false, true};

// In the order of TaskKind.
inline constexpr std::array<TaskRow, kTaskKinds> kTaskTable{{
    {TaskKind::kAdam, "adam", kInOptimize, TaskUnit::kUpdatedElements, TaskColour::kUpdates},
    {TaskKind::kSendPage, "send page", kInAll, TaskUnit::kNothing, TaskColour::kOther},
    {TaskKind::kReceivePage, "receive page", kInAll, TaskUnit::kBytes, TaskColour::kOther},
    {TaskKind::kPrefetch, "prefetch", kAheadOfUse, TaskUnit::kNothing, TaskColour::kOther},
    {TaskKind::kUpload, "upload", kInBoth, TaskUnit::kNothing, TaskColour::kOther},
    {TaskKind::kEmbed, "embed", kInForward, TaskUnit::kTokens, TaskColour::kOther},
    {TaskKind::kAttention, "attention", kInForward, TaskUnit::kTokens, TaskColour::kAttention},
    {TaskKind::kCachedAttention, "cached attention", kInForward, TaskUnit::kTokens,
     TaskColour::kAttention},
    {TaskKind::kRoute, "route", kInForward, TaskUnit::kTokens, TaskColour::kOther},
    {TaskKind::kIndex, "index", kInBoth, TaskUnit::kChoices, TaskColour::kOther},
    {TaskKind::kDispatch, "dispatch", kInForward, TaskUnit::kComputedRows, TaskColour::kOther},
    {TaskKind::kSend, "send", kInBoth, TaskUnit::kNothing, TaskColour::kOther},
    {TaskKind::kReceive, "receive", kInBoth, TaskUnit::kBytes, TaskColour::kOther},
    {TaskKind::kTakeParcel, "take parcel", kInBoth, TaskUnit::kRows, TaskColour::kOther},
    {TaskKind::kPlaceRows, "place rows", kInBoth, TaskUnit::kComputedRows, TaskColour::kOther},
    {TaskKind::kReadRows, "read rows", kInBoth, TaskUnit::kNothing, TaskColour::kOther},
    {TaskKind::kExpert, "expert", kInForward, TaskUnit::kComputedRows, TaskColour::kExperts},
    {TaskKind::kPackRows, "pack rows", kInBoth, TaskUnit::kRows, TaskColour::kOther},
    {TaskKind::kCombine, "combine", kInForward, TaskUnit::kRows, TaskColour::kOther},
    {TaskKind::kResidual, "residual", kInForward, TaskUnit::kTokens, TaskColour::kOther},
    {TaskKind::kDenseMlp, "dense mlp", kInForward, TaskUnit::kTokens, TaskColour::kOther},
    {TaskKind::kHead, "head", kInForward, TaskUnit::kTokens, TaskColour::kHead},
    {TaskKind::kLoss, "loss", kInForward, TaskUnit::kTokens, TaskColour::kHead},
    {TaskKind::kLogits, "logits", kInForward, TaskUnit::kTokens, TaskColour::kHead},
    {TaskKind::kRouteReplay, "route replay", kInBackward, TaskUnit::kTokens, TaskColour::kOther},
    {TaskKind::kDispatchBackward, "dispatch backward", kInBackward, TaskUnit::kComputedRows,
     TaskColour::kOther},
    {TaskKind::kExpertBackward, "expert backward", kInBackward, TaskUnit::kComputedRows,
     TaskColour::kExperts},
    {TaskKind::kCombineBackward, "combine backward", kInBackward, TaskUnit::kRows,
     TaskColour::kOther},
    {TaskKind::kRouteBackward, "route backward", kInBackward, TaskUnit::kTokens,
     TaskColour::kOther},
    {TaskKind::kDenseMlpBackward, "dense mlp backward", kInBackward, TaskUnit::kTokens,
     TaskColour::kOther},
    {TaskKind::kAttentionBackward, "attention backward", kInBackward, TaskUnit::kTokens,
     TaskColour::kAttention},
    {TaskKind::kEmbedBackward, "embed backward", kInBackward, TaskUnit::kTokens,
     TaskColour::kOther},
    {TaskKind::kAddSums, "add sums", kInBackward, TaskUnit::kSummedElements, TaskColour::kOther},
    {TaskKind::kGradient, "gradient", kInBackward, TaskUnit::kElements, TaskColour::kOther},
}};

constexpr const TaskRow& task_row(TaskKind kind) { return kTaskTable[static_cast<size_t>(kind)]; }

static_assert([] {
  for (size_t i = 0; i < kTaskTable.size(); ++i) {
    if (kTaskTable[i].kind != static_cast<TaskKind>(i)) return false;
  }
  return true;
}(), "kTaskTable has a row for each TaskKind, in its order");

}  // namespace pagoda
