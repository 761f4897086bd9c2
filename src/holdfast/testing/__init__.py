"""What engines, stores, schedulers and searchers of your own are tested with, shipped with holdfast.

``engine_contract`` and ``scripted`` are for engines, ``memory_store`` is a store that fails when it is told to,
``virtual_clock`` is time that passes only when somebody waits, ``virtual`` runs experiments on learning curves.

Must never need a test framework. What tests holdfast itself, the simulator, is in ``tests/simulator`` of the project.
"""
