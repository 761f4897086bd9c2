"""Stories in which users ask the drivers for things: no request acts twice, and none that was acknowledged is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.controller import request_edge
from holdfast.core import changed_settings, user_facts
from holdfast.core import events as ev
from simulator.schedulers_under_test import SCHEDULERS
from simulator.simulate import Simulation, repeat_line, with_policies

FAST = range(100)
SLOW = [range(start, start + 250) for start in range(100, 1600, 250)]


def tell(seeds, scheduler=""):
    """Tell stories; how often users got what they asked for, by action."""
    done = Counter()
    for seed in seeds:
        simulation = Simulation(seed, change=with_policies(scheduler), asking=True)
        try:
            simulation.run()
        except Exception as error:
            line = repeat_line(seed, scheduler, asking=True)
            pytest.fail(f"{line}  # {type(error).__name__}: {str(error)[:300]}", pytrace=False)
        for entry in simulation._read_history():
            if isinstance(entry.event, ev.UserRequested):
                whom = "trial" if entry.event.n >= 0 else "experiment"
                done["refused" if entry.event.refused else entry.event.action, whom] += 1
            elif isinstance(entry.event, ev.SettingsChanged):
                done["samples", "experiment"] += 1
    return done


def test_every_request_is_answered_once_whatever_goes_wrong():
    done = tell(FAST)
    for action in (ev.Action.STOP, ev.Action.NOTE, ev.Action.TAG, "refused"):
        assert done[action, "trial"], done
        assert done[action, "experiment"], done
    assert done["samples", "experiment"], done


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SLOW, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_every_request_is_answered_once_in_many_stories(seeds):
    tell(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_schedulers_decide_the_same_whatever_users_stop(scheduler):
    tell(range(5000, 5040), scheduler)


def test_without_users_a_story_is_the_same_as_ever():
    story = Simulation(11)
    audit = story.run()
    assert not story.world.ledger.asked
    assert not {"UserRequested", "SettingsChanged"} & audit.counts.keys()


def forget_requests(patch):
    patch.setattr(user_facts, "remember_request", lambda state, request: None)
    patch.setattr(changed_settings, "remember_request", lambda state, request: None)


def follow_requests_for_the_dead(patch):
    patch.setattr(request_edge.RequestEdge, "_is_late", lambda self, request: False)


def remove_before_it_is_durable(patch):
    patch.setattr(request_edge.RequestEdge, "_is_safe", lambda self, seq: True)


def forget_stops_with_the_next_report(patch):
    def stop(state, trial):
        trial.verdict, trial.why = "stop", user_facts.STOPPED_BY_USER

    patch.setattr(user_facts, "_stop", stop)


PLANTED = {
    "ids are forgotten": forget_requests,
    "requests for dead drivers are followed": follow_requests_for_the_dead,
    "files go before their answers are durable": remove_before_it_is_durable,
    "a stop is forgotten with the next report": forget_stops_with_the_next_report,
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_missing_safeguard_is_noticed(plant, monkeypatch):
    plant(monkeypatch)
    assert any(is_noticed(seed) for seed in range(200))


def is_noticed(seed):
    try:
        Simulation(seed, asking=True).run()
    except Exception as error:
        return getattr(error, "invariant", "") in ("requests", "I5")
    return False
