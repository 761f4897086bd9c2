"""Repeat a story: ``python tests/simulator --seed 7``, or of an experiment in a store with ``--remote``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulator import remote_story, simulate

arguments = sys.argv[1:]
if "--remote" in arguments:
    arguments.remove("--remote")
    sys.exit(remote_story.main(arguments))
sys.exit(simulate.main(arguments))
