#!/bin/bash
# Drain the nodes on which `raydiag probe --format json` found a critical problem.
#
#   deploy/preflight.sh REPORT_DIR; deploy/slurm/drain_unhealthy.sh REPORT_DIR/raydiag-*.json
#
# It prints what it would do. RAYDIAG_DRAIN=1 does it, as a user who may change nodes. Jobs that run
# on a drained node go on; Slurm starts no new one there. A node that only gave no answer, and a
# finding that is no more than likely, are left to a person. At most RAYDIAG_DRAIN_AT_MOST nodes (4):
# what looks wrong on more of them is seldom the nodes' own fault.
set -u
if [ $# -lt 1 ] || [ ! -r "$1" ]; then
  echo "usage: $0 REPORT.json ...; a report of \`raydiag probe --format json\`" >&2
  exit 2
fi
# shellcheck disable=SC2016  # no shell's variables
read_reports='
import json, re, sys, time

OLDEST_S = 3600  # what was seen before that may be mended
NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")
classes_of = {}
for path in sys.argv[1:]:
    try:
        document = json.load(open(path, encoding="utf-8"))
        findings = document["findings"] if document["schema"] == "raydiag.probe/1" else None
        made = time.strptime(document["generated_at"][:19], "%Y-%m-%dT%H:%M:%S")
        age_s = time.mktime(time.gmtime()) - time.mktime(made)
    except (OSError, ValueError, KeyError, TypeError):
        findings = None
    if findings is None:
        sys.exit(f"{path}: no report of raydiag probe --format json")
    if age_s > OLDEST_S:
        print(f"{path} is more than an hour old: left out", file=sys.stderr)
        continue
    for finding in findings:
        if not NAME.fullmatch(finding["host"] or "") or finding["host"].upper() == "ALL":
            continue
        is_sure = finding["severity"] == "critical" and finding["confidence"] == "confirmed"
        is_silent = finding["class"] in ("node-unreachable", "ray-node-dead")
        if is_sure and not is_silent:
            classes_of.setdefault(finding["host"], []).append(finding["class"])
for host, classes in sorted(classes_of.items()):
    print(host, ",".join(dict.fromkeys(classes)))
'
case ${RAYDIAG_DRAIN_AT_MOST:-4} in
  *[!0-9]*) echo "RAYDIAG_DRAIN_AT_MOST: a number of nodes" >&2; exit 2 ;;
esac
unhealthy=$(python3 -I -c "$read_reports" "$@") || exit 2
[ -n "$unhealthy" ] || { echo "no node to drain"; exit 0; }
count=$(printf '%s\n' "$unhealthy" | wc -l)
if [ "$count" -gt "${RAYDIAG_DRAIN_AT_MOST:-4}" ]; then
  echo "$count nodes are unhealthy, more than RAYDIAG_DRAIN_AT_MOST=${RAYDIAG_DRAIN_AT_MOST:-4}: none is drained" >&2
  exit 1
fi
status=0
while read -r node classes; do
  if [ "${RAYDIAG_DRAIN:-0}" = 1 ]; then
    echo "draining $node: $classes"
    timeout -k 1 20 scontrol update "NodeName=$node" State=DRAIN "Reason=raydiag: $classes" </dev/null || status=1
  else
    echo "would drain $node: $classes (RAYDIAG_DRAIN=1 does it)"
  fi
done <<<"$unhealthy"
exit $status
