"""What a Ray job of ours runs on the head, once `arrival` has its package: the coordinator."""

from __main__ import carried
from raydiag.cluster.coordinator import main

main(carried["modules"], carried["request"])
