"""Faults put into copies of csrc/, each with the run that must notice it."""

from dataclasses import dataclass

WORDS, SIGNAL = "team/signal.hpp", "team/host/signal.hpp"
DOORBELL, POOL = "symm/doorbell.cpp", "team/host/pool.cpp"
SHAPE, REARRANGE = "ep/shape.hpp", "team/host/rearrange.hpp"
WINDOW, DISPATCH, COMBINE, PHASES, SHRINK = (
    "ep/window.cpp",
    "ep/dispatch.hpp",
    "ep/combine.hpp",
    "ep/phases.hpp",
    "ep/shrink.hpp",
)
# Ranks, teams, rounds, seed, scenario. The rounds are many: a run ends at the first fault.
DEFERRED = "4 2 300 1 deferred"
CREDIT = "4 2 100 1 credit"
LAZY_PULL = "4 2 200 1 lazy_pull"
MIXED = "4 2 200 1 mixed"
WAKING = "1 1 1 1 doorbell"
LIES = "3 1 400 1 lies"


NOTICED = r"wrote beside|blames|has spoiled|DEADLYSIGNAL|broken invariant"  # of a lie


@dataclass(frozen=True)
class Mutant:
    edits: tuple[tuple[str, str, str], ...]  # file, what is there, what is put instead
    run: str
    equivalent: str = ""  # why nobody can notice it
    sign: str = r"data race|DEADLYSIGNAL|rank \d|doorbell:|forgotten"  # what the run must say


def one(file: str, old: str, new: str, run: str, equivalent: str = "") -> Mutant:
    return Mutant(((file, old, new),), run, equivalent)


def believed(file: str, old: str, new: str, run: str = LIES) -> Mutant:
    """A check less of what peers write."""
    return Mutant(((file, old, new),), run, sign=NOTICED)


def told_relaxed(file: str, signal: str, epoch: str, value: str, run: str) -> Mutant:
    """A signal that orders nothing. This processor keeps the order; only a sanitizer can tell."""
    word = f"Word{{{signal}, {epoch}, {value}"
    relaxed = f"Word{{{signal} + kRelaxed, {epoch}, {value}"
    mark = (WORDS, "struct Word {", "constexpr std::uint64_t kRelaxed = 1; struct Word {")
    store = (
        SIGNAL,
        "std::atomic_ref<std::uint64_t> to(peers.at<Signal>(peer, word.signal)->word);"
        "to.store(signal_word(word.epoch, word.value), std::memory_order_release);",
        "std::atomic_ref<std::uint64_t> to("
        "peers.template at<Signal>(peer, word.signal / 8 * 8)->word);"
        "const auto told = signal_word(word.epoch, word.value);"
        "if (word.signal % 8 != 0) to.store(told, std::memory_order_relaxed);"
        "else to.store(told, std::memory_order_release);",
    )
    return Mutant(((file, word, relaxed), mark, store), run, sign="data race")


LATE_COUNTS = """
    std::uint32_t late = 0;
    for (int source = 0; source < args.shape.num_ranks; ++source)
        late += args.peers.template mine<std::uint16_t>(
            args.window.counts_of(args.progress->received[args.recv_slot], source))
            [args.shape.first_local() + local];
    if (row + count >= static_cast<int>(received[local])) count = static_cast<int>(late) - row;
"""
UNPACKED = "right &= unpack_rows(team, args, layout"
CREDIT_OF = "const std::uint32_t epoch = to_be_consumed(args);"
PUSHED = "RecvLayout::carve(shape).labels; team.share_blocks"
LAST_RECV = "args.window.recv.slot(args.progress->dispatched)"
SLEEP_CHECK = (
    "still_missing(context) && "
    "bell.arrived.load(std::memory_order_seq_cst) < arrived_before + missing"
)

MUTANTS = {
    # Order
    "counts_are_told_relaxed": told_relaxed(
        DISPATCH, "desk + offsetof(Desk, counts)", "epoch", "0", DEFERRED
    ),
    "rows_are_told_relaxed": told_relaxed(
        DISPATCH, "desk + offsetof(Desk, rows)", "args.progress->dispatched", "0", DEFERRED
    ),
    "pushed_outputs_are_told_relaxed": told_relaxed(
        COMBINE, "signal", "epoch", "combined_value(args)", "4 2 200 1 rounds"
    ),
    "pulled_outputs_are_told_relaxed": told_relaxed(
        COMBINE, "signal", "epoch", "combined_value(args)", LAZY_PULL
    ),
    "consumed_is_told_relaxed": told_relaxed(
        COMBINE,
        "desk + offsetof(Desk, consumed)",
        "consumed",
        "0",
        CREDIT,
    ),
    "wait_is_relaxed": one(
        SIGNAL,
        "(word).load(std::memory_order_acquire)",
        "(word).load(std::memory_order_relaxed)",
        DEFERRED,
    ),
    "wait_takes_an_older_epoch": one(
        WORDS, "(epoch_of(word) - epoch) >= 0", "(epoch_of(word) - epoch) >= -1", DEFERRED
    ),
    "observe_is_relaxed": one(
        SIGNAL,
        "(peers.mine<Signal>(signal)->word).load(std::memory_order_acquire)",
        "(peers.mine<Signal>(signal)->word).load(std::memory_order_relaxed)",
        MIXED,
        "the wait before it has acquired the same word",
    ),
    "rows_told_before_they_are_put": one(
        PHASES,
        "DEEP_LL_WIDE(send), DEEP_LL_SOLO(deliver)",
        "DEEP_LL_SOLO(deliver), DEEP_LL_WIDE(send)",
        "4 2 100 1 rounds",
    ),
    "no_end_of_a_phase": one(
        POOL,
        "impl_->finish.wait(lock, [&] { return impl_->running == 0; });",
        "(void)lock;",
        "2 3 100 1 rounds",
    ),
    # Slots
    "one_slot_of_counts": one(
        WINDOW,
        "take(ranks * window.counts_stride, 2, kLine)",
        "take(ranks * window.counts_stride, 1, kLine)",
        DEFERRED,
    ),
    "one_slot_of_rows": one(
        WINDOW, "window.recv = plan.take(slot, 2,", "window.recv = plan.take(slot, 1,", DEFERRED
    ),
    "one_slot_to_combine": one(
        WINDOW, "window.combine = plan.take(slot, 2,", "window.combine = plan.take(slot, 1,", CREDIT
    ),
    "one_greeting": Mutant(
        (
            (DISPATCH, "epoch % 2 * sizeof(Greeting)", "0 * sizeof(Greeting)"),
            (DISPATCH, "->greeting[epoch % 2]; }", "->greeting[0]; }"),
        ),
        DEFERRED,
    ),
    "one_word_to_combine": Mutant(
        (
            (
                COMBINE,
                "args.window.desk(args.shape.rank) + offsetof(Desk, combined) + epoch % 2 *",
                "args.window.desk(args.shape.rank) + offsetof(Desk, combined) + 0 *",
            ),
            (
                COMBINE,
                "args.window.desk(source) + offsetof(Desk, combined) + epoch % 2 *",
                "args.window.desk(source) + offsetof(Desk, combined) + 0 *",
            ),
        ),
        CREDIT,
    ),
    "unpack_takes_the_last_slot": one(
        DISPATCH, "mine<std::byte>(args.recv() +", f"mine<std::byte>({LAST_RECV} +", DEFERRED
    ),
    "push_takes_the_last_slot": one(
        COMBINE, f"labels = args.recv() + {PUSHED}", f"labels = {LAST_RECV} + {PUSHED}", DEFERRED
    ),
    "gather_takes_the_last_slot": one(
        COMBINE,
        "returned(shape, args.combine_slot, choice, token)",
        "returned(shape, args.progress->combined % 2, choice, token)",
        CREDIT,
    ),
    # Reuse
    "counts_are_read_late": one(
        DISPATCH,
        UNPACKED,
        LATE_COUNTS + UNPACKED,
        DEFERRED,
    ),
    "no_credit": one(
        COMBINE,
        CREDIT_OF,
        "if (args.shape.rank >= 0) return true; " + CREDIT_OF,
        CREDIT,
    ),
    "no_credit_when_read_in_place": one(
        COMBINE,
        CREDIT_OF,
        "if (args.shape.rank >= 0) return true; " + CREDIT_OF,
        LAZY_PULL,
    ),
    "credit_of_an_older_combine": one(
        COMBINE,
        CREDIT_OF,
        CREDIT_OF.replace(";", " - 1;"),
        CREDIT,
    ),
    "consumed_is_told_before_reading": one(
        COMBINE,
        "args.progress->combined = epoch;",
        "args.progress->combined = args.progress->consumed = epoch;",
        CREDIT,
    ),
    "consumed_is_counted_before_reading": one(
        PHASES,
        "DEEP_LL_WIDE(gather), DEEP_LL_SOLO(count_consumed)",
        "DEEP_LL_SOLO(count_consumed), DEEP_LL_WIDE(gather)",
        CREDIT,
        "peers are told by a later call, after this one has read",
    ),
    # Ranks that are left out
    "granted_is_relaxed": told_relaxed(
        SHRINK,
        "args.window.desk(shape.rank) + offsetof(Desk, granted)",
        "epoch",
        "0",
        "4 1 60 2 shrinkable",
    ),
    "gaps_stay": one(
        DISPATCH,
        "if (args.peers.can_shrink()) close_gaps(team, args);",
        "",
        "4 1 20 2 left_sending",
    ),
    "sources_work_out_their_rows": Mutant(
        (
            (DISPATCH, "if (!grants) sum_rows", "sum_rows"),
            (
                SHRINK,
                "args.peers.is_masked(shape.owner(expert)) ? kNoRow : grants[expert];",
                "args.peers.is_masked(shape.owner(expert)) || grants == nullptr ? kNoRow : "
                "args.ledger.base[expert];",
            ),
        ),
        "4 1 20 2 left_announcing",
    ),
    "choices_of_the_masked_are_summed": one(
        COMBINE,
        "(args.peers.can_shrink() && is_lost(args, expert))",
        "false",
        "4 1 20 2 left_pushing",
    ),
    # Sleep
    "sleep_without_another_look": one(DOORBELL, SLEEP_CHECK, "true", WAKING),
    "epochs_are_compared_as_numbers": one(
        WORDS,
        "static_cast<std::int32_t>(epoch_of(word) - epoch) >= 0",
        "epoch_of(word) >= epoch",
        DEFERRED,
    ),
    "sleeper_is_not_called": one(
        DOORBELL, "bell.ring.fetch_add(1, std::memory_order_release);", "", WAKING
    ),
    "last_arrival_does_not_wake": one(
        DOORBELL, "arrival < bell.wake_at", "arrival <= bell.wake_at", WAKING
    ),
    "every_arrival_wakes": one(
        DOORBELL, "if (arrival < bell.wake_at.load(std::memory_order_relaxed)) return;", "", WAKING
    ),
    # Nonsense
    "counts_are_believed": believed(REARRANGE, "number > most ? instead : sum", "sum"),
    "counts_of_rows_to_come_are_believed": believed(
        DISPATCH, "if (number > most) bad =", "if (false) bad ="
    ),
    "one_more_is_believed": believed(REARRANGE, "number > most ?", "number > most + 1 ?"),
    "labels_are_believed": believed(DISPATCH, "if (!is_right(args, place, origin))", "if (false)"),
    "labels_in_other_places_are_believed": believed(
        DISPATCH,
        "&& contains(args.layout_range[at.local * args.shape.num_ranks + origin.source], at.row)",
        "",
    ),
    "labels_are_believed_when_rows_go_back": believed(
        COMBINE, "return origin.is_inside(args.shape) &&", "return"
    ),
    "sources_are_believed": believed(SHAPE, "source < shape.num_ranks &&", ""),
    "tokens_are_believed": believed(SHAPE, "token < shape.max_tokens &&", ""),
    "grants_are_believed": believed(
        SHRINK, "args.ledger.base[expert] > most", "false", f"{LIES}_shrinkable"
    ),
    "grants_are_believed_when_rows_are_read": believed(
        COMBINE,
        "granted_row(args, entry, expert) >= args.shape.max_rows()",
        "false",
        f"{LIES}_shrinkable_pulled",
    ),
    "choices_are_believed": believed(SHAPE, "&& choice < shape.num_topk", ""),
    "sleeper_is_not_marked": one(
        DOORBELL, "bell.sleeping.store(1, std::memory_order_seq_cst);", "", WAKING
    ),
}
