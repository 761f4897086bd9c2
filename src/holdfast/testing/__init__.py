"""What holdfast is tested with, shipped so that other engines, stores and schedulers can be tested with it too.

``engine_contract`` and ``scripted`` are for engines. ``simulate`` runs whole experiments under injected faults, one seed
a story: ``python -m holdfast.testing.simulate --seed 7``. The fakes it is made of stand in modules of their own.
"""
