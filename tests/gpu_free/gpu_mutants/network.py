"""What the network does not promise: each thing that the kernels do about it, left undone."""

from __future__ import annotations

from dataclasses import replace

from .kinds import COMBINE, DISPATCH, LINK, NETWORK, SIGNAL, WINDOW, WORDS, Mutant, one

_PUT = "letter.bytes, letter.box, {}, NVSHMEM_SIGNAL_ADD, letter.peer);"
_TOLD = "nvshmemx_qp_signal_op(box, change, NVSHMEM_SIGNAL_ADD, peer, *queue);"
_FENCE = "nvshmemx_qp_fence(peer, queue, 1);"
_SETTLED = "settle(team);"
_SENT = "send_token(team, args, layout, token); });"
_PUSHED = "push_row(team, args, labels, {local, row}); });"
_FAR = "net_hooks net_free"

# Each message ends with a signal.
_COUNTS = {
    "signal-beside-its-bytes": one(
        NETWORK,
        _PUT.format(1),
        _PUT.format(0) + " if (threadIdx.x % 32 == 0)"
        " nvshmemx_signal_op(letter.box, 1, NVSHMEM_SIGNAL_ADD, letter.peer);",
    ),
    "told-as-if-all-were-there": one(
        NETWORK, "change - take_acquire_gpu(network.sent + peer)", "change"
    ),
    # What both routes have in common.
    "too-few-boxes": one(WORDS, "* 2 + epoch % 2) * sizeof", "* 2) * sizeof", _FAR),
    "word-believed-without-its-box": one(
        SIGNAL, "counted = awaited.parcel != Parcel::none;", "counted = false;"
    ),
    "not-seen": one(SIGNAL, "see_what_landed(first);", ""),
    "handed-over-before-it-is-written": one(
        LINK, "team.sync();  // lanes of this", "// lanes of this"
    ),
    "rows-not-settled": one(DISPATCH, _SENT + _SETTLED, _SENT),
    "outputs-not-settled": one(COMBINE, _PUSHED + _SETTLED, _PUSHED),
    "too-few-slots-of-rows": one(
        WINDOW,
        "combine.slot(slot) + combine.slot_bytes / 2",
        "combine.offset + combine.slot_bytes / 2",
        _FAR,
    ),
    "too-few-slots-of-outputs": one(
        WINDOW, "kPage) + slot % 2 * combine.slot_bytes", "kPage)", "net_hooks net_late"
    ),
}
# Messages go into queues.
_QUEUES = {
    "no-fence": one(NETWORK, _FENCE, ""),
    "fence-of-another-queue": one(NETWORK, _FENCE, "nvshmemx_qp_fence(peer, network.queues, 1);"),
    "signal-by-another-queue": one(NETWORK, _TOLD, _TOLD.replace("*queue", "*network.queues")),
    "signal-before-its-fence": one(NETWORK, _FENCE + _TOLD, _TOLD + _FENCE),
    "not-all-queues-waited-for": one(
        NETWORK, "change -= static_cast<std::uint64_t>(__popc(used) - 1);", ""
    ),
}


def _on(route: str, table: dict[str, Mutant]) -> dict[str, Mutant]:
    """Named by the route; noticed by a short run unless it says otherwise."""
    named = {}
    for name, mutant in table.items():
        runs = "net net_hooks" if mutant.runs == "few" else mutant.runs
        named[f"{route}-{name}"] = replace(mutant, route=route, runs=runs)
    return named


NETWORKS = _on("counts", _COUNTS) | _on("queues", _QUEUES)
