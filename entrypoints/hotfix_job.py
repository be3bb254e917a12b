"""What a Ray job of ours runs on the head, once `arrival` has its package: a hotfix command."""

from __main__ import carried
from raydiag.cluster.hotfix_driver import main
from raydiag.hotfix.head import run

main(carried["modules"], carried["request"], run)
