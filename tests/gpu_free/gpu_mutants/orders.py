"""Accesses with a weaker order, or for fewer."""

from .kinds import (
    COMBINE,
    DISPATCH,
    LEAGUE,
    MEMORY,
    SIGNAL,
    WORDS,
    Mutant,
    one,
    without,
)

PEERS = "few hooks free late"
RUN_AHEAD = "free late hooks few"
MIXED_WEAK = "Race"


def access(old: str, new: str, runs: str, **more: str) -> Mutant:
    """Another instruction for one in memory.cuh."""
    return one(MEMORY, f'"{old}', f'"{new}', runs, **more)


def told_relaxed(file: str, signal: str, rest: str, runs: str) -> Mutant:
    """One of the signals that orders nothing."""
    mark = (WORDS, "struct Word {", "constexpr std::uint64_t kRelaxed = 1; struct Word {")
    told = (file, f"Word{{{signal}, {rest}", f"Word{{{signal} + kRelaxed, {rest}")
    where = (
        SIGNAL,
        "&peers.at<Signal>(peer, word.signal)->word; if constexpr (kWords > 1)",
        "&peers.at<Signal>(peer, word.signal / 8 * 8)->word;"
        "if (kWords > 1 || word.signal % 8 != 0)",
    )
    return Mutant((mark, told, where), runs)


FENCE = "if constexpr (kWords > 1) fence_release_sys();"

ORDERS = {
    # Published to peers
    "publish_relaxed": access("st.release.sys.global.u64", "st.relaxed.sys.global.u64", "few"),
    "publish_plain": access("st.release.sys.global.u64", "st.global.u64", "few"),
    "publish_gpu": access("st.release.sys.global.u64", "st.release.gpu.global.u64", "few"),
    "publish_cta": access("st.release.sys.global.u64", "st.release.cta.global.u64", "few"),
    "words_relaxed": without(SIGNAL, "", FENCE, "#pragma unroll", "few"),
    "words_fenced_gpu": access("fence.acq_rel.sys", "fence.acq_rel.gpu", "few"),
    "words_fenced_cta": access("fence.acq_rel.sys", "fence.acq_rel.cta", "few"),
    "words_plain": access("st.relaxed.sys.global.u64", "st.global.u64", "few"),
    "words_gpu": access("st.relaxed.sys.global.u64", "st.relaxed.gpu.global.u64", "few"),
    "words_fenced_late": one(
        SIGNAL,
        FENCE + "#pragma unroll for (const Word& word : words) {",
        "\n#pragma unroll\nfor (const Word& word : words) {"
        "if (kWords > 1 && &word != &words[0]) fence_release_sys();",
        "announced",
    ),
    "rows_relaxed": told_relaxed(
        DISPATCH, "desk + offsetof(Desk, rows)", "args.progress->dispatched, 0", "few"
    ),
    "outputs_relaxed": told_relaxed(COMBINE, "signal", "epoch, combined_value(args)", "few"),
    "pulled_outputs_relaxed": told_relaxed(
        COMBINE, "signal", "epoch, combined_value(args)", "late_pulled"
    ),
    "consumed_relaxed": told_relaxed(
        COMBINE, "desk + offsetof(Desk, consumed)", "consumed, 0", "late again"
    ),
    "consumed_of_pulled_relaxed": told_relaxed(
        COMBINE, "desk + offsetof(Desk, consumed)", "consumed, 0", "late_pulled"
    ),
    # Awaited from peers
    "wait_relaxed": access("ld.acquire.sys.global.u64", "ld.relaxed.sys.global.u64", "few"),
    "wait_plain": access("ld.acquire.sys.global.u64", "ld.global.u64", "few"),
    "wait_gpu": access("ld.acquire.sys.global.u64", "ld.acquire.gpu.global.u64", "few"),
    "wait_cta": access("ld.acquire.sys.global.u64", "ld.acquire.cta.global.u64", "few"),
    "wait_only_polls": one(
        SIGNAL,
        "(timeout_ns)) return false; } return epoch_of(load_acquire_sys(word)) - awaited.epoch <="
        " awaited.most_ahead;",
        "(timeout_ns)) return false; } return true;",
        "few",
    ),
    "poll_plain": access("ld.relaxed.sys.global.u64", "ld.global.u64", "few"),
    "poll_gpu": access("ld.relaxed.sys.global.u64", "ld.relaxed.gpu.global.u64", "few"),
    "poll_cta": access("ld.relaxed.sys.global.u64", "ld.relaxed.cta.global.u64", "few"),
    # Between the blocks of a rank
    "count_relaxed": access("atom.add.release.gpu", "atom.add.relaxed.gpu", "few"),
    "count_cta": access("atom.add.release.gpu", "atom.add.release.cta", "few"),
    "gate_relaxed": access("ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32", "few"),
    "gate_cta": access("ld.acquire.gpu.global.u32", "ld.acquire.cta.global.u32", "few"),
    "gate_plain": access("ld.acquire.gpu.global.u32", "ld.global.u32", "few"),
    "gate_only_polls": one(LEAGUE, "stop |= load_acquire_gpu(&state.arrived) & kStopped;", ""),
    "gate_polled_plain": access("ld.relaxed.gpu.global.u32", "ld.global.u32", "few"),
    "gate_polled_cta": access("ld.relaxed.gpu.global.u32", "ld.relaxed.cta.global.u32", "few"),
    # Told to the host
    "host_told_relaxed": access(
        "st.release.sys.global.u32", "st.relaxed.sys.global.u32", "bad_choice"
    ),
    "host_told_gpu": access("st.release.sys.global.u32", "st.release.gpu.global.u32", "bad_choice"),
    "host_told_of_failure_relaxed": access(
        "st.release.sys.global.u32", "st.relaxed.sys.global.u32", "failure"
    ),
    "failed_plain": access("st.release.gpu.global.u32", "st.global.u32", "failure"),
    "failed_cta": access("st.release.gpu.global.u32", "st.release.cta.global.u32", "failure"),
    "failed_relaxed": access(
        "st.release.gpu.global.u32",
        "st.relaxed.gpu.global.u32",
        "failure few",
        equivalent="blocks read nothing after it, they end; later launches come after this one",
    ),
}
