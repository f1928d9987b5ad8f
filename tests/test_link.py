"""The link between rank processes over UCX: bytes, order, progress, refusals, death."""

import link_work as work
import pytest
from link_messages import bad_messages

from deep_ll import _native
from deep_ll.testing import RankPool
from deep_ll.testing.rank_errors import RankDied

pytestmark = pytest.mark.skipif(not _native.HAVE_UCX, reason="built without UCX")

HEAP_BYTES = work.INBOXES + work.MB


@pytest.mark.parametrize(("world", "rounds"), [(2, 160), (3, 50), (8, 5)])
def test_words_come_after_bytes(pools, world: int, rounds: int) -> None:
    assert sum(pools(world).run(work.random_blocks, rounds)) > 1000


def test_message_without_room_for_a_word(pools) -> None:
    pools(2).run(work.full_messages)


def test_rank_that_computes_receives(pools) -> None:
    _, took_s = pools(2).run(work.passive_target, 1.0)
    assert took_s < 0.4


def test_both_send_before_they_receive(pools) -> None:
    assert all(pools(2).run(work.both_send_first, 64 * work.MB))


def test_threads_of_a_rank_send_at_once(pools) -> None:
    pools(2).run(work.threads_at_once, 3, 60)


def test_only_the_chosen_interface_is_listened_on(pools) -> None:
    for addresses in pools(2).run(work.listening):
        assert addresses == {"0100007F"}  # 127.0.0.1


def test_stranger_changes_nothing(pools) -> None:
    # Rank 1, for which they pass themselves off, has greeted.
    bad = [*bad_messages(HEAP_BYTES, _native.HEAP_HEADER_BYTES, number=1).values()]
    (unharmed, stats, dropped), *_ = pools(3).run(work.stranger, bad)
    assert unharmed
    # Of the stranger's own: its greeting, and a put with a signal.
    assert dropped + stats[1]["dropped"] == len(bad) + 2
    assert stats[1]["messages_landed"] == 2


def test_peer_killed() -> None:
    with RankPool(4) as pool:
        results = pool.run(work.killed_peer, 2, may_die=[2])
    assert isinstance(results[2], RankDied)
    for rank in (0, 1, 3):
        assert results[rank]["noticed_s"] < 1.0
        assert results[rank]["dead"] == [2]
        assert results[rank]["closing_s"] < 2.0


def test_peer_killed_in_traffic() -> None:
    with RankPool(3) as pool:
        results = pool.run(work.killed_in_traffic, 1, may_die=[1])
    assert (results[0], results[2]) == ([1], [1])


def test_closed_in_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody dies of what others close; freed memory holds nonsense, so that its use is noticed."""
    monkeypatch.setenv("MALLOC_PERTURB_", "165")
    with RankPool(5) as pool:
        assert sum(pool.run(work.close_in_traffic, 25)) > 10


def test_peer_stopped(pools) -> None:
    told, victim = pools(2).run(work.stalled_peer, 64 * work.MB)
    assert told["dead"]
    assert 0.5 < told["sending_s"] < 3.0
    assert told["closing_s"] < 2.0
    assert victim["word"] == 0  # not all that was to come before has come


def test_settings_for_users_own_ucx_change_nothing(pools) -> None:
    theirs = {"UCX_TLS": "sysv", "UCX_NET_DEVICES": "nope", "UCX_ALLOC_PRIO": "huge"}
    assert pools(2).run(work.with_environment, theirs) == ["open", "open"]


def test_own_settings_count(pools) -> None:
    answers = pools(2).run(work.with_environment, {"DEEP_LL_UCX_NET_DEVICES": "nope"})
    for answer in answers:
        assert "rank 0" in answer
        assert "rank 1" in answer
        assert "nope" in answer or "lo" in answer


def test_transport_that_reaches_nobody(pools) -> None:
    answers = pools(2).run(work.with_environment, {"DEEP_LL_UCX_TLS": "sm"})
    for answer in answers:
        assert "rank 0 cannot connect to rank 1" in answer
        assert "rank 1 cannot connect to rank 0" in answer


def test_missing_library_is_told_with_a_cure(pools) -> None:
    answers = pools(2).run(work.with_environment, {"DEEP_LL_LIBUCP": "/nowhere/libucp.so.0"})
    for answer in answers:
        assert "/nowhere/libucp.so.0" in answer
        assert "pip install 'deep_ll[net]'" in answer
