#!/usr/bin/env bash
# Trains as a job of Slurm, one process on each node, and has it queued again when it was cut off:
#
#   sbatch --nodes=4 --time=24:00:00 tools/slurm.sh run.toml [--train.steps 1000 ...]
#
# The job resumes if the run has a checkpoint. Five minutes before its time is over it is told to
# save and stop (sbatch's --signal=B:USR1@SECONDS says otherwise): that must be longer than a step
# and a save. PAGODA names the program. On preemption and scancel Slurm itself tells the processes.
# A job that has saved nothing since it was queued again is not queued another time.
#
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
set -euo pipefail

stop() {
  echo "slurm.sh: $*" >&2
  exit 2
}

[ $# -gt 0 ] || stop "name a run file: sbatch --nodes=4 tools/slurm.sh run.toml"
run=$1
[ -r "$run" ] || stop "cannot read $run"

# The last option counts, or else the run file.
line="s/^[[:space:]]*(train\\.)?output_dir[[:space:]]*=[[:space:]]*[\"']([^\"']*).*/\\2/p"
folder=$(sed -nE "$line" "$run" | tail -n 1)
for ((i = 2; i <= $#; ++i)); do
  case ${!i} in
    --train.output_dir=*) folder=${!i#*=} ;;
    --train.output_dir) j=$((i + 1)); folder=${!j-} ;;
  esac
done
[ -n "$folder" ] || stop "no train.output_dir in $run"

has_checkpoint() {
  compgen -G "$folder/checkpoints/step-*[0-9]/MANIFEST" > /dev/null
}

newest_step() {
  compgen -G "$folder/checkpoints/step-*[0-9]/MANIFEST" |
    sed -E 's|.*/step-0*([0-9]+)/MANIFEST|\1|' | sort -n | tail -n 1
}

resume=()
if has_checkpoint; then resume=(--resume); fi
# A trap ends a wait early. Slurm's SIGTERM reaches the processes without this script.
step=
trap 'interrupted=1; [ -z "$step" ] || kill -USR1 "$step" || true' USR1
trap 'interrupted=1' TERM
# A process that dies leaves the others time to say so, and end; what still stands then is killed.
srun --mpi=pmix --kill-on-bad-exit=0 --wait=30 "${PAGODA:-pagoda}" train "$@" "${resume[@]}" &
step=$!

code=127
while :; do
  interrupted=
  ended=0
  wait "$step" || ended=$?
  [ "$ended" -eq 127 ] || code=$ended  # 127: it has been waited for
  [ -n "$interrupted" ] || break
done

case $code in
  75 | 137 | 143)
    if has_checkpoint; then
      # The job, and the step that it had when it was queued again.
      mark="$folder/queued-again"
      now="$SLURM_JOB_ID $(newest_step)"
      if [ "$(cat "$mark" 2> /dev/null)" = "$now" ]; then
        echo "slurm.sh: ended with $code and saved nothing since it was queued again;" \
          "not queued again" >&2
      elif echo "$now" > "$mark"; then
        echo "slurm.sh: ended with $code; queued again" >&2
        scontrol requeue "$SLURM_JOB_ID"
      else
        echo "slurm.sh: ended with $code; not queued again, since $mark cannot be written" >&2
      fi
    fi
    ;;
esac
exit "$code"
