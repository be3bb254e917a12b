#!/bin/bash
# Slurm epilog: end the exporter after a job, where the site wants none between jobs.
#
# Without RAYDIAG_STOP_AFTER_JOB=1 it does nothing: the exporter costs next to nothing, and what it
# has seen between two jobs tells which of them broke the node. Do not set it where jobs share
# nodes. Ends with 0 whatever happens, since Slurm drains a node whose epilog fails.
unit=${RAYDIAG_UNIT:-raydiag-exporter.service}

if [ "${RAYDIAG_STOP_AFTER_JOB:-0}" = 1 ]; then
  timeout -k 1 5 systemctl --no-block stop "$unit" </dev/null >/dev/null 2>&1
fi
exit 0
