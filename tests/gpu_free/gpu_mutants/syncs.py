"""Barriers less, or others."""

from .kinds import (
    BYTES, COMBINE, DISPATCH, FAULT, HANG, LEAGUE, REARRANGE, SIGNAL, TEAM, COPY, Mutant, one, without,
)

SYNC, BLOCK, WARP = "team.sync();", "__syncthreads();", "__syncwarp();"
ENUMERATE = "few many hot four"

SYNCS = {
    # Of a team
    "publish": without(SIGNAL, "", SYNC, "team.lanes(peers.size, [&](int peer) {"),
    "first_before": without(TEAM, "*scratch_.found = n;", "sync();", "", "few"),
    "first_after": without(TEAM, "", "sync();", "const int lowest", "few"),
    "first_again": without(TEAM, "= *scratch_.found;", "sync();", "", "few four"),
    "first_lowest_not_atomic": one(
        TEAM, "if (f(i)) atomicMin(scratch_.found, i);", "if (f(i)) *scratch_.found = i;", "choices"
    ),
    "open_half": without(COPY, "", SYNC, "return team.half();", "many many_bf16"),
    "put_half": without(COPY, "if constexpr (kHasBulk) seal_shared();", SYNC, ""),
    "settle": without(COPY, "bulk_await_all(); }", SYNC, ""),
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
        REARRANGE, "ordinals[i] += run.seen[keys[i]];", SYNC, "", ENUMERATE,
        equivalent="the end of a solo phase is a barrier of the team too",
    ),
    "enumerate_run_read": without(REARRANGE, "", WARP, "if (key >= 0 && before == 0)", ENUMERATE),
    "enumerate_run_written": without(REARRANGE, "= seen + before;", WARP, "", ENUMERATE),
    "scan_rows": without(REARRANGE, "", SYNC, "team.lanes(num_columns, [&](int c) { std::uint32_t begin"),
    "place": without(
        DISPATCH, "place_rows(team, args, epoch);", SYNC, "", "few four hooks free",
        equivalent="the end of a solo phase is a barrier of the team too",
    ),
    "offer": without(COMBINE, "combined_value(args)}});", SYNC, "", "few four late"),
    "tell_consumed": without(COMBINE, "consumed, 0}});", SYNC, "", "late again late_pulled"),
    # Of a block, and between blocks
    "league": without(LEAGUE, "", BLOCK, "failed_ = failed != 0; } template"),
    "solo": without(LEAGUE, "phase.run(team);", SYNC, "", "few four"),
    "meet_before": without(LEAGUE, "= *args_.state;", BLOCK, ""),
    "meet_after": without(LEAGUE, "failed = stop; }", BLOCK, ""),
    "meet_before_solo": without(LEAGUE, "", "if (after_wide_) meet();", "after_wide_ = false;"),
    "meet_before_wide": without(LEAGUE, "", "if (!after_wide_) meet();", ""),
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
    "turn_of_all_blocks": one(LEAGUE, "kTurn - (gridDim.x - 1)", "kTurn - gridDim.x", sign=HANG),
    "turn_too_early": one(LEAGUE, "kTurn - (gridDim.x - 1)", "kTurn - (gridDim.x - 2)"),
    "turn_not_kept": one(LEAGUE, "^ before) & kTurn)", ") & kTurn)", "few", "Race|Hang"),
}


def old(name: str, file: str, before: str, dropped: str, after: str, runs: str) -> dict:
    edit = (file, before + dropped + after, before + " " + after)
    return {f"{name}_sm_80": Mutant((edit,), runs, arch="sm_80")}


SYNCS |= old("open_half", COPY, "", SYNC, "return team.half();", "many many_bf16")
SYNCS |= old("put_half", COPY, "if constexpr (kHasBulk) seal_shared();", SYNC, "", "few")
SYNCS |= old("settle", COPY, "bulk_await_all(); }", SYNC, "", "few")
