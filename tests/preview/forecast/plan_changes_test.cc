// Changes of a run that are said to fit do fit, and those that are said to help help as they say.
#include "preview/plan_changes.h"

#include <gtest/gtest.h>

#include "tests/preview/published_configs.h"

namespace pagoda {
namespace {

// The assignments that are tried change the run as they say, and the best is the one named.
TEST(PlanChanges, NameTheBestAssignment) {
  const ModelSizes model = published("olmoe-1b-7b");
  RunConfig config = workstation_run();
  config.parallel.attention_devices = 1;
  const MachineSheet sheet = machine("gpu-4x48gb");
  const PlanAdvice advice = advise(model, config, sheet, kSearchPlan);
  EXPECT_EQ(advice.assignments, 3);  // two attend, four attend, or experts stay at home
  EXPECT_EQ(advice.best_assignment, "parallel.attention_devices = 4");
  config.parallel.attention_devices = 4;
  EXPECT_EQ(advise(model, config, sheet, kSearchPlan).best_assignment, "");
  EXPECT_EQ(advise(model, workstation_run(), machine("gpu-24gb"), kSearchPlan).assignments, 0);
}

// What does not fit is counted all the same, and the changes named make it fit.
TEST(PlanChanges, FitWhatDoesNot) {
  const MachineSheet sheet = machine("gpu-24gb");
  RunConfig config = workstation_run();
  config.train.micro_batch_tokens = config.train.tokens_per_step = 1 << 20;
  const ModelSizes model = published("qwen3-30b-a3b");
  const RunForecast plan = forecast_run(model, config, sheet, kCoarsePlan).take();
  EXPECT_EQ(plan.fits.code(), Exit::kDoesNotFit);
  EXPECT_FALSE(plan.step);
  EXPECT_EQ(plan.parameters.total, 30532122624);
  const std::vector<PlanChange> changes = fitting_changes(model, config, sheet);
  ASSERT_FALSE(changes.empty());
  EXPECT_NE(changes.front().text.find("micro_batch_tokens"), std::string::npos);
  for (const PlanChange& change : changes) {
    SCOPED_TRACE(change.text);
    RunConfig changed = config;
    MachineSheet machine = sheet;
    change.apply(changed, machine);
    EXPECT_TRUE(forecast_memory(model, changed, machine)->fits.ok());
  }
  // Twice that microbatch does not.
  RunConfig changed = config;
  MachineSheet same = sheet;
  changes.front().apply(changed, same);
  changed.train.micro_batch_tokens *= 2;
  EXPECT_FALSE(forecast_memory(model, changed, same)->fits.ok());
}

TEST(PlanChanges, AStoreThatIsTooLargeWantsShorterStatesOrDrives) {
  MachineSheet sheet = machine("gpu-24gb");
  sheet.disk.drives = 1;
  sheet.disk.size = MemorySize::of_bytes(400000000000);
  const ModelSizes model = published("qwen3-30b-a3b");
  RunConfig config = workstation_run();
  config.train.save_steps = 500;
  EXPECT_FALSE(forecast_memory(model, config, sheet)->fits.ok());
  const std::vector<PlanChange> changes = fitting_changes(model, config, sheet);
  ASSERT_FALSE(changes.empty());
  for (const PlanChange& change : changes) {
    RunConfig changed = config;
    MachineSheet machine = sheet;
    change.apply(changed, machine);
    EXPECT_TRUE(forecast_memory(model, changed, machine)->fits.ok()) << change.text;
  }
}

TEST(PlanChanges, HelpAsTheySay) {
  const MachineSheet sheet = machine("gpu-24gb");
  const ModelSizes model = published("olmoe-1b-7b");
  const RunConfig config = workstation_run();
  const double before = forecast_run(model, config, sheet, kCoarsePlan)->tokens_per_s();
  const std::vector<HelpfulChange> changes = advise(model, config, sheet, kCoarsePlan).helpful;
  ASSERT_FALSE(changes.empty());
  for (size_t i = 0; i < changes.size(); ++i) {
    EXPECT_NEAR(changes[i].tokens_per_s / before - 1, changes[i].gain, 1e-9) << changes[i].text;
    if (i > 0) {
      EXPECT_GE(changes[i - 1].gain, changes[i].gain);
    }
  }
}

}  // namespace
}  // namespace pagoda
