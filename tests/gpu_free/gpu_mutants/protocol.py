"""What ranks tell each other, and when they may write again."""

from .kinds import (
    ACCEPT,
    ARGS,
    COMBINE,
    DISPATCH,
    LEAGUE,
    MEMBERS,
    PHASES,
    REARRANGE,
    SHRINK,
    SIGNAL,
    WINDOW,
    WORDS,
    Mutant,
    one,
)

LATE_COUNTS = """
    std::uint32_t late = 0;
    for (int source = 0; source < args.shape.num_ranks; ++source)
        late += args.peers.template mine<std::uint16_t>(
            args.window.counts_of(args.progress->received[args.recv_slot], source))
            [args.shape.first_local() + local];
    if (row + count >= static_cast<int>(received[local])) count = static_cast<int>(late) - row;
"""


def told(lie: str) -> tuple[str, str]:
    """The run in which a peer lies, and how it ends if nobody notices."""
    return f"lie_{lie}", "unnoticed|Fault"


PUSHED = "RecvLayout::carve(shape).labels; team.share_blocks"
SENT = "DEEP_LL_WIDE(send), DEEP_LL_SOLO(deliver)"
LAST_RECV = "args.window.recv.slot(args.progress->dispatched - 1)"  # programs begin with slot 0
AWAIT_CREDIT = "const std::uint32_t epoch = to_be_consumed(args);"
UNPACKED = "right &= unpack_rows(team, args, layout"
NO_CREDIT = f"if (args.shape.rank >= 0) return true; {AWAIT_CREDIT}"
OF_READER = "args.window.desk(source) + offsetof(Desk, combined) + "
OF_WRITER = "args.window.desk(args.shape.rank) + offsetof(Desk, combined) + "
ANY = "Race|differ|disagrees|gave up"

PLACE_THEN_GRANT = (
    "const bool placed = heard && place_rows(team, args, epoch); team.sync(); "
    "return placed && (!args.peers.can_shrink() || exchange_grants(team, args, epoch));"
)
GRANT_THEN_PLACE = (
    "const bool done = heard && (!args.peers.can_shrink() || exchange_grants(team, args, epoch)); "
    "if (heard) (void)place_rows(team, args, epoch); team.sync(); return done;"
)

PROTOCOL = {
    # Ranks that may be left out
    "granted_before_it_is_written": one(
        DISPATCH, PLACE_THEN_GRANT, GRANT_THEN_PLACE, "shrinkable", ANY
    ),
    "gaps_stay": one(
        DISPATCH, "if (args.peers.can_shrink()) close_gaps(team, args);", "", "lost", ANY
    ),
    "labels_do_not_move": one(
        SHRINK, "move(layout.labels, Label::bytes(args.shape));", "", "lost", ANY
    ),
    "sources_are_not_told_that_rows_moved": one(
        SHRINK, "write_grant(args, epoch, source, local, to);", "", "lost_pulled", ANY
    ),
    "views_are_not_adopted": one(
        DISPATCH, "adopt_views(team, args, epoch);", "(void)epoch;", "heard", "^Hang"
    ),
    "notes_are_ignored": one(
        MEMBERS, "return !peers.can_shrink() ||", "return true ||", "goes_on", "Assertion"
    ),
    # Slots
    "one_slot_of_counts": one(WINDOW, "counts.slot(epoch)", "counts.slot(0)", "hooks free"),
    "one_slot_of_rows": one(ARGS, "window.recv.slot(recv_slot)", "window.recv.slot(0)", "hooks"),
    "one_slot_to_combine": one(
        WINDOW, "combine.slot(slot) + (row", "combine.slot(0) + (row", "late"
    ),
    "one_slot_to_combine_in_place": one(
        WINDOW,
        "combine.slot(slot) + shape.row_index",
        "combine.slot(0) + shape.row_index",
        "late_pulled",
    ),
    "one_greeting": Mutant(
        (
            (DISPATCH, "epoch % 2 * sizeof(Greeting)", "0 * sizeof(Greeting)"),
            (DISPATCH, "->greeting[epoch % 2]; }", "->greeting[0]; }"),
        ),
        "hooks free",
        ANY,
    ),
    "one_word_to_combine": Mutant(
        (
            (COMBINE, OF_WRITER + "epoch % 2 *", OF_WRITER + "0 *"),
            (COMBINE, OF_READER + "epoch % 2 *", OF_READER + "0 *"),
        ),
        "late",
        ANY,
    ),
    "unpack_takes_the_last_slot": one(
        DISPATCH, "mine<std::byte>(args.recv() +", f"mine<std::byte>({LAST_RECV} +", "deferred", ANY
    ),
    "push_takes_the_last_slot": one(
        COMBINE,
        f"labels = args.recv() + {PUSHED}",
        f"labels = {LAST_RECV} + {PUSHED}",
        "deferred",
        ANY + "|Fault",
    ),
    "gather_takes_the_last_slot": one(
        COMBINE,
        "returned(shape, args.combine_slot, choice, token)",
        "returned(shape, (args.progress->combined - 1) % 2, choice, token)",
        "late",
        ANY,
    ),
    "gather_takes_the_last_slot_in_place": one(
        COMBINE,
        "output(shape, args.combine_slot,",
        "output(shape, (args.progress->combined - 1) % 2,",
        "late_pulled",
        ANY,
    ),
    # Reuse
    "counts_are_read_late": one(
        DISPATCH,
        UNPACKED,
        LATE_COUNTS + UNPACKED,
        "far_hooks",
    ),
    "no_credit": one(COMBINE, AWAIT_CREDIT, NO_CREDIT, "late"),
    "no_credit_in_one_slot": one(COMBINE, AWAIT_CREDIT, NO_CREDIT, "again"),
    "no_credit_when_read_in_place": one(COMBINE, AWAIT_CREDIT, NO_CREDIT, "late_pulled"),
    "no_credit_when_ways_change": one(COMBINE, AWAIT_CREDIT, NO_CREDIT, "late_mixed"),
    "credit_of_an_older_combine": one(
        COMBINE, AWAIT_CREDIT, AWAIT_CREDIT.replace(";", " - 1;"), "late"
    ),
    "credit_of_an_older_combine_in_one_slot": one(
        COMBINE, "== last ? last : last - 1", "== last ? last - 1 : last - 1", "again"
    ),
    "credit_of_an_older_combine_in_place": one(
        COMBINE, "== last ? last : last - 1", "== last ? last - 1 : last - 1", "again_pulled"
    ),
    "consumed_is_told_before_reading": one(
        COMBINE,
        "args.progress->combined = epoch;",
        "args.progress->combined = args.progress->consumed = epoch;",
        "late",
    ),
    "consumed_is_never_told": one(
        COMBINE, "== consumed) return;", "== consumed || consumed != 0) return;", "late", "Hang"
    ),
    "consumed_is_counted_before_reading": one(
        PHASES,
        "DEEP_LL_WIDE(gather), DEEP_LL_SOLO(count_consumed)",
        "DEEP_LL_SOLO(count_consumed), DEEP_LL_WIDE(gather)",
        "late again late_pulled late_mixed",
        equivalent="peers are told by a later call, after this one has read",
    ),
    # Nonsense
    # Of an expert of another rank: its owner looks at what will come.
    "counts_are_believed": one(
        REARRANGE,
        "if (number > most && too_large == 0)",
        "if (false)",
        *told("count_of_my_expert"),
    ),
    "counts_of_rows_to_come_are_believed": one(
        DISPATCH, "if (number > most) bad =", "if (false) bad =", *told("count_of_my_expert")
    ),
    "epochs_are_believed": one(
        SIGNAL,
        "(timeout_ns)) return false; } return epoch_of(load_acquire_sys(word)) - awaited.epoch <="
        " awaited.most_ahead;",
        "(timeout_ns)) return false; } return reached(load_acquire_sys(word), awaited.epoch);",
        *told("epoch_of_rows"),
    ),
    "labels_of_other_dispatches_are_believed": one(
        DISPATCH,
        "origin.dispatch == dispatch_of(args) && contains",
        "contains",
        *told("dispatch_arrives"),
    ),
    "labels_in_other_places_are_believed": one(
        DISPATCH,
        "&& contains(args.layout_range[at.local * args.shape.num_ranks + origin.source], at.row)",
        "",
        *told("another_source_arrives"),
    ),
    "labels_are_believed_when_rows_go_back": one(
        COMBINE, "return origin.is_inside(args.shape) &&", "return", *told("token_goes_back")
    ),
    "next_phase_runs_all_the_same": one(
        LEAGUE,
        "stop |= load_acquire_gpu(&state.arrived) & kStopped;",
        "load_acquire_gpu(&state.arrived);",
        *told("token_goes_back"),
    ),
    # Epochs
    "an_older_epoch_is_taken": one(
        WORDS, "(epoch_of(word) - epoch) >= 0", "(epoch_of(word) - epoch) >= -1", "few", ANY
    ),
    "epochs_are_compared_as_numbers": one(
        WORDS,
        "static_cast<std::int32_t>(epoch_of(word) - epoch) >= 0",
        "epoch_of(word) >= epoch",
        "wrap",
        ANY + "|Hang",
    ),
    # Phases
    "rows_told_before_they_are_put": one(
        PHASES,
        "DEEP_LL_WIDE(send), DEEP_LL_SOLO(deliver)",
        "DEEP_LL_SOLO(deliver), DEEP_LL_WIDE(send)",
    ),
    "outputs_told_before_they_are_put": one(
        PHASES,
        "DEEP_LL_WIDE(push), DEEP_LL_SOLO(offer)",
        "DEEP_LL_SOLO(offer), DEEP_LL_WIDE(push)",
    ),
    "placed_before_announced": one(
        PHASES,
        f"DEEP_LL_SOLO(announce), DEEP_LL_SOLO(place), {SENT}",
        f"DEEP_LL_SOLO(place), DEEP_LL_SOLO(announce), {SENT}",
        "few",
        "Hang",
    ),
    "counts_not_awaited": one(
        DISPATCH, "const bool heard = hear(team, args, epoch);", "const bool heard = true;"
    ),
    "rows_not_awaited": one(PHASES, "league.run(DEEP_LL_SOLO(await_rows),", "league.run("),
    "outputs_not_awaited": one(PHASES, "league.run(DEEP_LL_SOLO(await_outputs),", "league.run("),
    "accepted_by_everyone": one(ACCEPT, "solo([&]", "wide([&]", "few"),
}
