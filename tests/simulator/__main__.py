"""Repeat a story: ``python tests/simulator --seed 7``; in a store with ``--remote``, on a cluster: ``--cluster``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulator import cluster_story, many_workers, remote_story, simulate

arguments = sys.argv[1:]
if "--remote" in arguments:
    arguments.remove("--remote")
    sys.exit(remote_story.main(arguments))
if "--cluster" in arguments:
    arguments.remove("--cluster")
    sys.exit(cluster_story.main(arguments))
if "--workers" in arguments:
    sys.exit(many_workers.main(arguments))
sys.exit(simulate.main(arguments))
