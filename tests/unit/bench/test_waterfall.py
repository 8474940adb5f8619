"""Each tier's share of the time is only right if an event is joined with the batch that holds it."""

from bench.waterfall import Batch, between, moments, steps

BATCHES = [Batch(10, 100, 200, 210), Batch(10, 300, 301, 302), Batch(25, 400, 500, 510)]


def test_an_event_belongs_to_the_first_batch_that_ends_behind_it():
    assert moments(9, 90, BATCHES) == {"accepted": 90, "planned by Spark": 100, "batch done": 200, "in view": 210}
    assert moments(10, 350, BATCHES)["planned by Spark"] == 400
    assert moments(24, 350, BATCHES)["in view"] == 510


def test_an_event_that_no_batch_holds_yet_has_only_its_arrival():
    assert moments(25, 600, BATCHES) == {"accepted": 600}


def test_steps_go_from_each_tier_to_the_next_that_was_seen():
    probe = {"accepted": 0, "logged": 2_000, "planned by Spark": 5_000, "on the wire": 9_000}
    found = steps([probe])
    assert {name: step.p50 for name, step in found.items()} == {
        "accepted -> logged": 2.0,
        "logged -> planned by Spark": 3.0,
        "planned by Spark -> on the wire": 4.0,
    }


def test_only_probes_that_were_seen_at_both_ends_count():
    probes = [{"logged": 0, "painted": 7_000}, {"logged": 0}, {"painted": 1}]
    found = between(probes, "logged", "painted")
    assert found is not None
    assert (found.count, found.p50) == (1, 7.0)
    assert between(probes, "logged", "in view") is None
