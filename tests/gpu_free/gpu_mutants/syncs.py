"""Barriers less, or others."""

from .kinds import (
    COMBINE,
    COPY,
    DISPATCH,
    HANG,
    LEAGUE,
    REARRANGE,
    SIGNAL,
    TEAM,
    Mutant,
    one,
    without,
)

SYNC, BLOCK, WARP = "team.sync();", "__syncthreads();", "__syncwarp();"
WIDE_END = "a wide phase ends at a barrier of the block, or with the kernel"
SOLO_END = "the end of a solo phase is a barrier of the team too"
READ_BEFORE = "publish_all begins with a barrier, after which nobody reads what is written here"
ENUMERATE = "few many hot four"

SYNCS = {
    # Of a team
    "publish": without(SIGNAL, "", SYNC, "team.lanes(peers.size, [&](int peer) {"),
    "first_before": without(TEAM, "*scratch_.found = n;", "sync();", "", "choices failure"),
    "first_after": without(TEAM, "", "sync();", "const int lowest", "choices failure"),
    "first_again": without(TEAM, "= *scratch_.found;", "sync();", "", "few four"),
    "first_lowest_not_atomic": one(
        TEAM, "if (f(i)) atomicMin(scratch_.found, i);", "if (f(i)) *scratch_.found = i;", "choices"
    ),
    "open_half": without(COPY, "", SYNC, "return team.half();", "many many_bf16"),
    "put_half": without(
        COPY, "if constexpr (kHasBulk) seal_shared();", SYNC, "", "few", "Race|Fault"
    ),
    "settle": without(
        COPY,
        "bulk_await_all(); }",
        SYNC,
        "",
        "few many wide read late",
        equivalent=WIDE_END,
    ),
    "put_warp": without(
        COPY,
        "",
        WARP,
        "} else {",
        "few many wide many_bf16",
        equivalent="a warp's first lane orders all of its copies; the others only wait for it",
    ),
    "fan": without(
        TEAM,
        "",
        WARP,
        "return all;",
        "few many wide many_bf16 four",
        equivalent="what a fan has found goes on in registers, by shuffles that wait themselves",
    ),
    "enumerate_cleared": without(REARRANGE, "seen[i] = 0; });", SYNC, "", ENUMERATE),
    "enumerate_counted": without(REARRANGE, "enumerate_run(run);", SYNC, "", ENUMERATE),
    "enumerate_summed": without(REARRANGE, "histogram[key] = sum; });", SYNC, "", ENUMERATE),
    "enumerate_done": without(
        REARRANGE,
        "ordinals[i] += run.seen[keys[i]];",
        SYNC,
        "",
        ENUMERATE,
        equivalent=SOLO_END,
    ),
    "enumerate_run_read": without(REARRANGE, "", WARP, "if (key >= 0 && before == 0)", ENUMERATE),
    "enumerate_run_written": without(REARRANGE, "= seen + before;", WARP, "", ENUMERATE),
    "scan_rows": without(
        REARRANGE, "", SYNC, "team.lanes(num_columns, [&](int c) { std::uint32_t begin"
    ),
    "place": without(
        DISPATCH,
        "place_rows(team, args, epoch);",
        SYNC,
        "",
        "few four free",
        equivalent=SOLO_END,
    ),
    "offer": without(
        COMBINE,
        "combined_value(args), Parcel::outputs}});",
        SYNC,
        "",
        "few four late",
        equivalent=READ_BEFORE,
    ),
    "tell_consumed": without(
        COMBINE, "consumed, 0}});", SYNC, "", "late again late_pulled", equivalent=READ_BEFORE
    ),
    # Of a block, and between blocks
    "league": without(LEAGUE, "", BLOCK, "failed_ = failed != 0; } template", "few", "Race|Fault"),
    "solo": without(LEAGUE, "phase.run(team);", SYNC, "", "few four"),
    "meet_before": without(LEAGUE, "= *args_.state;", BLOCK, ""),
    "meet_after": without(LEAGUE, "failed = stop; }", BLOCK, "", "few", "Race|Fault"),
    "meet_before_solo": without(LEAGUE, "", "if (after_wide_) meet();", "after_wide_ = false;"),
    "meet_before_wide": without(
        LEAGUE, "if (failed_) return;", "meet();", "if (failed_) return; const int mine"
    ),
    # Others
    "named_too_many": one(
        TEAM, "), kWarps * kWarpLanes);", "), kWarps * kWarpLanes + kWarpLanes);", sign="Fault|Hang"
    ),
    "named_too_few": one(
        TEAM, "), kWarps * kWarpLanes);", "), (kWarps - 1) * kWarpLanes);", sign="Fault|Race"
    ),
    "named_shared": one(
        TEAM,
        "bar_sync(1 + static_cast<int>(threadIdx.x) / (kWarps * kWarpLanes),",
        "bar_sync(1,",
        "few many",
        "Race|Hang|Fault",
    ),
    "turn_of_all_blocks": one(LEAGUE, "kBlock * (gridDim.x - 1)", "kBlock * gridDim.x", sign=HANG),
    "turn_too_early": one(LEAGUE, "kBlock * (gridDim.x - 1)", "kBlock * (gridDim.x - 2)"),
    "turn_not_kept": one(LEAGUE, "^ before) & kTurn)", ") & kTurn)", "few", "Race|Hang"),
}


def before_hopper(kind: str, runs: str, equivalent: str = "") -> Mutant:
    """The same fault where all lanes copy."""
    (edit,) = SYNCS[kind].edits
    return Mutant((edit,), runs, "Race|Fault", equivalent, arch="sm_80")


SYNCS |= {
    "open_half_sm_80": before_hopper("open_half", "many many_bf16"),
    "put_half_sm_80": before_hopper("put_half", "few"),
    "solo_sm_80": before_hopper("solo", "few"),
    "settle_sm_80": before_hopper("settle", "few many read", WIDE_END),
}
