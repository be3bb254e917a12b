"""What a Ray job of ours runs on the head, once `arrival` has its package: the resident agent."""

from __main__ import carried
from raydiag.cluster.resident.driver import main

main(carried["modules"], carried["request"])
