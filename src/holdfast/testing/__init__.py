"""What engines, stores, schedulers and searchers of your own are tested with, shipped with holdfast.

A contract suite for each interface (``searcher_contract``, ``scheduler_contract``, ``store_contract``,
``engine_contract``, ``journal_contract``): a list ``CHECKS`` of functions that take a factory. ``scripted`` is what
workers of an engine under test run, ``memory_store`` is a store that fails when it is told to, ``virtual_clock`` is
time that passes only when somebody waits, ``virtual`` runs experiments on learning curves.

Must never need a test framework. What tests holdfast itself, the simulator, is in ``tests/simulator`` of the project.
"""
