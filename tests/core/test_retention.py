"""Which checkpoints are kept."""

import math

import pytest
from world import World

from holdfast.core import commands as cmd
from holdfast.core.retention import Retention


def kept(world: World) -> list[int]:
    return [record.index for record in world.trial().committed()]


def saved(scores, **rule):
    world = World(retention=Retention(**rule))
    for number, score in enumerate(scores):
        metrics = {"other": 1.0} if score is None else {"score": score}
        world.save(name=f"s{number}", **metrics)
    return world


@pytest.mark.parametrize(
    ("scores", "keep", "expected"),
    [
        ([5, 1, 4, 2, 3], 2, [0, 2, 4]),
        ([5, 1, 4, 2, 3], 1, [0, 4]),
        ([1, 2, 3], 1, [2]),
        ([1, 1, 1], 2, [1, 2]),
        ([5, None, 4, None, 3], 2, [0, 2, 4]),
        ([math.nan, 1, 2], 2, [1, 2]),
        ([math.nan, math.nan], 1, [1]),
    ],
)
def test_best_k_and_the_latest_are_kept(scores, keep, expected):
    assert kept(saved(scores, num_to_keep=keep, score_attribute="score")) == expected


def test_order_min_keeps_the_smallest():
    assert kept(saved([5, 1, 4], num_to_keep=1, score_attribute="score", score_order="min")) == [1, 2]


def test_without_a_score_the_newest_are_kept():
    assert kept(saved([5, 1, 4], num_to_keep=2)) == [1, 2]


def test_nested_score_is_found():
    world = World(retention=Retention(num_to_keep=1, score_attribute="m/a"))
    for number, value in enumerate([5, 1, 2]):
        world.save(name=f"s{number}", m={"a": value})
    assert kept(world) == [0, 2]


def test_older_spelling_with_the_direction_in_the_name():
    assert kept(saved([5, 1, 4], num_to_keep=1, score_attribute="min-score")) == [1, 2]


def test_a_metric_that_is_literally_named_like_the_older_spelling_wins():
    world = World(retention=Retention(num_to_keep=1, score_attribute="max-auc"))
    for number, value in enumerate([5, 1, 2]):
        world.save(name=f"s{number}", **{"max-auc": value, "auc": -value})
    assert kept(world) == [0, 2]


def test_deletion_follows_the_event_that_made_it_obsolete():
    world = World(retention=Retention(num_to_keep=1))
    world.save(name="a")
    world.report(sealed="b")
    turn = world.commit()
    assert [type(event).__name__ for event in turn.events] == ["CheckpointCommitted", "CheckpointsDropped"]
    assert turn.commands == [cmd.Delete(0, 0)]


def test_what_another_trial_starts_from_is_never_dropped():
    world = World(retention=Retention(num_to_keep=1))
    world.save(name="a")
    world.state.holds[0, 0] = 1
    world.save(name="b")
    assert kept(world) == [0, 1]


def test_best_k_of_the_whole_experiment():
    world = World(cpus=3, trials=3, retention=Retention(score_attribute="score", num_to_keep_overall=2))
    for n, score in enumerate([1.0, 3.0, 2.0]):
        world.save(n, name=f"s{n}", score=score)
    from holdfast.core import observations as ob

    for n in range(3):
        world.tell(ob.Returned(n, 1, 1))
    assert [[record.index for record in trial.committed()] for trial in world.state.trials] == [[], [0], [0]]


def test_a_commit_costs_no_look_at_trials_whose_checkpoints_are_not_among_the_best():
    """Failed trials keep their latest checkpoint, because the user may have them resumed: they are not asked again."""
    world = World(cpus=1, trials=30, retention=Retention(score_attribute="score", num_to_keep_overall=2))
    for n in range(29):
        world.save(n, name=f"s{n}", score=n % 7)
        assert len(world.policies.rules.retention.crowded_out(world.state)) <= 1
        world.fail(n)
    assert world.state.counts["ERROR"] == 29
    assert len(world.state.overall) == 29
    world.save(29, name="best", score=9.0)
    assert world.state.overall[-1] == (9.0, 29, 0)
    assert world.state.overall == sorted(world.state.overall)
    assert world.replayed().overall == world.state.overall


def test_what_a_commit_makes_obsolete_in_its_own_trial_makes_room_for_the_best_of_others():
    rule = Retention(num_to_keep=1, score_attribute="score", num_to_keep_overall=2)
    world = World(cpus=2, trials=2, retention=rule)
    world.save(0, name="a", score=1.0)
    world.save(1, name="b", score=5.0)
    world.save(1, name="c", score=6.0)
    assert [entry[1:] for entry in world.state.overall] == [(0, 0), (1, 1)]
    assert kept(world) == [0]


def test_checkpoints_of_a_life_that_the_user_ended_do_not_count_among_the_best():
    from holdfast.core import observations as ob

    world = World(retention=Retention(score_attribute="score", num_to_keep_overall=2))
    world.save(name="a", score=5.0)
    world.fail()
    world.state.holds[0, 0] = 1  # another trial starts from it: it stays for now
    world.tell(ob.Resumed(errored="restart"))
    assert kept(world) == [0]
    assert world.state.overall == world.replayed().overall == []


def test_the_checkpoint_that_a_running_attempt_started_from_is_kept_until_the_attempt_ends():
    from holdfast.core import observations as ob

    world = World(max_failures=1, retention=Retention(num_to_keep=1))
    world.save(name="a")
    world.fail()
    world.tell(ob.VerifyEnded(0, 0, ok=True))
    world.save(name="b")
    world.save(name="c")
    assert kept(world) == [0, 2]
    world.tell(ob.Returned(0, 2, 1))
    assert kept(world) == [2]
