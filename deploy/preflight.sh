#!/bin/sh
# Run on the head node before a training job is started on a Ray cluster: probe every node, keep the
# report, and refuse to go on when a node is unhealthy or could not be seen.
#
#   deploy/preflight.sh REPORT_DIR [options of `raydiag probe`]
#
# Exit status: 0 go; 1 a problem was found; 3 not everything could be seen; else raydiag could not
# run. Set RAYDIAG_ACCEPT_BLIND=1 to go on after 3, for clusters where a container hides the kernel log.
set -u
if [ $# -lt 1 ] || [ ! -d "$1" ]; then
  echo "usage: $0 REPORT_DIR [options of raydiag probe]; REPORT_DIR must exist" >&2
  exit 2
fi
report=$1/raydiag-$(date -u +%Y%m%dT%H%M%SZ)-$$.json
shift

raydiag probe --all-nodes --format json -o "$report" "$@"
status=$?
case $status in
  0) echo "preflight: all nodes well, report in $report" ;;
  1) echo "preflight: a problem was found, see $report" >&2 ;;
  3) echo "preflight: no problem found, but not everything was seen, see $report" >&2
     [ "${RAYDIAG_ACCEPT_BLIND:-0}" = 1 ] && status=0 ;;
  *) echo "preflight: raydiag could not run (exit status $status)" >&2 ;;
esac
exit $status
