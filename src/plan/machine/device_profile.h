// The measured costs of a run's tasks on each of its devices (MachineSheet::Profile), in place of
// those that follow from the sheet's rates. HeterMoE's profiler (section 5) measures
// T_A_attn, T_E_exp and T_E_attn so; here every kind of task has a cost, and the three are sums of
// them (plan/zebra/zebra_search.h). Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/machine/machine_profile.h"
#include "plan/machine/machine_sheet.h"
#include "plan/machine/model_shape.h"

namespace pagoda {

// The sizes that the costs of a layer's tasks depend on. The number of layers and of experts are
// not among them: tasks take rows and tokens.
std::string profile_key(const ModelShape& model, int64_t microbatch_tokens, int64_t sequence_len);

// [TaskKind] a cost for each kind that was measured. Only seconds.
using MeasuredCosts = std::array<std::optional<Cost>, kTaskKinds>;

// Appends a device and its costs.
void add_device(const std::string& name, const MeasuredCosts& costs,
                MachineSheet::Profile& profile);

// kUsage naming what is no cost, or of a device that is not listed.
Status check_profile(const MachineSheet::Profile& profile);

// {} if the profile holds for other sizes, or has not measured such a device. REQUIRES:
// check_profile(profile).
std::optional<MeasuredCosts> measured_costs(const MachineSheet::Profile& profile,
                                            const std::string& key, const std::string& device);

}  // namespace pagoda
