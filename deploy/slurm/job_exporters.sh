# To be sourced by a batch script: exporters for one job, by a user without rights on the nodes.
#
#   RAYDIAG_TENSORBOARD_DIR=$OUT/tensorboard RAYDIAG_LOGS=$OUT/metrics_exporter
#   source deploy/slurm/job_exporters.sh
#   start_exporters            # before training
#   ...
#   stop_exporters             # optional: they end with the job
#
# One exporter a node, in a step of its own that takes nothing away from training (--overlap) and
# whose end has no effect on the job. The kernel log is left out where the user may not read it: then
# hw_dmesg_gpu_errors_total has no series. Only that step is ever ended, by the id that `srun` got here.
# shellcheck shell=bash

start_exporters() {
  local logs=${RAYDIAG_LOGS:-}
  # Whatever is wrong here, the batch script goes on, also under `set -e`.
  if [ -z "$logs" ] || ! mkdir -p "$logs"; then
    echo "no exporters: RAYDIAG_LOGS must name a directory that all nodes can write" >&2
    return 0
  fi
  RAYDIAG_JOB_START=${RAYDIAG_JOB_START:-$(date +%s)}
  export RAYDIAG_JOB_START RAYDIAG_TENSORBOARD_DIR
  # shellcheck disable=SC2016  # these expand on the node
  srun --overlap --ntasks-per-node=1 --cpus-per-task=1 --gpus=0 --kill-on-bad-exit=0 \
    --output="$logs/%N.log" --open-mode=append --input=none \
    bash -c '
      export NODE_RANK=${SLURM_NODEID:-0}
      options=(--supervise --listen "${RAYDIAG_LISTEN:-127.0.0.1:9400}")
      # Where the user may not read the kernel log, the exporter is told so, and is healthy without.
      { : </dev/kmsg; } 2>/dev/null || options+=(--skip kernel_log)
      # For `raydiag hotfix`, which is told its name; nobody else may own the directory.
      run=${RAYDIAG_RUN_DIR:-/tmp/raydiag-$UID}
      mkdir -m 700 -p "$run" && [ -O "$run" ] && options+=(--pid-file "$run/exporter.pid")
      [ -n "${RAYDIAG_TENSORBOARD_DIR:-}" ] && options+=(--tensorboard-dir "$RAYDIAG_TENSORBOARD_DIR")
      exec "${RAYDIAG:-raydiag}" exporter run "${options[@]}"
    ' &
  raydiag_exporters_pid=$!
}

stop_exporters() {
  [ -n "${raydiag_exporters_pid:-}" ] || return 0
  kill "$raydiag_exporters_pid" 2>/dev/null || true
  raydiag_exporters_pid=
}
