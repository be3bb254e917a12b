#!/bin/bash
# Add the exporter of kuberay-sidecar.yaml to the head group and to every worker group of a RayCluster.
#
#   deploy/kubernetes/kuberay-sidecar.sh NAME [options of kubectl, such as -n NAMESPACE]
#
# A JSON patch names each group by its number, so the file has the step of the first worker group,
# and this repeats it. Edit the image in the file first, and run it before the job starts.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: $0 NAME [options of kubectl]" >&2
  exit 2
fi
file=$(dirname "$0")/kuberay-sidecar.yaml
first='- op: add  # for each worker group'
groups=$(kubectl get raycluster "$@" -o 'jsonpath={.spec.workerGroupSpecs[*].groupName}' | wc -w)

patch=$(sed "/^$first/,\$d" "$file")
for ((group = 0; group < groups; group++)); do
  patch+=$'\n'$(sed -n "/^$first/,\$p" "$file" | sed "s|/workerGroupSpecs/0/|/workerGroupSpecs/$group/|")
done
exec kubectl patch raycluster "$@" --type=json --patch "$patch"
