// tools/slurm.sh under a Slurm that is made up of three scripts: a job that was cut off and has a
// checkpoint is queued again, and goes on from that; one that ended otherwise is not.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/testing/files.h"
#include "tests/testing/mpirun.h"
#include "tests/testing/run_test.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

// Runs a copy of the script, as Slurm does, and again as long as it asks for that.
constexpr const char* kSbatch = R"(#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
cp "$1" "$FAKE/spooled"
shift
export SLURM_JOB_ID=1234
for _ in {1..9}; do
  rm -f "$FAKE/queued"
  bash "$FAKE/spooled" "$@"
  code=$?
  echo $code >> "$FAKE/codes"
  [ -e "$FAKE/queued" ] || exit $code
done
)";

constexpr const char* kScontrol = R"(#!/usr/bin/env bash
[ "$*" = "requeue 1234" ] && touch "$FAKE/queued"
)";

// Each time plays the next scene: a number is what it ends with, without running anything.
constexpr const char* kSrun = R"(#!/usr/bin/env bash
echo "$*" >> "$FAKE/steps"
waits=
while [[ $1 == --* ]]; do
  case $1 in --wait=[1-9]*) waits=1 ;; esac
  shift
done
scene=$(head -n 1 "$FAKE/scenes")
sed -i 1d "$FAKE/scenes"
case $scene in [0-9]*) exit "$scene" ;; esac
before=$(ls "$FAKE/run/checkpoints" 2> /dev/null || echo none)
"$@" &
child=$!
trap 'kill -USR1 $child' USR1
saved() {
  ls "$FAKE/run/checkpoints" 2> /dev/null | grep -vxF "$before" | grep -q 'step-0*[1-9][0-9]*$'
}
if [ "$scene" = stands_still ]; then sleep 1000 & still=$!; fi
until saved; do kill -0 $child || exit 99; sleep 0.02; done
case $scene in
  time_is_over) kill -USR1 $PPID ;;
  killed | stands_still) kill -KILL $child ;;
  preempted) kill -TERM $PPID; kill -TERM $child ;;
esac
code=138
while [ $code -eq 138 ]; do wait $child; code=$?; done
# Another process of the step lives on: Slurm kills it if it was told to wait no longer.
if [ "$scene" = stands_still ]; then
  [ -z "$waits" ] || kill -KILL $still
  wait $still
fi
exit $code
)";

class SlurmTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    const auto script = [&](const char* name, const char* text) {
      const std::string path = dir_.file(name);
      put_file(path, text);
      std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    };
    script("sbatch", kSbatch);
    script("scontrol", kScontrol);
    script("srun", kSrun);
    ::setenv("FAKE", dir_.path().c_str(), 1);
    ::setenv("PAGODA", PAGODA_BINARY, 1);
    ::setenv("PATH", (dir_.path() + ":/usr/bin:/bin").c_str(), 1);
  }
  // `folder`: "" leaves it out.
  std::string run_file(const std::string& folder) const {
    const std::string path = dir_.file("run.toml");
    put_file(path, folder.empty() ? "" : "train.output_dir = \"" + folder + "\"  # here\n");
    return path;
  }
  // A run without an end, in which each step is saved.
  Words options() const {
    Flags run = flags("run");
    run.erase("train.output_dir");
    run["memory.device"] = run["memory.host"] = "16MiB";
    run["train.steps"] = "1000000";
    run["train.save_steps"] = "1";
    run["optim.schedule"] = "constant";
    Words words = train(run);
    words.erase(words.begin());  // "train"
    return words;
  }
  ProcessResult submit(const std::string& scenes, const Words& words) {
    put_file(dir_.file("scenes"), scenes);
    const Words first = {dir_.file("sbatch"), "--nodes=4", PAGODA_SLURM_SCRIPT};
    return Process(first + words, dir_.file("job")).wait();
  }
  std::string of(const char* file) const { return get_file(dir_.file(file)); }

  Watchdog watchdog_{"jobs", std::chrono::seconds(300)};
};

TEST_F(SlurmTest, AJobThatWasCutOffGoesOn) {
  const ProcessResult job = submit("time_is_over\nstands_still\npreempted\n74\n",
                                   Words{run_file(dir_.file("run"))} + options());
  EXPECT_EQ(job.code, 74) << job.err;
  EXPECT_EQ(of("codes"), "75\n137\n75\n74\n") << job.err;
  const std::vector<std::string> steps = lines_of(of("steps"));
  ASSERT_EQ(steps.size(), 4u);
  std::string first = "--mpi=pmix --kill-on-bad-exit=0 --wait=30 " +
                      std::string(PAGODA_BINARY) + " train " + dir_.file("run.toml");
  for (const std::string& word : options()) first += " " + word;
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i], first + (i == 0 ? "" : " --resume"));
  }
  // None is missing, and none was made twice.
  const std::map<int64_t, double> made = losses("run");
  ASSERT_GT(made.size(), 3u);
  EXPECT_EQ(made.rbegin()->first, std::ssize(made));
}

// It is queued again once from each saved step; another job begins anew.
TEST_F(SlurmTest, AJobThatSavesNothingIsNotQueuedForever) {
  const Words words = Words{run_file(dir_.file("run"))} + options();
  const ProcessResult job = submit("killed\n137\n0\n", words);
  EXPECT_EQ(job.code, 137) << job.err;
  EXPECT_EQ(of("codes"), "137\n137\n");
  EXPECT_NE(job.err.find("saved nothing since it was queued again; not queued again"),
            std::string::npos)
      << job.err;
  put_file(dir_.file("run/queued-again"), "1233 9\n");
  submit("143\nkilled\n75\n75\n0\n", words);
  EXPECT_EQ(of("codes"), "137\n137\n143\n137\n75\n");
}

TEST_F(SlurmTest, AJobWithoutACheckpointIsNotQueuedAgain) {
  for (const char* code : {"75", "137", "143"}) {
    const ProcessResult job =
        submit(std::string(code) + "\n", {run_file(""), "--train.output_dir", dir_.file("none")});
    EXPECT_EQ(std::to_string(job.code), code) << job.err;
  }
  EXPECT_EQ(of("codes"), "75\n137\n143\n");
  std::filesystem::create_directories(dir_.file("none/checkpoints/step-3.tmp"));
  put_file(dir_.file("none/checkpoints/step-3.tmp/MANIFEST"), "");
  submit("75\n", {run_file(""), "--train.output_dir=" + dir_.file("none")});
  EXPECT_EQ(of("codes"), "75\n137\n143\n75\n");
  EXPECT_EQ(of("steps").find("--resume"), std::string::npos);
}

TEST_F(SlurmTest, AJobNeedsARunFileThatNamesAFolder) {
  EXPECT_EQ(submit("0\n", {}).code, 2);
  EXPECT_EQ(submit("0\n", {dir_.file("missing.toml")}).code, 2);
  const ProcessResult job = submit("0\n", {run_file("")});
  EXPECT_EQ(job.code, 2);
  EXPECT_EQ(job.err, "slurm.sh: no train.output_dir in " + dir_.file("run.toml") + "\n");
}

}  // namespace
}  // namespace pagoda
