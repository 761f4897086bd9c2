"""What holdfast is tested with, shipped so that other engines, stores and schedulers can be tested with it too.

``engine_contract`` and ``scripted`` are for engines. ``simulate`` runs whole experiments under injected faults, a story
for each seed: ``python -m holdfast.testing.simulate --seed 7``. The fakes it uses stand in modules of their own.
"""
