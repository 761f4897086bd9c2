"""The simulator: whole experiments under injected faults, one seed a story, with independent checkers.

``simulate`` tells stories of one machine, ``remote_story`` those of an object store and several machines,
``cluster_story`` those of a cluster whose machines are lost, ``many_workers`` one of 10,000 workers; ``audit``,
``replay_check``, ``checkers`` and ``bucket`` judge them; the other modules are the fakes that stories are made of.
``python tests/simulator --seed 7`` repeats a story.

Owns what tests holdfast itself. What tests extensions too is shipped, in ``holdfast.testing``.
"""
