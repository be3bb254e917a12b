#!/bin/bash
# Slurm prolog: see that the node's exporter runs before a job begins.
#
# Install as an executable file in a directory that Prolog= of slurm.conf matches. Slurm drains a
# node whose prolog fails, so this one ends with 0 whatever happens, within some seconds.
unit=${RAYDIAG_UNIT:-raydiag-exporter.service}

if ! timeout -k 1 5 systemctl --no-block start "$unit" </dev/null >/dev/null 2>&1; then
  timeout -k 1 2 logger -t raydiag "prolog of job ${SLURM_JOB_ID:-?}: $unit could not be started" \
    </dev/null >/dev/null 2>&1
fi
exit 0
